//! kube-network-policies, the reference of SIG Network, in the same world: built from its own module, told the same objects by
//! an API server of ours that only lists, and asked for a verdict by the kernel for each first packet.
//!
//! It writes its own nftables rules. Where the kernel has no `queue` for nftables (`CONFIG_NFT_QUEUE`), the same rules are
//! written for it with iptables: see [`RULES`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use egret_integration::{Daemon, DaemonSpec, World, node};
use serde_json::{Value, json};

use crate::cluster::Size;
use crate::load;
use crate::testbed::Testbed;

const API: u16 = 6443;
const METRICS: u16 = 9080;
/// As `syncNFTablesRules` of its pkg/dataplane/controller.go has them for IPv4: in POSTROUTING, what it has accepted and has had
/// answers passes; the rest from and to the pods that policies select is asked about.
const RULES: [&str; 4] = [
    "-m connlabel --label 100 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    "-m set --match-set managed src -j NFQUEUE --queue-num 100",
    "-m set --match-set managed dst -j NFQUEUE --queue-num 100",
    "-m connlabel --label 100 --set",
];
const PATIENCE: Duration = Duration::from_secs(60);

/// A testbed that it enforces, and its process.
pub(crate) fn testbed(size: Size, binary: &Path) -> anyhow::Result<(Testbed, Daemon)> {
    let testbed = Testbed::new(size)?;
    serve_objects(&testbed.world, &testbed.objects)?;
    let kubeconfig = testbed.world.files().join("kubeconfig");
    fs::write(&kubeconfig, kubeconfig_text())?;
    let mut spec = DaemonSpec::stock("kube-network-policies", METRICS, "/metrics").with([
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={}", node::NAME),
        format!("--metrics-bind-address=127.0.0.1:{METRICS}"),
        "--disable-nri=true".to_owned(),
        "--fail-open=false".to_owned(),
    ]);
    binary.clone_into(&mut spec.binary);
    let daemon = testbed.world.start(spec)?;
    let start = Instant::now();
    let mut has_rules = false;
    loop {
        let log = daemon.log();
        if !has_rules && log.contains("syncing nftables rules") && log.contains("error=") {
            write_rules(&testbed)?;
            has_rules = true;
        }
        if testbed.is_enforced()? {
            return Ok((testbed, daemon));
        }
        ensure!(start.elapsed() < PATIENCE, "it does not enforce; it said:\n{log}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn write_rules(testbed: &Testbed) -> anyhow::Result<()> {
    println!(
        "this kernel has no queue for nftables: the rules of kube-network-policies are written with iptables"
    );
    let node = testbed.world.node();
    node.run_well(&["ipset", "create", "managed", "hash:ip"])?;
    for pod in testbed.world.pods() {
        node.run_well(&["ipset", "add", "managed", &pod.address().to_string()])?;
    }
    for rule in RULES {
        let head = ["iptables-nft", "-t", "mangle", "-A", "POSTROUTING"];
        let argv: Vec<&str> = head.into_iter().chain(rule.split(' ')).collect();
        node.run_well(&argv)?;
    }
    Ok(())
}

fn kubeconfig_text() -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": format!("http://127.0.0.1:{API}")}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "users": [{"name": "bench", "user": {}}],
    })
    .to_string()
}

/// Answers lists, and watches with nothing, until the process ends.
fn serve_objects(world: &World, objects: &[Value]) -> anyhow::Result<()> {
    let mut lists: BTreeMap<&'static str, Vec<&Value>> = BTreeMap::new();
    for object in objects {
        let path = match object["kind"].as_str() {
            Some("Namespace") => "/api/v1/namespaces",
            Some("Pod") => "/api/v1/pods",
            Some("NetworkPolicy") => "/apis/networking.k8s.io/v1/networkpolicies",
            _ => continue,
        };
        lists.entry(path).or_default().push(object);
    }
    let answers = lists.into_iter().map(|(path, items)| {
        let list = json!({
            "kind": format!("{}List", items[0]["kind"].as_str().unwrap_or_default()),
            "apiVersion": items[0]["apiVersion"], "metadata": {"resourceVersion": "1"}, "items": items,
        });
        (path, list.to_string())
    });
    let answers: Arc<BTreeMap<&'static str, String>> = Arc::new(answers.collect());
    let namespace = File::open(format!("/run/netns/{}", world.node().namespace()))?;
    let listener = load::within(&namespace, || TcpListener::bind((Ipv4Addr::LOCALHOST, API)))??;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answers = Arc::clone(&answers);
            // A client that goes away ends its thread.
            std::thread::spawn(move || answer(&stream, &answers).unwrap_or_default());
        }
    });
    Ok(())
}

/// Requests of one connection: GETs without bodies.
fn answer(mut stream: &TcpStream, answers: &BTreeMap<&str, String>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next() {
        let request = request?;
        for header in lines.by_ref() {
            if header?.is_empty() {
                break;
            }
        }
        let target = request.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (status, body) = match answers.get(path) {
            // A list that is streamed: it asks for a plain one then.
            Some(_) if query.contains("sendInitialEvents") => ("400 Bad Request", "{}"),
            Some(_) if query.contains("watch=") => {
                let head =
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes())?;
                // Nothing ever changes: until the other side ends it.
                return stream.read(&mut [0]).map(drop);
            }
            Some(list) => ("200 OK", list.as_str()),
            None => ("404 Not Found", "{}"),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
    Ok(())
}
