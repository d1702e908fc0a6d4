//! Servers with Leases behind a balancer that chooses at random, with a real API server; each user has the rights of deploy/konnectivity.

use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::api_server::Cluster;
use super::echo;
use super::pair::{Front, Pair, Program};
use super::process::{free_port, within};
use super::targets::Target;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const KNOWN: &str = "konnectivity_network_proxy_agent_known_server_count";
/// No API server asks in these tests.
const NO_SELECTION: &str =
    "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: []\n";

struct Servers {
    program: Program,
    cluster: Cluster,
    balancer: Balancer,
    folder: TempDir,
    started: usize,
}

impl Servers {
    /// An API server without any; none where it cannot be built.
    fn new(program: Program) -> Option<Self> {
        let cluster = Cluster::start(NO_SELECTION)?;
        cluster.grant_rights();
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, user: &str| {
            fs::write(folder.path().join(name), cluster.kubeconfig_as(user)).unwrap();
        };
        write("server", "system:konnectivity-server");
        write("agent", "system:serviceaccount:kube-system:konnectivity-agent");
        Some(Self {
            program,
            cluster,
            balancer: Balancer::start(),
            folder,
            started: 0,
        })
    }

    fn kubeconfig(&self, name: &str) -> String {
        format!("--kubeconfig={}", self.folder.path().join(name).display())
    }

    /// Another one, behind the balancer; none where it cannot be built.
    fn start(&mut self) -> Option<Pair> {
        let further = [
            "--enable-lease-controller",
            &self.kubeconfig("server"),
            &format!("--server-id=s{}", self.started),
        ];
        self.started += 1;
        let front = Front::HttpConnectUds;
        let pair = Pair::server_at(self.program, front, "127.0.0.1", free_port(), &further)?;
        self.balancer.add(pair.agent_port());
        Some(pair)
    }

    /// An agent that reaches the servers by the balancer alone.
    fn start_agent(&self, program: Program, pair: &mut Pair) -> Option<()> {
        let own = pair.agent_port();
        pair.send_agents_to(self.balancer.port);
        let shown = [
            "--agent-cert=client.crt",
            "--agent-key=client.key",
            "--count-server-leases",
            &self.kubeconfig("agent"),
        ];
        let loopback = ["--allow-destinations=127.0.0.0/8"];
        let loopback = if program == Program::Ours {
            &loopback[..]
        } else {
            &[]
        };
        let started = pair.launch_agent(program, &[&shown, loopback].concat());
        pair.send_agents_to(own);
        started
    }

    fn leases(&self) -> Vec<Value> {
        let list = self.cluster.curl("GET", LEASES, "");
        let list: Value = serde_json::from_str(&list).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let is_ours = |lease: &&Value| lease["metadata"]["labels"]["k8s-app"] == "konnectivity-server";
        items.filter(is_ours).cloned().collect()
    }
}

/// Sends each connection to one of the ports, at random.
struct Balancer {
    port: u16,
    ports: Arc<Mutex<Vec<u16>>>,
}

impl Balancer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ports: Arc<Mutex<Vec<u16>>> = Arc::default();
        let chosen = Arc::clone(&ports);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let ports = chosen.lock().unwrap().clone();
                let port = ports[rand::random_range(0..ports.len())];
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server, client),
                ] {
                    std::thread::spawn(move || {
                        drop(io::copy(&mut from, &mut to));
                        drop(to.shutdown(Shutdown::Both));
                        drop(from.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { port, ports }
    }

    fn add(&self, port: u16) {
        self.ports.lock().unwrap().push(port);
    }

    fn remove(&self, port: u16) {
        self.ports.lock().unwrap().retain(|it| *it != port);
    }
}

#[test]
fn agents_connect_to_as_many_servers_as_have_leases() {
    for (server, agent) in [
        (Program::Ours, Program::Ours),
        (Program::Ours, Program::Upstream),
        (Program::Upstream, Program::Ours),
    ] {
        let Some(mut servers) = Servers::new(server) else {
            return;
        };
        let mut pairs = Vec::new();
        for _ in 0..3 {
            let Some(pair) = servers.start() else { return };
            pairs.push(pair);
        }
        within("each server has a lease", || servers.leases().len() == 3);
        if servers.start_agent(agent, &mut pairs[0]).is_none() {
            return;
        }
        for pair in &pairs {
            pair.wait_for_agents(1);
        }
        assert_eq!(pairs[0].agent_metric(KNOWN), Some(3.0), "{server:?} {agent:?}");
        let target = Target::echo();
        let (_, stream) = pairs[0].connect(&target.address());
        let mut stream = stream.unwrap();
        // More servers.
        for _ in 0..2 {
            pairs.push(servers.start().unwrap());
        }
        for pair in &pairs {
            pair.wait_for_agents(1);
        }
        // Fewer: who is told to stop takes its lease back.
        for pair in pairs.drain(2..) {
            servers.balancer.remove(pair.agent_port());
            pair.server_process().signal("TERM");
            let code = pair.server_process().exit(Duration::from_secs(20));
            assert_eq!(code, Some(0), "{server:?}");
        }
        within("their leases are gone", || servers.leases().len() == 2);
        within("the agent has counted", || {
            pairs[0].agent_metric(KNOWN) == Some(2.0)
        });
        assert_eq!(echo(&mut stream, b"goes on"), b"goes on", "{server:?} {agent:?}");
    }
}

/// Its agent counts by its own clock, so that the lease counts no more when it did not change for 30 s; then the other server removes it.
#[test]
fn a_lease_that_nobody_renews_counts_no_more_and_is_removed() {
    let Some(mut servers) = Servers::new(Program::Ours) else {
        return;
    };
    let (mut first, second) = (servers.start().unwrap(), servers.start().unwrap());
    within("each server has a lease", || servers.leases().len() == 2);
    servers.start_agent(Program::Ours, &mut first).unwrap();
    for pair in [&first, &second] {
        pair.wait_for_agents(1);
    }
    // One of another clock, an hour ahead: it is nobody's, and looks alive to who compares times.
    let mut foreign = servers.leases()[0].clone();
    foreign["metadata"] = serde_json::json!({"name": "konnectivity-proxy-server-x",
        "labels": {"k8s-app": "konnectivity-server"}});
    foreign["spec"]["renewTime"] = "2999-01-01T00:00:00.000000Z".into();
    servers.cluster.curl("POST", LEASES, &foreign.to_string());
    within("it is counted", || first.agent_metric(KNOWN) == Some(3.0));
    let renewed = |servers: &Servers| {
        let leases = servers.leases();
        leases
            .into_iter()
            .find(|it| it["spec"]["holderIdentity"] == "s0")
            .unwrap()["spec"]["renewTime"]
            .clone()
    };
    let before = renewed(&servers);
    second.server_process().kill();
    servers.balancer.remove(second.agent_port());
    let long = Duration::from_secs(60);
    egret_integration::within(long, "they are not counted", || {
        first.agent_metric(KNOWN) == Some(1.0)
    });
    egret_integration::within(long, "they are removed", || servers.leases().len() == 1);
    assert_ne!(renewed(&servers), before, "the one that is left is renewed");
    let culled = "konnectivity_network_proxy_server_culled_leases_count";
    assert_eq!(first.server_metric(culled), Some(2.0));
    assert_eq!(first.ready_agents(), Some(1.0));
}

/// Upstream's server and agent say how many there are without Leases; with both the larger number counts.
#[test]
fn without_leases_the_servers_say_how_many_there_are() {
    let mut pair = Pair::server_at(
        Program::Ours,
        Front::HttpConnectUds,
        "127.0.0.1",
        free_port(),
        &["--server-count=3"],
    )
    .unwrap();
    pair.start_agent(Program::Ours, "").unwrap();
    pair.wait_for_agents(1);
    within("the server has said it", || pair.agent_metric(KNOWN) == Some(3.0));

    let Some(mut servers) = Servers::new(Program::Ours) else {
        return;
    };
    let mut leased = servers.start().unwrap();
    within("it has a lease", || servers.leases().len() == 1);
    servers.start_agent(Program::Ours, &mut leased).unwrap();
    leased.wait_for_agents(1);
    within("leases are counted", || {
        leased.agent().log().contains("counted the leases")
    });
    assert_eq!(leased.agent_metric(KNOWN), Some(1.0));
    // The API server goes: what is counted stays, and so do the streams.
    drop(servers.cluster);
    within("it is noticed", || {
        leased
            .agent()
            .log()
            .contains("the leases of servers cannot be counted")
    });
    assert_eq!(leased.agent_metric(KNOWN), Some(1.0));
    assert_eq!(leased.ready_agents(), Some(1.0));
}
