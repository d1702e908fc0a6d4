//! A new process that hangs, is late or dies, and an old process that receives SIGTERM during a takeover: pods are
//! answered, and interface and rules are removed by the last process. The test is the new process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use egret_dnsd::takeover::state::StateRecord;
use egret_dnsd::takeover::{
    InheritedSockets, OldProcess, SocketName, SocketPurpose, StateSource, StoppedOldProcess, TakeoverError,
    TakeoverSocket, end_stopped, take,
};
use egret_integration::{Daemon, Family, Lookup, RecordType, Records, World, node};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::mpsc::unbounded_channel;

const NAME: &str = "api.example.test";
/// How long pods may be without DNS.
const GAP: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);

/// How far the successor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is there, and says nothing.
    None,
    /// It was given the sockets.
    Hello,
    /// Its predecessor reads no more.
    Stop,
}

#[test]
fn pods_are_answered_at_whatever_step_a_new_process_hangs() {
    let Some(world) = world() else { return };
    let (mut dnsd, place) = start(&world, 0);
    for word in [Stage::None, Stage::Hello, Stage::Stop] {
        let successor = NewProcess::of(&dnsd, &place, word);
        assert_is_answered(&world, word);
        drop(successor);
        assert_is_answered(&world, word);
    }
    let late = NewProcess::of(&dnsd, &place, Stage::Stop);
    assert_is_answered(&world, Stage::Stop);
    late.serves(&place);
    eventually("who goes on takes over", || {
        dnsd.ended().is_some_and(|end| end.success())
    });
    assert!(is_set_up(&world));
    late.is_asked(&world);
}

/// Which of two is told first is chance: the order to stop comes between any two words.
#[test]
fn a_stop_signal_during_a_takeover_leaves_interface_and_rules() {
    let Some(world) = world() else { return };
    for (number, word) in [Stage::Hello, Stage::Stop].into_iter().enumerate() {
        let (mut dnsd, place) = start(&world, number);
        let mut successor = NewProcess::of(&dnsd, &place, word);
        dnsd.signal(Signal::SIGTERM).unwrap();
        if word == Stage::Hello {
            eventually("it is about to end", || {
                dnsd.log().contains("what is under way is answered")
            });
            successor.pause();
        }
        successor.serves(&place);
        eventually("it ends", || dnsd.ended().is_some_and(|end| end.success()));
        assert!(is_set_up(&world), "after {word:?}");
        successor.is_asked(&world);
    }
}

#[test]
fn interface_and_rules_are_removed_only_by_the_last_process() {
    let Some(world) = world() else { return };
    for (number, lives) in [true, false].into_iter().enumerate() {
        let (mut dnsd, place) = start(&world, number);
        let successor = NewProcess::of(&dnsd, &place, Stage::Stop);
        if lives {
            // It reads, and could not say so.
            offer(&place);
        }
        drop(successor);
        if !lives {
            assert_is_answered(&world, Stage::Stop);
        }
        assert!(dnsd.terminate().unwrap().success());
        assert_eq!(is_set_up(&world), lives);
        assert_eq!(place.exists(), lives, "the socket for new processes");
    }
}

/// It can hand nothing over, and would answer beside the new one when it goes on.
#[test]
fn a_new_process_takes_the_place_of_a_stopped_one() {
    let Some(world) = world() else { return };
    let (mut stopped, place) = start(&world, 0);
    stopped.stop().unwrap();
    let mut spec = stopped.spec().clone();
    spec.name = "dnsd-second".into();
    let mut second = world.start(spec).unwrap();
    assert_is_answered(&world, Stage::None);
    let end = stopped.ended().expect("it does not go on");
    assert_eq!(end.signal(), Some(Signal::SIGKILL as i32), "{}", second.log());
    assert!(
        second.log().contains("was stopped; it was killed"),
        "{}",
        second.log()
    );
    assert!(is_set_up(&world));

    // With the sockets, and before it said that it reads no more.
    let mut taken = NewProcess::of(&second, &place, Stage::Hello);
    second.stop().unwrap();
    let silent = taken.taken.take().unwrap().pause().unwrap_err();
    let TakeoverError::Silent(Some(pid)) = silent else {
        panic!("{silent}");
    };
    assert!(end_stopped(pid).unwrap());
    taken.is_asked(&world);
    assert!(second.ended().is_some());
    assert!(!end_stopped(Pid::this()).unwrap(), "who runs may be slow");
}

/// The old one holds the sockets until it has answered what it had read, and gives them to nobody before it reads again.
#[test]
fn a_dnsd_starts_right_after_the_one_that_took_over_was_killed() {
    let Some(world) = world() else { return };
    let place = world.files().join("handover.sock").display().to_string();
    // Each waits to be stopped, as in a pod, and reads again if nobody else does.
    let named = |name: &str| {
        let spec = world.dnsd().with(["--rules", "--handover", &place]);
        let mut spec = spec.with_variable("INVOCATION_ID", "unit");
        spec.name = name.into();
        spec
    };
    let old = world.start(named("dnsd-first")).unwrap();
    eventually("it has set up its rules", || is_set_up(&world));
    let slow = "slow.example.test";
    let answer = Records::addresses(["203.0.113.8"]).after(Duration::from_secs(2));
    world.upstream().set(slow, answer);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let lookup = Lookup::of(slow, RecordType::A).patience(PATIENCE);
            world.pod("client").look_up(&lookup)
        });
        assert!(world.upstream().wait_until_asked(slow, 1, PATIENCE));
        let mut killed = world.start(named("dnsd-second")).unwrap();
        eventually("it has taken over", || {
            old.log().contains("a new process answers")
        });
        killed.kill().unwrap();
        let third = world.start(named("dnsd-third")).unwrap();
        let waited = third.log().contains("holds an address");
        assert!(waited, "{}", third.log());
        assert_is_answered(&world, Stage::None);
        let reply = asked.join().unwrap();
        assert!(reply.is_ok(), "{:?}", reply.err());
    });
    assert!(is_set_up(&world));
}

/// As a node-local-dns does that is replaced by a dnsd without a handover, for as long as its pod ends.
#[test]
fn a_dnsd_waits_for_a_process_that_ends_and_holds_its_addresses() {
    let Some(world) = world() else { return };
    let spec = world.dnsd();
    let mut first = world.start(spec.clone()).unwrap();
    let mut other = spec;
    other.name = "dnsd-other".into();
    let mut second = world.launch(other).unwrap();
    eventually("it waits", || second.log().contains("holds an address"));
    assert_is_answered(&world, Stage::None);
    assert!(second.ended().is_none(), "{}", second.log());
    first.terminate().unwrap();
    second.wait_until_ready().unwrap();
    assert_is_answered(&world, Stage::None);
}

/// One that is told to stop removes its interface before its socket is gone.
#[test]
fn an_interface_that_goes_with_the_old_process_is_made_again() {
    let Some(world) = world() else { return };
    let place = world.files().join("ends.sock");
    let old = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    old.bind(&SockAddr::unix(&place).unwrap()).unwrap();
    old.listen(4).unwrap();
    let spec = world.dnsd().with(["--listen", "169.254.77.1:53"]);
    let spec = spec.with(["--interface", "egretdns", "--handover"]);
    let new = world.launch(spec.with([place.display().to_string()])).unwrap();
    let (asked, _address) = old.accept().unwrap();
    world
        .node()
        .run_well(&["ip", "link", "delete", "egretdns"])
        .unwrap();
    std::fs::remove_file(&place).unwrap();
    drop((asked, old));
    eventually("it answers there", || new.log().contains("\"ready\""));
}

/// A startup probe of a new pod, at whose address the old one answers until it is replaced.
#[test]
fn the_probe_tells_a_dnsd_of_this_container_from_another_one() {
    let Some(world) = world() else { return };
    let (mut dnsd, place) = start(&world, 0);
    let binary = egret_integration::daemon::binary("dnsd").unwrap();
    let probe = |wrapper: &[&str]| {
        let words = wrapper.iter().map(|word| OsStr::new(*word));
        let words = words.chain([binary.as_os_str(), "probe".as_ref(), "--handover".as_ref()]);
        let words = words.chain([place.as_os_str()]).collect::<Vec<_>>();
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    assert_eq!(probe(&[]), (Some(0), String::new()));
    let (code, said) = probe(&["unshare", "--pid", "--fork"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another PID namespace"), "{said}");
    assert!(!dnsd.log().contains("a takeover failed"), "{}", dnsd.log());
    assert!(dnsd.terminate().unwrap().success());
    let (code, said) = probe(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("No such file"), "{said}");
}

/// The pod and the upstream; nothing where there are no rights for it.
fn world() -> Option<World> {
    let world = World::or_skip()?.with_pod("client").unwrap();
    world
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    Some(world)
}

/// A dnsd that has set up its rules, and where its successors ask.
fn start(world: &World, number: usize) -> (Daemon, PathBuf) {
    let place = world.files().join(format!("handover-{number}.sock"));
    let handover = ["--handover".to_owned(), place.display().to_string()];
    let spec = world.dnsd().with(["--rules"]).with(handover);
    // Nobody starts it again.
    let dnsd = world.start(spec.with_variable("INVOCATION_ID", "")).unwrap();
    eventually("it has set up its rules", || is_set_up(world));
    (dnsd, place)
}

fn is_set_up(world: &World) -> bool {
    let lets_in = |family| {
        world
            .node()
            .iptables_save(family)
            .unwrap()
            .matches("allow DNS traffic")
            .count()
    };
    lets_in(Family::V4) + lets_in(Family::V6) == 8
}

#[track_caller]
fn assert_is_answered(world: &World, word: Stage) {
    let lookup = || Lookup::of(NAME, RecordType::A).patience(GAP);
    let over = |lookup: Lookup| [lookup.clone(), lookup.over_tcp()];
    for server in [IpAddr::from(node::DNS), node::DNS_V6.into()] {
        for way in over(lookup().at(server)) {
            let reply = world.pod("client").look_up(&way);
            assert!(reply.is_ok(), "{word:?}: {way:?}: {:?}", reply.err());
        }
    }
}

struct NewProcess {
    _connection: Option<Socket>,
    taken: Option<OldProcess>,
    granted: std::cell::Cell<Option<StoppedOldProcess>>,
    sockets: Vec<UdpSocket>,
}

impl NewProcess {
    fn of(dnsd: &Daemon, place: &Path, last: Stage) -> Self {
        let mut successor = Self {
            _connection: None,
            taken: None,
            granted: std::cell::Cell::new(None),
            sockets: Vec::new(),
        };
        if last == Stage::None {
            let connection = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            connection.connect(&SockAddr::unix(place).unwrap()).unwrap();
            successor._connection = Some(connection);
            return successor;
        }
        let (taken, mut inheritance) = take_beside(dnsd, place);
        let at_port_53 = |name: &&SocketName| name.purpose == SocketPurpose::Udp && name.address.port() == 53;
        let names: Vec<SocketName> = inheritance.left().filter(at_port_53).copied().collect();
        let sockets = names
            .into_iter()
            .map(|name| inheritance.socket(name).unwrap().into());
        successor.sockets = sockets.collect();
        successor.taken = Some(taken);
        if last == Stage::Stop {
            successor.pause();
        }
        successor
    }

    fn pause(&mut self) {
        let granted = self.taken.take().unwrap().pause().unwrap();
        self.granted.set(Some(granted));
    }

    /// As a dnsd does: its place is there before it says so.
    fn serves(&self, place: &Path) {
        offer(place);
        self.granted.take().unwrap().serving();
    }

    /// What a pod asks from now on comes to its sockets.
    fn is_asked(&self, world: &World) {
        let client = world
            .pod("client")
            .udp_socket_at("0.0.0.0:0".parse().unwrap())
            .unwrap();
        let question = Lookup::of(NAME, RecordType::A).with_id(77).to_vec();
        client.send_to(&question, (node::DNS, 53)).unwrap();
        eventually("the question has come", || {
            let mut octets = [0; 1500];
            let mut heard = self
                .sockets
                .iter()
                .filter_map(|socket| socket.recv(&mut octets).ok());
            heard.any(|length| length == question.len())
        });
    }
}

/// In the network of this dnsd: who is elsewhere has no use for its sockets.
fn take_beside(dnsd: &Daemon, place: &Path) -> (OldProcess, InheritedSockets) {
    let network = File::open(format!("/proc/{}/ns/net", dnsd.pid())).unwrap();
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            setns(network, CloneFlags::CLONE_NEWNET).unwrap();
            take(place, PATIENCE).unwrap().unwrap()
        });
        taking.join().unwrap()
    })
}

/// Somebody is where successors ask, until the test ends.
fn offer(place: &Path) {
    let (sender, events) = unbounded_channel();
    TakeoverSocket::at(place)
        .unwrap()
        .serve(sender, Arc::new(NoState))
        .unwrap();
    std::mem::forget(events);
}

/// Who knows nothing.
struct NoState;

impl StateSource for NoState {
    fn export(&self, emit: &mut dyn FnMut(&[StateRecord]) -> io::Result<()>) -> io::Result<()> {
        emit(&[StateRecord::End])
    }
}

#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("not so: {what}");
}
