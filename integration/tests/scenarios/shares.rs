//! Many pods at one dnsd: what they ask alike costs once, and what one of them does to it costs the others nothing.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use egret_integration::{Lookup, PodSpec, RecordType, Records, ResponseCode, World, node};

use super::deployment::{
    Deployment, PATIENCE, REPAIRING_NOTHING, Setup, TestResult, eventually, only_names, without_source_check,
};

const SUFFIXES: [&str; 4] = [
    ".default.svc.cluster.test",
    ".svc.cluster.test",
    ".cluster.test",
    "",
];

/// With `ndots:5` a stub asks five times for a name outside, each time for A and AAAA: what does not exist is asked of the
/// upstream once, whoever asks and for whatever.
pub(super) fn what_search_lists_make_of_a_name_is_asked_once_for_all_pods_and_types(
    world: &mut World,
) -> TestResult {
    const PODS: usize = 6;
    const NAMES: usize = 4;
    let pods: Vec<String> = (0..PODS).map(|number| format!("pod-{number}")).collect();
    let deployment = Setup::of(only_names(&["*.example.test"]))
        .instead(pods.iter().map(|pod| PodSpec::new(pod)))
        .dnsd(&["--cluster-domain", "cluster.test", "--try-timeout", "4s"])
        .dnsd(&["--nxdomain-cut=false"])
        .deploy(world)?;
    for number in 0..NAMES {
        let records = Records::addresses([format!("203.0.113.{number}"), format!("2001:db8::{number}")]);
        deployment
            .upstream()
            .set(&format!("n{number}.example.test"), records);
    }
    let names =
        (0..NAMES).flat_map(|number| SUFFIXES.map(|suffix| format!("n{number}.example.test{suffix}")));
    let (mut asked, mut needed) = (0_usize, 0_usize);
    for name in names {
        ask_from_all(&deployment, &pods, &name);
        asked += deployment.upstream().asked(&name);
        needed += if name.ends_with("example.test") { 2 } else { 1 };
    }
    // An upstream that has no turn for long is asked once more.
    let again = deployment.dnsd_counted("egret_dnsd_upstream_retries_total", &[]);
    assert!(
        asked as f64 <= needed as f64 + again,
        "{asked} for {needed}, {again} again"
    );
    for pod in &pods {
        let records = deployment.kernel_records(pod);
        assert_eq!(records.len(), 2 * NAMES, "{pod} has its own: {records:?}");
    }
    Ok(())
}

/// As soon as the upstream denied what all names of a search list end in, no other name is asked of it, whoever asks and for
/// whatever; what exists beside and below goes on being found, and opens.
pub(super) fn what_is_below_a_denied_name_is_asked_of_nobody(world: &mut World) -> TestResult {
    const SERVICE: &str = "web.default.svc.cluster.test";
    let deployment = Setup::of(only_names(&["*.example.test", "*.svc.cluster.test"]))
        .and_pod("other")
        .dnsd(&["--cluster-domain", "cluster.test"])
        .deploy(world)?;
    let upstream = deployment.upstream();
    for base in ["cluster.test", "svc.cluster.test", "default.svc.cluster.test"] {
        upstream.set(base, Records::no_data());
    }
    let pod = format!("pod-0.{SERVICE}");
    for (name, address) in [
        (SERVICE, "203.0.113.1"),
        (&pod, "203.0.113.2"),
        ("n.example.test", "203.0.113.3"),
    ] {
        upstream.set(name, Records::addresses([address]));
    }
    let search = |pod: &str, first: &str| {
        let names = SUFFIXES.map(|suffix| format!("{first}.example.test{suffix}"));
        for (name, kind) in names
            .iter()
            .flat_map(|name| [(name, RecordType::A), (name, RecordType::AAAA)])
        {
            let reply = deployment
                .pod(pod)
                .look_up(&Lookup::of(name, kind).patience(PATIENCE));
            assert!(reply.is_ok(), "{pod}: {name}: {reply:?}");
        }
    };
    let denied = |labels: &[_]| deployment.dnsd_counted("egret_dnsd_nxdomain_cut_inquiries_total", labels);
    let mut number = 0;
    eventually("what the three endings stand above is known not to exist", || {
        number += 1;
        search("client", &format!("learn-{number}"));
        denied(&[("outcome", "denied")]) >= 3.0
    });
    upstream.clear_log();
    for first in ["a", "b", "n"] {
        search("other", first);
        search("client", first);
    }
    let asked = upstream.log().into_iter().map(|asked| asked.name.to_lowercase());
    let denied: Vec<String> = asked.filter(|name| name.contains(".cluster.")).collect();
    assert!(denied.is_empty(), "{denied:?}");
    for (name, address) in [(SERVICE, "203.0.113.1"), (&pod, "203.0.113.2")] {
        let reply = deployment
            .pod("client")
            .look_up(&Lookup::of(name, RecordType::A).patience(PATIENCE));
        let code = reply.map(|reply| reply.message.response_code);
        assert!(matches!(code, Ok(ResponseCode::NoError)), "{name}: {code:?}");
        deployment.assert_reaches("client", address);
    }
    deployment.assert_reaches("client", "203.0.113.3");
    deployment.assert_refused("other", "203.0.113.2");
    Ok(())
}

/// All pods ask for both kinds at once, each from one socket.
fn ask_from_all(deployment: &Deployment<'_>, pods: &[String], name: &str) {
    let sockets: Vec<UdpSocket> = pods
        .iter()
        .map(|pod| {
            let pod = deployment.pod(pod);
            pod.udp_socket_at(SocketAddr::new(pod.address(), 0))
                .expect("a socket")
        })
        .collect();
    for socket in &sockets {
        for (kind, id) in [(RecordType::A, 1), (RecordType::AAAA, 2)] {
            let question = Lookup::of(name, kind).with_id(id).to_vec();
            socket.send_to(&question, (node::DNS, 53)).expect("it is sent");
        }
    }
    for (pod, socket) in pods.iter().zip(&sockets) {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut ids = [(); 2].map(|()| {
            let mut octets = [0; 512];
            let received = socket.recv(&mut octets);
            assert!(received.is_ok(), "{pod}: {name}: {received:?}");
            octets[1]
        });
        ids.sort_unstable();
        assert_eq!(ids, [1, 2], "{pod}: {name}");
    }
}

/// From many ports at once: questions that nobody answers, endless names under an allowed wildcard, connections that
/// are kept open, and some whose answers are never read.
pub(super) fn a_pod_that_floods_dnsd_takes_nothing_from_the_others(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["*.example.test"]))
        .and_pod("flood")
        .dnsd(&[
            "--queries-per-second-per-client",
            "200",
            "--queries-per-second-total",
            "300",
        ])
        .dnsd(&["--waiting-per-client", "20", "--waiting-total", "30"])
        .dnsd(&["--tcp-connections-per-client", "8", "--tcp-connections", "40"])
        .dnsd(&["--records-per-client", "500", "--cache-size", "1MiB"])
        .deploy(world)?;
    deployment
        .upstream()
        .set("*.silent.example.test", Records::silence());
    deployment
        .upstream()
        .set("*.wild.example.test", Records::addresses(["203.0.113.66"]));
    let large = (1..=250).map(|last| format!("198.51.100.{last}"));
    deployment
        .upstream()
        .set("large.example.test", Records::addresses(large));
    for number in 0..60 {
        let name = format!("n{number}.good.example.test");
        deployment
            .upstream()
            .set(&name, Records::addresses(["203.0.113.7"]));
    }
    let over = AtomicBool::new(false);
    let told: TestResult = std::thread::scope(|scope| {
        let _end = End(&over);
        let flood = deployment.pod("flood");
        scope.spawn(|| flood_with_datagrams(flood, &over));
        let mut open = kept_open(flood, 12);
        open.iter_mut().for_each(ask_and_never_read);
        eventually("the flood has come up to its limits", || {
            let counted = |metric, labels: &[_]| deployment.dnsd_counted(metric, labels);
            counted("egret_dnsd_over_rate_total", &[("limit", "client")]) > 0.0
                && counted("egret_dnsd_upstream_errors_total", &[("reason", "over_limit")]) > 0.0
                && counted("egret_dnsd_tcp_refused_total", &[]) > 0.0
        });
        for number in 0..60 {
            let name = format!("n{number}.good.example.test");
            let lookup = Lookup::of(&name, RecordType::A).patience(PATIENCE);
            let lookup = if number % 3 == 0 {
                lookup.over_tcp()
            } else {
                lookup
            };
            // A stub asks three times: what the flood has put into the socket's buffer is before its datagrams there.
            let mut tries = (0..3).map(|_| deployment.pod("client").look_up(&lookup));
            let reply = tries
                .find(Result::is_ok)
                .unwrap_or_else(|| deployment.pod("client").look_up(&lookup));
            let code = reply.map(|reply| reply.message.response_code);
            assert!(matches!(code, Ok(ResponseCode::NoError)), "{name}: {code:?}");
        }
        deployment.assert_reaches("client", "203.0.113.7");
        Ok(())
    });
    told?;
    assert!(deployment.dnsd_counted("egret_dnsd_ledger_entries", &[]) <= 1000.0);
    assert!(
        deployment.dnsd_counted("egret_dnsd_over_rate_total", &[("limit", "total")]) == 0.0,
        "what the flood asks too often is not taken from what all have"
    );
    Ok(())
}

/// One pod asks at both of its addresses, and in the names of another, of the node and of nobody, what takes as long as it
/// may: it uses up what there is for one client, and neither what the other has nor what is for all.
pub(super) fn a_pod_is_one_client_whatever_it_writes_as_its_source(world: &mut World) -> TestResult {
    const OWN: usize = 8;
    const TOTAL: usize = 12;
    let deployment = Setup::of(only_names(&["*.example.test"]))
        .and_pod("victim")
        .dnsd(&["--waiting-per-client", &OWN.to_string()])
        .dnsd(&["--waiting-total", &TOTAL.to_string()])
        .dnsd(&["--total-timeout", "60s", "--try-timeout", "20s"])
        .enforcer(&REPAIRING_NOTHING)
        .deploy(world)?;
    deployment
        .upstream()
        .set("*.silent.example.test", Records::silence());
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    without_source_check(&deployment)?;
    let client = deployment.pod("client");
    let nobody = (0..TOTAL).map(|number| IpAddr::from([198, 18, 0, u8::try_from(number).expect("few")]));
    let others = deployment.pod("victim").addresses().into_iter();
    let others = others.chain([node::DNS_V6.into()]);
    let in_others: Vec<IpAddr> = nobody.chain(others.flat_map(|address| [address; OWN])).collect();
    let own: Vec<IpAddr> = client
        .addresses()
        .into_iter()
        .flat_map(|address| [address; 2 * OWN])
        .collect();
    for (number, source) in own.iter().chain(&in_others).enumerate() {
        let name = format!("n{number}.silent.example.test");
        let server = if source.is_ipv4() {
            IpAddr::from(node::DNS)
        } else {
            node::DNS_V6.into()
        };
        let (source, server) = (SocketAddr::new(*source, 5353), SocketAddr::new(server, 53));
        let question = Lookup::of(&name, RecordType::A).to_vec();
        client.send_udp_as(source, server, &question)?;
    }
    let counted = |metric, labels: &[_]| deployment.dnsd_counted(metric, labels);
    eventually("dnsd has all of them", || {
        counted("egret_dnsd_queries_total", &[]) >= (own.len() + in_others.len()) as f64
    });
    for server in [IpAddr::from(node::DNS), node::DNS_V6.into()] {
        let lookup = Lookup::of("api.example.test", RecordType::A).at(server);
        let reply = deployment.pod("victim").look_up(&lookup.patience(PATIENCE));
        let code = reply.map(|reply| reply.message.response_code);
        assert!(matches!(code, Ok(ResponseCode::NoError)), "{server}: {code:?}");
    }
    deployment.assert_reaches("victim", "203.0.113.7");
    assert_eq!(
        counted("egret_dnsd_waiting_queries", &[]),
        OWN as f64,
        "there are places of one client for it"
    );
    Ok(())
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn flood_with_datagrams(pod: &egret_integration::Pod, over: &AtomicBool) {
    let sockets: Vec<UdpSocket> = (0..50)
        .filter_map(|_| pod.udp_socket_at(SocketAddr::new(pod.address(), 0)).ok())
        .collect();
    for number in 0_u64.. {
        for (which, socket) in sockets.iter().enumerate() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let zone = if which % 10 == 0 { "silent" } else { "wild" };
            let name = format!("r{number}-{which}.{zone}.example.test");
            // A full buffer is what a flood runs into.
            drop(socket.send_to(&Lookup::of(&name, RecordType::A).to_vec(), (node::DNS, 53)));
        }
        // Five times as many as it may: it is dnsd's limits that this is about, and not how fast this machine is.
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kept_open(pod: &egret_integration::Pod, count: usize) -> Vec<TcpStream> {
    let to = SocketAddr::new(node::DNS.into(), 53);
    let connections = (0..count).map(|_| pod.connect_tcp(to, PATIENCE));
    let open = connections.filter(egret_integration::Outcome::is_connected);
    open.map(|outcome| outcome.connection().stream().try_clone().expect("a stream"))
        .collect()
}

/// More questions than its buffers hold answers to.
fn ask_and_never_read(stream: &mut TcpStream) {
    let question = Lookup::of("large.example.test", RecordType::A).to_vec();
    let length = u16::try_from(question.len()).expect("it is short").to_be_bytes();
    let framed = [&length[..], &question].concat().repeat(200);
    stream
        .set_write_timeout(Some(Duration::from_millis(50)))
        .expect("a timeout");
    // It may have been refused, and dnsd may read no more.
    drop(stream.write_all(&framed));
}
