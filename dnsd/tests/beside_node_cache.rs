//! What only node-local-dns' program does, compared with that program: flags, template, ConfigMap, rules, setup
//! metrics, pidfile. A row has two calls; their results must differ, and must be those of node-cache (1.22, with
//! CoreDNS 1.10).
//!
//! Each run has a network namespace of its own, with the usual address and ports; that takes root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes, by their clock")]

#[path = "support/fresh.rs"]
mod fresh;

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use egret_integration::Peer;
use fresh::{enter_fresh_namespace, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const ADDRESS: &str = "169.254.20.10";
/// As neither is told another name.
const INTERFACE: &str = "nodelocaldns";
/// Both look every ten seconds whether a ConfigMap is another.
const WITHIN: Duration = Duration::from_secs(40);

/// One call: flags besides those of every call, and what is mounted.
struct Call {
    flags: &'static [&'static str],
    base: &'static str,
    kube_dns: &'static [(&'static str, &'static str)],
}

struct Row {
    about: &'static str,
    calls: [Call; 2],
    look: fn(&mut Process) -> String,
}

const BASE: &str = "cluster.local:53 {
    errors
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health 169.254.20.10:8080
    template IN A here.cluster.local {
            answer \"{{ .Name }} 60 IN A 192.0.2.1\"
    }
}
.:53 {
    cache 30
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__ {
            force_tcp
    }
}
";

/// The white space is not the one that node-cache looks for: it stays with TCP.
const INDENTED: &str = ".:53 {
  bind __PILLAR__LOCAL__DNS__
  forward . __PILLAR__UPSTREAM__SERVERS__ {
    force_tcp
  }
}
";

const USUAL: Call = Call {
    flags: &[],
    base: BASE,
    kube_dns: &[],
};

const UPSTREAMS: (&str, &str) = ("upstreamNameservers", "[\"192.0.2.9\", \"192.0.2.8:5353\"]");

/// What is no JSON for it node-cache only logs.
const NOWHERE: (&str, &str) = ("stubDomains", "{\"corp.example\": [\"nowhere\"]}");

const ROWS: &[Row] = &[
    Row {
        about: "upstreamNameservers",
        calls: [
            USUAL,
            Call {
                kube_dns: &[UPSTREAMS],
                ..USUAL
            },
        ],
        look: corefile,
    },
    Row {
        about: "upstreamNameservers in a template with other white space",
        calls: [
            Call {
                base: INDENTED,
                ..USUAL
            },
            Call {
                base: INDENTED,
                kube_dns: &[UPSTREAMS],
                ..USUAL
            },
        ],
        look: corefile,
    },
    Row {
        about: "stubDomains",
        calls: [
            USUAL,
            Call {
                kube_dns: &[(
                    "stubDomains",
                    "{\"corp.example\": [\"192.0.2.7\", \"192.0.2.6:5353\"]}",
                )],
                ..USUAL
            },
        ],
        look: corefile,
    },
    Row {
        about: "stubDomains that nobody can read",
        calls: [
            Call {
                kube_dns: &[("stubDomains", "{}")],
                ..USUAL
            },
            Call {
                kube_dns: &[NOWHERE],
                ..USUAL
            },
        ],
        look: |process| corefile(process) + &setup_errors(process),
    },
    Row {
        about: "a ConfigMap that changes",
        calls: [
            USUAL,
            Call {
                kube_dns: &[("other", "")],
                ..USUAL
            },
        ],
        look: |process| {
            if process.folder.join("kube-dns/other").exists() {
                change_upstreams(process);
            }
            corefile(process)
        },
    },
    Row {
        about: "localip",
        calls: [
            USUAL,
            Call {
                flags: &["-localip", "169.254.20.10,10.96.0.10"],
                ..USUAL
            },
        ],
        look: corefile,
    },
    Row {
        about: "upstreamsvc",
        calls: [
            USUAL,
            Call {
                flags: &["-upstreamsvc", "kube-dns-upstream"],
                ..USUAL
            },
        ],
        look: corefile,
    },
    Row {
        about: "dns.port",
        calls: [
            Call {
                kube_dns: &[("stubDomains", "{\"corp.example\": [\"192.0.2.7\"]}")],
                ..USUAL
            },
            Call {
                flags: &["-dns.port", "5353"],
                kube_dns: &[("stubDomains", "{\"corp.example\": [\"192.0.2.7\"]}")],
                ..USUAL
            },
        ],
        look: corefile,
    },
    Row {
        about: "setupiptables",
        calls: [
            USUAL,
            Call {
                flags: &["-setupiptables=false"],
                ..USUAL
            },
        ],
        look: |process| {
            if process.has_flag("-setupiptables=false") {
                // That is seen to after rules would be.
                change_upstreams(process);
            } else {
                process.wait("it has its rules", |_| rules().lines().count() == 12);
            }
            rules()
        },
    },
    Row {
        about: "health-port",
        calls: [
            USUAL,
            Call {
                flags: &["-health-port", "8081"],
                ..USUAL
            },
        ],
        look: |process| {
            process.wait("it has its rules", |_| rules().lines().count() == 12);
            rules()
        },
    },
    Row {
        about: "setupinterface",
        calls: [
            USUAL,
            Call {
                flags: &["-setupinterface=true", "-localip", "169.254.20.10,10.96.0.10"],
                ..USUAL
            },
        ],
        look: |process| {
            if process.has_flag("-setupinterface=true") {
                process.wait("the interface has its addresses", |_| {
                    addresses().lines().count() == 2
                });
            }
            // One that is told to end while it sets up may leave anything.
            process.wait("it has its rules", |_| rules().lines().count() >= 12);
            let before = addresses();
            process.end();
            let is_there = run("ip -o link").contains(INTERFACE);
            format!("{before}at the end: {is_there}")
        },
    },
    Row {
        about: "skipteardown",
        calls: [
            USUAL,
            Call {
                flags: &["-skipteardown"],
                ..USUAL
            },
        ],
        look: |process| {
            process.wait("it has its rules", |_| rules().lines().count() == 12);
            process.end();
            rules()
        },
    },
    Row {
        about: "metrics-listen-address",
        calls: [
            Call {
                kube_dns: &[NOWHERE],
                ..USUAL
            },
            Call {
                flags: &["-metrics-listen-address", "127.0.0.1:9399"],
                kube_dns: &[NOWHERE],
                ..USUAL
            },
        ],
        look: |process| {
            const PLACES: [&str; 2] = ["169.254.20.10:9353", "127.0.0.1:9399"];
            process.wait("its metrics are there", |_| {
                PLACES.iter().any(|at| page(at).is_some())
            });
            let errors = |at: &str| page(at).map(|page| nonzero(&page));
            PLACES.map(|at| format!("{at}: {:?}\n", errors(at))).concat()
        },
    },
    Row {
        about: "the metrics of the Corefile",
        calls: [
            Call {
                base: INDENTED,
                ..USUAL
            },
            USUAL,
        ],
        look: |process| {
            let seen = || page("127.0.0.1:9253").map_or_else(String::new, |page| series(&page));
            ask();
            if corefile(process).contains("prometheus") {
                // The answer is sent before it is counted.
                process.wait("the answer is counted", |_| seen().contains("responses_total"));
            }
            seen()
        },
    },
    Row {
        about: "pidfile",
        calls: [
            USUAL,
            Call {
                flags: &["-pidfile", "FOLDER/another"],
                ..USUAL
            },
        ],
        look: |process| {
            let its = format!("{}\n", process.child.id());
            let says = |process: &Process, file: &str| {
                fs::read_to_string(process.folder.join(file)).is_ok_and(|text| text == its)
            };
            process.wait("it wrote its number", |process| {
                says(process, "pid") || says(process, "another")
            });
            let before = ["pid", "another"].map(|file| says(process, file));
            // One that is told to end while it sets up may leave anything.
            process.wait("it has its rules", |_| rules().lines().count() == 12);
            process.end();
            let after = ["pid", "another"].map(|file| process.folder.join(file).exists());
            format!("{before:?}, and at the end {after:?}")
        },
    },
];

/// Each part of the chain counts something, and so does what fails.
const ALL_COUNTED: &str = "cluster.local:53 {
    errors
    reload
    bufsize 1232
    cache {
        prefetch 1 1m 90%
        serve_stale
    }
    bind 169.254.20.10
    dns64 {
        allow_ipv4
    }
    loadbalance
    rewrite name old.cluster.local a.cluster.local
    template IN A here.cluster.local {
        answer \"{{ .Name }} 60 IN A 192.0.2.1\"
    }
    template IN A none.cluster.local {
        answer \"{{.Name }} 60 IN  A {{  .Zone}}\"
    }
    template IN A odd.cluster.local {
        match ^(?P<word>[a-z]+)[.]odd
        answer \"{{ .Name }} 60 IN A 192.0.2.{{- (parseInt  .Group.word 10 8 ) -}}\"
    }
    hosts {
        192.0.2.9 inline.cluster.local
        fallthrough
    }
    forward dead.cluster.local 192.0.2.66
    forward . __PILLAR__CLUSTER__DNS__ {
        max_concurrent 1000
    }
    prometheus :9253
    health 169.254.20.10:8080
}
";

static EVERYTHING: Row = Row {
    about: "all that is counted",
    calls: [
        Call {
            base: ALL_COUNTED,
            ..USUAL
        },
        USUAL,
    ],
    look: |process| {
        answer_at("10.96.0.10:53");
        for name in ["a", "nx", "old", "here", "inline"] {
            for _time in 0..3 {
                query(&[name, "cluster", "local"], 1);
            }
        }
        query(&["a", "cluster", "local"], 28);
        query(&["a", "cluster", "local"], 99);
        for name in ["none", "odd", "dead"] {
            query(&["word", name, "cluster", "local"], 1);
        }
        let counted = || page("127.0.0.1:9253").map_or_else(String::new, |page| samples(&page));
        process.wait("what fails is counted", |_| {
            let seen = counted();
            COUNTED.iter().all(|family| seen.contains(family))
        });
        counted()
    },
};

/// What that comes to.
const COUNTED: &[&str] = &[
    "coredns_build_info{",
    "coredns_cache_entries{",
    "coredns_cache_hits_total{",
    "coredns_cache_misses_total{",
    "coredns_cache_requests_total{",
    "coredns_dns64_requests_translated_total{",
    "coredns_dns_do_requests_total{",
    "coredns_dns_request_duration_seconds_bucket{",
    "coredns_dns_request_size_bytes_bucket{",
    "coredns_dns_requests_total{",
    "coredns_dns_response_size_bytes_bucket{",
    "coredns_dns_responses_total{",
    "coredns_forward_conn_cache_hits_total{",
    "coredns_forward_conn_cache_misses_total{",
    "coredns_forward_healthcheck_broken_total",
    "coredns_forward_healthcheck_failures_total{",
    "coredns_forward_max_concurrent_rejects_total",
    "coredns_forward_request_duration_seconds_bucket{",
    "coredns_forward_requests_total{",
    "coredns_forward_responses_total{",
    "coredns_health_request_duration_seconds_bucket{",
    "coredns_health_request_failures_total",
    "coredns_hosts_entries",
    "coredns_hosts_reload_timestamp_seconds",
    "coredns_nodecache_setup_errors_total{",
    "coredns_panics_total",
    "coredns_plugin_enabled{",
    "coredns_reload_failed_total",
    "coredns_template_matches_total{",
    "coredns_template_rr_failures_total{",
    "coredns_template_template_failures_total{",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
    "process_virtual_memory_max_bytes",
];

#[test]
fn every_metric_of_node_cache_has_its_name_labels_and_buckets() {
    let node_cache = Peer::NODE_CACHE.build().unwrap_or_else(|error| panic!("{error}"));
    let counted = |program: &Path, is_ours: bool| {
        let [call, _] = &EVERYTHING.calls;
        fresh::in_a_thread(|| Process::start(program, is_ours, &EVERYTHING, call).look(&EVERYTHING))
    };
    let Some(ours) = counted(Path::new(env!("CARGO_BIN_EXE_dnsd")), true) else {
        return;
    };
    let Some(theirs) = node_cache.and_then(|program| counted(&program, false)) else {
        return;
    };
    let is_missing = |line: &&str| !ours.lines().any(|own| own == *line);
    let missing: Vec<&str> = theirs.lines().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_host_setup_is_that_of_node_cache() {
    let node_cache = Peer::NODE_CACHE.build().unwrap_or_else(|error| panic!("{error}"));
    let only = std::env::var("EGRET_ONLY").unwrap_or_default();
    let rows = ROWS.iter().filter(|row| row.about.contains(&only));
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let judging: Vec<_> = rows
            .map(|row| scope.spawn(|| judge(row, node_cache.as_deref())))
            .collect();
        let judged = judging.into_iter().map(|judged| judged.join().unwrap());
        judged.flatten().collect()
    });
    assert!(
        wrong.is_empty(),
        "{} rows:\n\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

fn judge(row: &Row, node_cache: Option<&Path>) -> Option<String> {
    let dnsd = Path::new(env!("CARGO_BIN_EXE_dnsd"));
    let seen = |program: &Path, is_ours: bool| {
        let [plain, with] = &row.calls;
        let one = |call| fresh::in_a_thread(|| Process::start(program, is_ours, row, call).look(row));
        Some([one(plain)?, one(with)?])
    };
    let ours = seen(dnsd, true)?;
    if ours[0] == ours[1] {
        return Some(format!("{}: both calls show\n{}", row.about, ours[0]));
    }
    let theirs = seen(node_cache?, false)?;
    (ours != theirs).then(|| {
        let [ours, theirs] = [ours, theirs].map(|seen| seen.join("\n-- and\n"));
        format!("{}:\n-- dnsd\n{ours}\n-- node-cache\n{theirs}", row.about)
    })
}

struct Process {
    folder: PathBuf,
    flags: Vec<String>,
    child: Child,
}

impl Process {
    /// In the namespace of this thread.
    fn start(program: &Path, is_ours: bool, row: &Row, call: &Call) -> Self {
        enter_fresh_namespace().unwrap();
        for address in [ADDRESS, "10.96.0.10"] {
            run(&format!("ip addr add {address}/32 dev lo"));
        }
        // Not every kernel has interfaces of type dummy; one that is there is taken as it is.
        run(&format!("ip link add {INTERFACE} type bridge"));
        let side = row
            .calls
            .iter()
            .position(|other| std::ptr::eq(other, call))
            .unwrap();
        let name = row.about.replace(' ', "-");
        let folder = std::env::temp_dir().join(format!(
            "egret-beside-{}-{name}-{side}-{is_ours}",
            std::process::id()
        ));
        fs::create_dir_all(folder.join("kube-dns")).unwrap();
        fs::create_dir_all(folder.join("base")).unwrap();
        fs::write(folder.join("base/Corefile.base"), call.base).unwrap();
        for (file, text) in call.kube_dns {
            fs::write(folder.join("kube-dns").join(file), text).unwrap();
        }
        let usual = "-localip 169.254.20.10 -conf FOLDER/Corefile -corefile FOLDER/Corefile -basecorefile FOLDER/base/Corefile.base \
                     -kubednscm FOLDER/kube-dns -setupinterface=false -pidfile FOLDER/pid";
        let own = ["-config", "FOLDER/own.yaml"];
        fs::write(folder.join("own.yaml"), "host: {fallback: none}\n").unwrap();
        let words = usual.split_whitespace().chain(call.flags.iter().copied());
        let words = words.chain(own.into_iter().filter(|_| is_ours));
        let flags: Vec<String> = words
            .map(|word| word.replace("FOLDER", folder.to_str().unwrap()))
            .collect();
        let log = File::create(folder.join("log")).unwrap();
        let child = Command::new(program)
            .args(is_ours.then_some("node-cache"))
            .args(&flags)
            .env("KUBE_DNS_SERVICE_HOST", "10.96.0.10")
            .env("KUBE_DNS_UPSTREAM_SERVICE_HOST", "10.96.7.7")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut process = Self { folder, flags, child };
        let dns = |port: u16| SocketAddr::new(ADDRESS.parse().unwrap(), port);
        process.wait("it answers", |_| TcpStream::connect(dns(53)).is_ok());
        process
    }

    /// What is seen, without the folder's name.
    fn look(mut self, row: &Row) -> String {
        let seen = (row.look)(&mut self);
        seen.replace(self.folder.to_str().unwrap(), "FOLDER")
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|word| word == flag)
    }

    fn wait(&mut self, what: &str, is_so: impl Fn(&mut Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            let ended = self.child.try_wait().unwrap();
            let log = || fs::read_to_string(self.folder.join("log")).unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < WITHIN,
                "not seen: {what}: {ended:?}: {}",
                log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Has it make another Corefile.
fn change_upstreams(process: &mut Process) {
    fs::write(process.folder.join("kube-dns").join(UPSTREAMS.0), UPSTREAMS.1).unwrap();
    process.wait("the Corefile is another", |process| {
        corefile(process).contains("192.0.2.9")
    });
}

fn corefile(process: &mut Process) -> String {
    fs::read_to_string(process.folder.join("Corefile")).unwrap()
}

/// What the interface has in IPv4.
fn addresses() -> String {
    let shown = run(&format!("ip -4 -o addr show dev {INTERFACE}"));
    let each = shown.lines().filter_map(|line| line.split_whitespace().nth(3));
    let mut each: Vec<&str> = each.collect();
    each.sort_unstable();
    each.into_iter().map(|address| format!("{address}\n")).collect()
}

/// Rules with their chains, in the order of their texts: where they stand is decision 12's.
fn rules() -> String {
    let saved = run("iptables-save -t raw") + &run("iptables-save -t filter");
    let mut rules: Vec<&str> = saved.lines().filter(|line| line.contains("NodeLocal")).collect();
    rules.sort_unstable();
    rules.join("\n")
}

/// Which errors of setting up were counted.
fn setup_errors(process: &mut Process) -> String {
    let errors = || page("169.254.20.10:9353").map(|page| nonzero(&page));
    process.wait("its metrics are there", |_| errors().is_some());
    errors().unwrap_or_default()
}

fn nonzero(page: &str) -> String {
    let samples = page
        .lines()
        .filter(|line| line.starts_with("coredns_nodecache_setup_errors_total{") && !line.ends_with(" 0"));
    let labels = samples.filter_map(|line| line.split_once(' ').map(|(series, _)| series.to_owned()));
    labels.collect::<Vec<_>>().join("\n")
}

/// The families of blocks with `prometheus`, with the names of their labels; dnsd has its own at that port in any case.
fn series(page: &str) -> String {
    const FAMILIES: [&str; 5] = [
        "coredns_dns_request_duration_seconds_count",
        "coredns_dns_request_size_bytes_count",
        "coredns_dns_requests_total",
        "coredns_dns_response_size_bytes_count",
        "coredns_dns_responses_total",
    ];
    let of_family = |family: &&str| {
        let mut samples = page.lines().filter_map(|line| line.strip_prefix(family));
        let labels = samples.find_map(|rest| match rest.strip_prefix('{') {
            Some(labels) => labels.split_once('}').map(|(labels, _)| labels),
            None => rest.starts_with(' ').then_some(""),
        })?;
        let mut names: Vec<&str> = labels
            .split("\",")
            .filter_map(|label| label.split_once('=').map(|(name, _)| name))
            .collect();
        names.sort_unstable();
        Some(format!("{family}{names:?}"))
    };
    let found: Vec<String> = FAMILIES.iter().filter_map(of_family).collect();
    found.join("\n")
}

/// Kinds of families and their series, but for what is Go's own, and the network's, which newer libraries count. Which part made
/// an answer behind a cache is a listed difference; hosts files are told apart since CoreDNS 1.11.
fn samples(page: &str) -> String {
    let is_meant = |line: &&str| {
        let name = line.trim_start_matches("# TYPE ");
        let is_of_network = name.starts_with("process_network_");
        (name.starts_with("coredns_") || name.starts_with("process_")) && !is_of_network
    };
    let mut lines: Vec<String> = page.lines().filter(is_meant).map(sample).collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Without its number, and the labels in order.
fn sample(line: &str) -> String {
    let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) else {
        return match line.strip_prefix('#') {
            Some(_) => line.to_owned(),
            None => line.split(' ').next().unwrap().to_owned(),
        };
    };
    let (labels, _number) = rest.rsplit_once("} ").unwrap();
    let is_alike = |label: &&str| {
        let (label, _) = label.split_once('=').unwrap();
        let differs = matches!(
            label,
            "plugin" | "hostsfile" | "goversion" | "revision" | "version"
        );
        !differs
    };
    let mut labels: Vec<&str> = labels
        .split_inclusive("\",")
        .map(|label| label.trim_end_matches(','))
        .filter(is_alike)
        .collect();
    labels.sort_unstable();
    let labels = labels.join(",");
    if labels.is_empty() && name == "coredns_hosts_entries" {
        return name.to_owned();
    }
    format!("{name}{{{labels}}}")
}

/// A question that a template answers, or nobody can.
fn ask() {
    query(&["here", "cluster", "local"], 1);
}

/// With DO.
fn query(labels: &[&str], kind: u8) {
    const OPT: &[u8] = &[0, 0, 41, 4, 208, 0, 0, 128, 0, 0, 0];
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(WITHIN)).unwrap();
    let mut query = b"\0\x01\x01\0\0\x01\0\0\0\0\0\x01".to_vec();
    for label in labels.iter().chain(&[""]) {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, kind, 0, 1]);
    let question = query.len();
    query.extend_from_slice(OPT);
    socket.connect((ADDRESS, 53)).unwrap();
    socket.send(&query).unwrap();
    // It may listen for connections before it does for datagrams.
    let length = loop {
        match socket.recv(&mut [0; 512]) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::thread::sleep(Duration::from_millis(20));
                // Another refusal may be told here.
                drop(socket.send(&query));
            }
            // A signal ends a wait that has an end (signal(7)).
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received.unwrap(),
        }
    };
    assert!(length >= question);
}

/// An upstream in the namespace of this thread: `nx` in any case is denied, other names have an IPv4 address and no more.
fn answer_at(address: &str) {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(WITHIN)).unwrap();
    std::thread::spawn(move || {
        let mut octets = [0; 512];
        while let Ok((_, from)) = socket.recv_from(&mut octets) {
            let name = octets[12..].iter().position(|octet| *octet == 0).unwrap();
            let end = 12 + name + 5;
            let (is_denied, is_v4) = (octets[13..15].eq_ignore_ascii_case(b"nx"), octets[end - 3] == 1);
            let count = u8::from(is_v4 && !is_denied);
            let mut answer = octets[..end].to_vec();
            answer[2..12].copy_from_slice(&[
                0x81,
                0x80 | if is_denied { 3 } else { 0 },
                0,
                1,
                0,
                count,
                0,
                0,
                0,
                0,
            ]);
            if count == 1 {
                answer.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x07");
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
}

fn page(at: &str) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: here\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}
