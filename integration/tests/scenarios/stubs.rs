//! The resolvers that pods have in them: glibc's, musl's, c-ares, Go's own, dig and kdig, with the resolv.conf that the
//! kubelet writes. Each has its own way to ask: A and AAAA at once from one socket or from two, the search list, EDNS or
//! not, TCP where it is told that there is more, the same question again where nothing comes.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use egret_integration::{Lookup, Output, PodSpec, RecordType, Records, World, node};

use super::deployment::{Deployment, PATIENCE, Setup, TestResult, eventually, ip, only_names};

/// What the kubelet writes for a pod of `default` (dnsPolicy: ClusterFirst) of a cluster called `cluster.test`.
const RESOLV_CONF: &str = "search default.svc.cluster.test svc.cluster.test cluster.test\n\
                           nameserver 169.254.20.10\n\
                           options ndots:5";

/// A resolver and how it is set up; each has a pod of its own.
struct Stub {
    name: &'static str,
    /// Further options of its resolv.conf.
    options: &'static str,
    program: Program,
    /// What it does not do.
    lacks: &'static [Lack],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Getent,
    Musl,
    CAres,
    CAresWithEdns,
    Go,
    Dig(&'static [&'static str]),
    Kdig(&'static [&'static str]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// It may have no TCP, and use what a truncated answer has: musl before 1.2.4.
    Tcp,
    /// It knows no search list.
    Search,
}

const fn stub(name: &'static str, options: &'static str, program: Program) -> Stub {
    Stub {
        name,
        options,
        program,
        lacks: &[],
    }
}

const STUBS: &[Stub] = &[
    stub("glibc", "", Program::Getent),
    stub("glibc-single", "single-request", Program::Getent),
    stub("glibc-reopen", "single-request-reopen", Program::Getent),
    stub("glibc-tcp", "use-vc", Program::Getent),
    stub("glibc-edns", "edns0 trust-ad", Program::Getent),
    Stub {
        lacks: &[Lack::Tcp],
        ..stub("musl", "", Program::Musl)
    },
    stub("cares", "", Program::CAres),
    stub("cares-edns", "", Program::CAresWithEdns),
    stub("go", "", Program::Go),
    stub("go-tcp", "use-vc", Program::Go),
    stub("dig", "", Program::Dig(&[])),
    stub("dig-plain", "", Program::Dig(&["+noedns", "+noadflag"])),
    stub("dig-tcp", "", Program::Dig(&["+tcp", "+dnssec"])),
    Stub {
        lacks: &[Lack::Search],
        ..stub("kdig", "", Program::Kdig(&[]))
    },
    Stub {
        lacks: &[Lack::Search],
        ..stub("kdig-edns", "", Program::Kdig(&["+edns", "+cookie", "+padding"]))
    },
];

/// Each asks for a name outside through the search list, a Service by its short name, a hundred addresses, a name that
/// is said to be absolute, and one that nobody has.
pub(super) fn every_stub_finds_all_addresses_and_connects_at_once(world: &mut World) -> TestResult {
    let programs = Programs::build(world.files())?;
    let stubs: Vec<&Stub> = STUBS.iter().filter(|stub| programs.have(stub.program)).collect();
    let pods = stubs.iter().map(|stub| PodSpec::new(stub.name));
    let policy = only_names(&["*.example.test", "*.cluster.test"]);
    let deployment = Setup::of(policy).instead(pods).deploy(world)?;
    let upstream = deployment.upstream();
    upstream.set(
        "api.example.test",
        Records::addresses(["203.0.113.7", "2001:db8::7"]),
    );
    upstream.set(
        "web.default.svc.cluster.test",
        Records::addresses(["203.0.113.8"]),
    );
    upstream.set("many.example.test", Records::addresses(many()));
    upstream.set("absolute.example.test", Records::addresses(["2001:db8::9"]));
    for stub in stubs {
        deployment
            .pod(stub.name)
            .use_resolv_conf(&format!("{RESOLV_CONF} {}\n", stub.options))?;
        let stub = DeployedStub {
            deployment: &deployment,
            programs: &programs,
            stub,
        };
        stub.finds("api.example.test", &["203.0.113.7", "2001:db8::7"])?;
        stub.finds("web", &["203.0.113.8"])?;
        stub.finds_many()?;
        stub.finds("absolute.example.test.", &["2001:db8::9"])?;
        stub.finds_nothing("nobody.example.test")?;
    }
    Ok(())
}

fn many() -> Vec<String> {
    (1..=100).map(|last| format!("198.51.100.{last}")).collect()
}

struct DeployedStub<'s> {
    deployment: &'s Deployment<'s>,
    programs: &'s Programs,
    stub: &'s Stub,
}

impl DeployedStub<'_> {
    fn finds(&self, name: &str, addresses: &[&str]) -> TestResult {
        if self.stub.lacks.contains(&Lack::Search) && !name.contains('.') {
            return Ok(());
        }
        let (found, output) = self.ask(name)?;
        let expected: BTreeSet<IpAddr> = addresses.iter().map(|address| ip(address)).collect();
        assert_eq!(found, expected, "{}: {name}: {output:?}", self.stub.name);
        self.reaches(&found);
        Ok(())
    }

    fn finds_many(&self) -> TestResult {
        let (found, output) = self.ask("many.example.test")?;
        let all: BTreeSet<IpAddr> = many().iter().map(|address| ip(address)).collect();
        if self.stub.lacks.contains(&Lack::Tcp) {
            let some = found.len() >= 20 && found.is_subset(&all);
            assert!(some, "{}: {output:?}", self.stub.name);
        } else {
            assert_eq!(found, all, "{}: {output:?}", self.stub.name);
        }
        let ends = [found.first(), found.last()].into_iter().flatten();
        self.reaches(&ends.copied().collect());
        Ok(())
    }

    fn finds_nothing(&self, name: &str) -> TestResult {
        let (found, output) = self.ask(name)?;
        assert!(
            found.is_empty() && !output.timed_out,
            "{}: {name}: {output:?}",
            self.stub.name
        );
        Ok(())
    }

    fn reaches(&self, addresses: &BTreeSet<IpAddr>) {
        for address in addresses {
            self.deployment
                .assert_reaches(self.stub.name, &address.to_string());
        }
    }

    fn ask(&self, name: &str) -> Result<(BTreeSet<IpAddr>, Output), Box<dyn std::error::Error>> {
        let argv = self.programs.argv(self.stub.program, name);
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let output = self.deployment.pod(self.stub.name).run(&argv)?;
        let words = output.stdout.lines().filter_map(|line| line.split(' ').next());
        let found = words.filter_map(|word| word.parse().ok()).collect();
        Ok((found, output))
    }
}

/// musl sends both of its questions again and again from one socket; glibc closes it, and asks from another port.
pub(super) fn a_stub_that_asks_again_and_again_costs_one_question_upstream(world: &mut World) -> TestResult {
    const NAME: &str = "slow.example.test";
    let programs = Programs::build(world.files())?;
    let deployment = Setup::of(only_names(&["*.example.test"]))
        .dnsd(&["--try-timeout", "9s", "--total-timeout", "10s"])
        .deploy(world)?;
    let records = || Records::addresses(["203.0.113.7", "2001:db8::7"]).held();
    let questions = || deployment.dnsd_counted("egret_dnsd_queries_total", &[]);
    for (program, times, options) in [
        (Program::Musl, 4.0, "timeout:5 attempts:10"),
        (Program::Getent, 3.0, "timeout:1 attempts:5"),
    ] {
        let name = format!("{}.{NAME}", programs.name(program));
        deployment.upstream().set(&name, records());
        let pod = deployment.pod("client");
        pod.use_resolv_conf(&format!("nameserver {}\noptions {options}\n", node::DNS))?;
        let before = questions();
        let stub = DeployedStub {
            deployment: &deployment,
            programs: &programs,
            stub: &stub("client", "", program),
        };
        std::thread::scope(|scope| {
            let finding = scope.spawn(|| stub.ask(&name).map_err(|error| error.to_string()));
            super::deployment::within(2 * PATIENCE, "it has asked again", || {
                questions() - before >= 2.0 * times
            });
            deployment.upstream().release(&name);
            let (found, output) = finding.join().expect("it was asked")?;
            assert_eq!(found.len(), 2, "{program:?}: {output:?}");
            stub.reaches(&found);
            // dnsd itself asks a slow upstream once more.
            for kind in [RecordType::A, RecordType::AAAA] {
                let asked = deployment.upstream().asked_for(&name, kind);
                assert!(
                    (1..=2).contains(&asked),
                    "{program:?}: {kind} was asked {asked} times"
                );
            }
            Ok::<_, String>(())
        })?;
    }
    answers_each_datagram_once(&deployment)
}

/// The same octets from one port, time and again: as many answers, and one question upstream.
fn answers_each_datagram_once(deployment: &Deployment<'_>) -> TestResult {
    const NAME: &str = "same.example.test";
    const TIMES: usize = 5;
    deployment
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.9"]).held());
    let pod = deployment.pod("client");
    let socket = pod.udp_socket_at(SocketAddr::new(pod.address(), 0))?;
    let question = Lookup::of(NAME, RecordType::A).with_id(7).to_vec();
    let before = deployment.dnsd_counted("egret_dnsd_queries_total", &[]);
    for _ in 0..TIMES {
        socket.send_to(&question, (node::DNS, 53))?;
    }
    eventually("dnsd has all of them", || {
        deployment.dnsd_counted("egret_dnsd_queries_total", &[]) - before >= TIMES as f64
    });
    deployment.upstream().release(NAME);
    let mut octets = [0; 1500];
    socket.set_read_timeout(Some(PATIENCE))?;
    for answer in 0..TIMES {
        let received = socket.recv(&mut octets);
        assert!(
            received.is_ok_and(|length| length > 28 && octets[..2] == [0, 7]),
            "answer {answer}"
        );
    }
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    assert!(socket.recv(&mut octets).is_err(), "more answers than questions");
    let asked = deployment.upstream().asked(NAME);
    assert!((1..=2).contains(&asked), "asked {asked} times");
    Ok(())
}

/// The small programs, built for this world.
struct Programs {
    folder: PathBuf,
    has_go: bool,
}

impl Programs {
    fn build(folder: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        // Not where files of pods of the same names are.
        let folder = folder.join("stubs");
        std::fs::create_dir_all(&folder)?;
        let to = |name: &str| folder.join(name).display().to_string();
        let source = |name: &str| format!("{}/stubs/{name}", env!("CARGO_MANIFEST_DIR"));
        build(&["musl-gcc", "-static", "-o", &to("musl"), &source("getaddrinfo.c")])?;
        build(&["cc", "-o", &to("cares"), &source("cares.c"), "-lcares"])?;
        let has_go = match build(&["go", "build", "-o", &to("go"), &source("go/main.go")]) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                eprintln!("*** NOT TESTED: Go's resolver, there is no `go` here ***");
                false
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { folder, has_go })
    }

    fn have(&self, program: Program) -> bool {
        program != Program::Go || self.has_go
    }

    fn name(&self, program: Program) -> &'static str {
        match program {
            Program::Getent => "getent",
            Program::Musl => "musl",
            Program::CAres | Program::CAresWithEdns => "cares",
            Program::Go => "go",
            Program::Dig(_) => "dig",
            Program::Kdig(_) => "kdig",
        }
    }

    fn argv(&self, program: Program, name: &str) -> Vec<String> {
        let built = self.folder.join(self.name(program)).display().to_string();
        let both = [name, "A", name, "AAAA"];
        let words = |words: &[&str], rest: &[&str]| {
            let all = words.iter().chain(rest);
            all.map(|word| (*word).to_owned()).collect::<Vec<_>>()
        };
        match program {
            Program::Getent => words(&["getent", "--no-addrconfig", "ahosts"], &[name]),
            Program::Musl | Program::CAres | Program::Go => words(&[&built], &[name]),
            Program::CAresWithEdns => words(&[&built], &[name, "edns"]),
            Program::Dig(options) => {
                [words(&["dig", "+search", "+short"], options), words(&both, &[])].concat()
            }
            Program::Kdig(options) => [words(&["kdig", "+short"], options), words(&both, &[])].concat(),
        }
    }
}

/// Without cgo, so that Go resolves names itself; its cache stays for the next time.
fn build(argv: &[&str]) -> io::Result<()> {
    let output = Command::new(argv[0])
        .args(&argv[1..])
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{}: {said}", argv.join(" "))))
}
