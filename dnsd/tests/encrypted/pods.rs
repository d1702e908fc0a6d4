//! Encrypted answers to a pod are recorded, and held until the kernel is ready. In network namespaces, as root.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use egret_integration::world::DNSD_ADMIN;
use egret_integration::{DaemonSpec, Records, World, node, upstream};

use crate::server::{Authority, NAME, eventually};

const ECHO: u16 = 7;
const QUICK: Duration = Duration::from_millis(300);

/// The schemes, the words for kdig, the names and their addresses.
const WAYS: [(&str, u16, &str, &str, &str); 3] = [
    ("tls", 853, "+tls", "over-tls.example.test", "203.0.113.7"),
    ("https", 443, "+https", "over-https.example.test", "203.0.113.8"),
    ("quic", 853, "+quic", "over-quic.example.test", "203.0.113.9"),
];

/// Pods may ask the node's DNS in any way, and reach these names.
const POLICY: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: names
spec:
  tier: Admin
  priority: 10
  subject:
    namespaces: {}
  egress:
  - name: dns
    action: Accept
    to:
    - networks: [169.254.20.10/32]
  - name: names
    action: Accept
    to:
    - domainNames: ["*.example.test"]
  - name: rest
    action: Deny
    to:
    - networks: [0.0.0.0/0, "::/0"]
"#;

fn corefile(authority: &Authority) -> String {
    let block = |(scheme, port, ..): (&str, u16, &str, &str, &str)| {
        format!(
            "{scheme}://.:{port} {{\n bind {}\n {}\n cache 60\n forward . {}:{}\n}}\n",
            node::DNS,
            authority.tls(),
            upstream::ADDRESS,
            upstream::PORT
        )
    };
    WAYS.map(block).concat()
}

#[test]
fn an_encrypted_answer_is_recorded_and_held() {
    let Some(world) = World::or_skip() else { return };
    let world = world.with_pod("client").unwrap().with_pod("other").unwrap();
    let authority = Authority::new("pods");
    let path = authority.folder.join("Corefile");
    std::fs::write(&path, corefile(&authority)).unwrap();
    for (_, _, _, name, address) in WAYS {
        world.upstream().set(name, Records::addresses([address]));
    }
    world.manifests().write("policy.yaml", POLICY).unwrap();
    let enforcer = world.start(world.enforcer("netfilter")).unwrap();
    let spec = DaemonSpec::dnsd(DNSD_ADMIN)
        .with(["--corefile".into(), path.display().to_string()])
        .with(["--link".into(), world.link().display().to_string()])
        .with(["--stall-deadline", "4s"]);
    let dnsd = world.start(spec).unwrap();
    let is_joined = || {
        let knows = |(_, page): (u16, String)| page.contains("have interest in names");
        dnsd.get("/readyz").is_ok_and(knows)
    };
    eventually(is_joined, || format!("they are not joined: {}", dnsd.log()));
    let ca = authority.file("ca.pem");
    let ask = |pod: &str, way: &str, port: u16, name: &str| {
        let server = format!("@{}", node::DNS);
        let line = format!(
            "kdig {server} -p {port} +tls-ca={ca} +tls-hostname={NAME} {way} +retry=0 +timeout=8 +short {name} A"
        );
        let words: Vec<&str> = line.split(' ').collect();
        let output = world.pod(pod).run(&words).unwrap();
        (output.stdout + &output.stderr).trim().to_owned()
    };
    let reaches = |pod: &str, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let outcome = world.pod(pod).connect_tcp(SocketAddr::new(address, ECHO), QUICK);
        outcome.is_connected()
    };
    for (scheme, port, way, name, address) in WAYS {
        assert!(!reaches("client", address), "{scheme}: nobody was told yet");
        // The slowest enforcer that there can be: nothing comes while it is stopped.
        enforcer.stop().unwrap();
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask("client", way, port, name));
            let is_asked = world.upstream().wait_until_asked(name, 1, Duration::from_secs(8));
            assert!(is_asked, "{scheme}: {}", asking.join().unwrap());
            std::thread::sleep(QUICK);
            assert!(!asking.is_finished(), "{scheme}: it is held");
            enforcer.cont().unwrap();
            assert_eq!(asking.join().unwrap(), address, "{scheme}: {}", dnsd.log());
        });
        assert!(reaches("client", address), "{scheme}");
        // From the cache, for another pod, which is told as well.
        assert!(!reaches("other", address), "{scheme}: it was not told");
        assert_eq!(ask("other", way, port, name), address, "{scheme}");
        assert!(reaches("other", address), "{scheme}");
        assert_eq!(world.upstream().asked(name), 1, "{scheme}");
    }
    let metrics = dnsd.metrics().unwrap();
    assert_eq!(metrics.sum("egret_dnsd_observations_total", &[]), 6.0);
    assert_eq!(metrics.sum("egret_dnsd_unattributed_total", &[]), 0.0);
}
