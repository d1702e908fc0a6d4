//! What an API server reaches through the pair, and without it not (KEP-1281, test plan).

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use egret_integration::extension::{self, HELLO};
use serde_json::{Value, json};

use super::api_server::{Cluster, ControlPlane, LOG, kubelet, selector};
use super::pair::{Front, Namespaces, Pair, Program};
use super::partition::{AGGREGATED, CONTROL_PLANE, NODE, Partition, WEBHOOK, address};
use super::process::{free_port, within};

const NO_WAY: &str = "network is unreachable";

/// A pair across the partition, with one agent or none. It ends before the partition does.
struct Site {
    pair: Pair,
    partition: Partition,
}

impl Site {
    fn new(front: Front, further: &[&str]) -> Self {
        let partition = Partition::new();
        let namespaces = Namespaces {
            server: Some(partition.control_plane.name().to_owned()),
            agents: Some(partition.nodes.name().to_owned()),
        };
        let agents = (CONTROL_PLANE, free_port());
        let pair = Pair::server_in(namespaces, Program::Ours, front, agents, further).unwrap();
        Self { pair, partition }
    }

    fn start_agent(&mut self) {
        let connected = self.pair.agents() + 1;
        self.pair.start_agent(Program::Ours, "").unwrap();
        self.pair.wait_for_agents(u32::try_from(connected).unwrap());
    }

    /// An API server of the control plane; none where it cannot be built.
    fn cluster(&self, selector: Option<String>) -> Option<Cluster> {
        let cluster = Cluster::start_of(ControlPlane {
            selector,
            namespace: Some(self.partition.control_plane.name().to_owned()),
            etcd: None,
        })?;
        cluster.wait_until_ready();
        Some(cluster)
    }

    /// A kubelet of the other side, and a pod there.
    fn create_pod(&self, cluster: &Cluster) {
        let folder = cluster.file("");
        let port = self.partition.nodes.within(|| kubelet(Path::new(&folder)));
        cluster.create_pod_at(NODE, port);
    }
}

fn create(cluster: &Cluster, path: &str, object: &Value) {
    let made = cluster.curl("POST", path, &object.to_string());
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["kind"], object["kind"], "{made}");
}

fn create_service(cluster: &Cluster, name: &str, cluster_ip: &str, port: u16) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": cluster_ip, "ports": [{"port": 443, "targetPort": port}]},
    });
    create(cluster, "/api/v1/namespaces/default/services", &service);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "endpoints": [{"addresses": [cluster_ip], "conditions": {"ready": true}}],
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
    });
    create(
        cluster,
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        &slice,
    );
}

/// What a user sees of `ConfigMap`s that are created.
fn create_config_map(cluster: &Cluster, name: &str) -> String {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    cluster.curl(
        "POST",
        "/api/v1/namespaces/default/configmaps",
        &object.to_string(),
    )
}

fn create_webhook(cluster: &Cluster) {
    let client = json!({
        "service": {"namespace": "default", "name": "hook", "path": "/"},
        "caBundle": cluster.authority(),
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let object: Value = serde_json::from_str(&cluster.webhook_of("w", &client)).unwrap();
    create(cluster, path, &object);
}

#[test]
fn where_there_is_no_way_to_the_nodes_all_that_needs_one_goes_by_the_pair() {
    for front in [Front::GrpcUds, Front::HttpConnectUds] {
        let mut site = Site::new(front, &[]);
        site.start_agent();
        // The port of a Service is that of its server: nobody translates addresses here.
        let keys = site.pair.file("");
        let keys = Path::new(&keys);
        let nodes = &site.partition.nodes;
        let things = nodes.within(|| extension::serve(keys, address(AGGREGATED, 443)).unwrap());
        let hook = nodes.within(|| extension::serve(keys, address(WEBHOOK, 443)).unwrap());
        for is_proxied in [false, true] {
            let Some(cluster) = site.cluster(is_proxied.then(|| selector(&site.pair, front))) else {
                return;
            };
            site.create_pod(&cluster);
            let log = cluster.log_of_pod();
            if !is_proxied {
                assert!(log.contains(NO_WAY), "{log}");
            } else {
                assert_eq!(log, LOG, "{front:?}");
            }
            let proxied = cluster.curl("GET", "/api/v1/nodes/n/proxy/containerLogs/default/p/c", "");
            if !is_proxied {
                assert!(proxied.contains(NO_WAY), "{proxied}");
            } else {
                assert_eq!(proxied, LOG, "{front:?}");
            }

            create_service(&cluster, "things", AGGREGATED, things);
            let api = json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": "v1.things.example.com"},
                "spec": {
                    "group": "things.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
                    "service": {"namespace": "default", "name": "things"}, "caBundle": cluster.authority(),
                },
            });
            create(&cluster, "/apis/apiregistration.k8s.io/v1/apiservices", &api);
            let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";
            let hello = || cluster.curl("GET", "/apis/things.example.com/v1/hello", "");
            if is_proxied {
                within("the aggregated API answers", || hello() == HELLO);
            } else {
                within("the aggregated API is not reached", || {
                    cluster.curl("GET", path, "").contains(NO_WAY)
                });
                assert_ne!(hello(), HELLO);
            }

            create_service(&cluster, "hook", WEBHOOK, hook);
            create_webhook(&cluster);
            let expected = if is_proxied { "the webhook says no" } else { NO_WAY };
            let mut number = 0;
            within(expected, || {
                number += 1;
                create_config_map(&cluster, &format!("c{number}")).contains(expected)
            });
        }
    }
}

/// The first connection of an API server that starts is that to etcd.
#[test]
fn etcd_may_be_where_the_agents_are() {
    let sockets = ["--frontend=selection=etcd,mode=grpc,uds=etcd.sock"];
    let mut site = Site::new(Front::GrpcUds, &sockets);
    site.start_agent();
    let own = selector(&site.pair, Front::GrpcUds);
    let etcd = format!(
        "{own}- name: etcd
  connection:
    proxyProtocol: GRPC
    transport: {{uds: {{udsName: {}}}}}
",
        site.pair.file("etcd.sock")
    );
    let start = |selector: String| {
        Cluster::start_of(ControlPlane {
            selector: Some(selector),
            namespace: Some(site.partition.control_plane.name().to_owned()),
            etcd: Some((site.partition.nodes.name().to_owned(), NODE.to_owned())),
        })
    };
    let Some(direct) = start(own) else {
        return;
    };
    // On a busy machine it takes long to start.
    let patience = Duration::from_secs(120);
    egret_integration::within(patience, "it does not reach etcd", || {
        direct.log().contains(NO_WAY)
    });
    drop(direct);
    let cluster = start(etcd).unwrap();
    cluster.wait_until_ready();
    site.create_pod(&cluster);
    assert_eq!(cluster.log_of_pod(), LOG);
}

/// A webhook is asked by 8 clients at a time while one agent of two is killed and another is stopped.
#[test]
fn webhooks_under_load_are_answered_when_agents_die() {
    const CLIENTS: usize = 8;
    let mut site = Site::new(Front::GrpcUds, &["--keepalive-time=1s"]);
    site.start_agent();
    let Some(cluster) = site.cluster(Some(selector(&site.pair, Front::GrpcUds))) else {
        return;
    };
    let folder = cluster.file("");
    let hook = site
        .partition
        .nodes
        .within(|| extension::serve(Path::new(&folder), address(WEBHOOK, 443)).unwrap());
    create_service(&cluster, "hook", WEBHOOK, hook);
    create_webhook(&cluster);
    within("the webhook is asked", || {
        create_config_map(&cluster, "first").contains("the webhook says no")
    });
    site.start_agent();
    let (answered, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let failed = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (cluster, answered, is_over) = (&cluster, &answered, &is_over);
                scope.spawn(move || {
                    let mut failed = Vec::new();
                    for number in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let said = create_config_map(cluster, &format!("c{client}-{number}"));
                        if said.contains("the webhook says no") {
                            answered.fetch_add(1, Ordering::Relaxed);
                        } else {
                            failed.push(said);
                        }
                    }
                    failed
                })
            })
            .collect();
        let go_on = |what: &str| {
            let before = answered.load(Ordering::Relaxed);
            within(what, || answered.load(Ordering::Relaxed) > before + 10 * CLIENTS);
        };
        go_on("webhooks are asked");
        site.pair.agent_at(0).kill();
        go_on("they are asked by the other agent");
        site.pair.wait_for_agents(1);
        is_over.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect::<Vec<_>>()
    });
    // What was on its way when the agent was killed is lost with it; what comes after is not.
    assert!(failed.len() <= CLIENTS, "{} fail: {failed:#?}", failed.len());
}

#[test]
fn a_server_that_is_killed_is_found_again() {
    let mut site = Site::new(Front::GrpcUds, &[]);
    site.start_agent();
    let Some(cluster) = site.cluster(Some(selector(&site.pair, Front::GrpcUds))) else {
        return;
    };
    site.create_pod(&cluster);
    assert_eq!(cluster.log_of_pod(), LOG);
    site.pair.server_process().kill();
    assert_ne!(cluster.log_of_pod(), LOG);
    site.pair.restart_server();
    within("logs are read again", || cluster.log_of_pod() == LOG);
}

/// Of packets of both directions one in ten is lost.
#[test]
fn octets_arrive_whole_where_packets_are_lost() {
    let mut site = Site::new(Front::HttpConnectUds, &[]);
    site.start_agent();
    for namespace in [&site.partition.control_plane, &site.partition.nodes] {
        namespace.run(
            "iptables",
            "-A INPUT -i way -m statistic --mode random --probability 0.1 -j DROP",
        );
    }
    let target = site.partition.nodes.within(super::targets::Target::echo);
    let (head, stream) = site.pair.connect(&format!("{NODE}:{}", target.port()));
    assert_eq!(head, "HTTP/1.1 200 Connection Established");
    let octets = super::pattern(1 << 20);
    assert!(super::echo(&mut stream.unwrap(), &octets) == octets);
}

/// No packet tells of it: neither end has closed.
#[test]
fn an_agent_of_which_nothing_arrives_is_noticed_and_comes_back() {
    let mut site = Site::new(
        Front::HttpConnectUds,
        &["--keepalive-time=1s", "--backend-dial-timeout=0"],
    );
    site.start_agent();
    let target = site.partition.nodes.within(super::targets::Target::echo);
    let address = format!("{NODE}:{}", target.port());
    assert_eq!(
        site.pair.connect(&address).0,
        "HTTP/1.1 200 Connection Established"
    );
    let way = "-i way -j DROP";
    site.partition
        .control_plane
        .run("iptables", &format!("-A INPUT {way}"));
    let (head, _) = site.pair.connect(&address);
    assert_eq!(head, "HTTP/1.1 502 agent connection closed while dialing");
    site.partition
        .control_plane
        .run("iptables", &format!("-D INPUT {way}"));
    thread::sleep(Duration::from_millis(100));
    site.pair.wait_for_agents(1);
    within("connections are made again", || {
        site.pair.connect(&address).0 == "HTTP/1.1 200 Connection Established"
    });
}

/// Behind one address, as a cloud's load balancer has it: which server an agent reaches is chance.
/// As above, the other way round. The agent's own question comes every 30 s, and has 20 s.
#[test]
fn a_server_of_which_nothing_arrives_is_noticed_within_half_a_minute() {
    let mut site = Site::new(Front::HttpConnectUds, &[]);
    site.start_agent();
    let target = site.partition.nodes.within(super::targets::Target::collect);
    let (_, stream) = site.pair.connect(&format!("{NODE}:{}", target.port()));
    let _open = stream.unwrap();
    let nodes = &site.partition.nodes;
    nodes.run("iptables", "-A INPUT -i way -j DROP");
    let begun = Instant::now();
    thread::sleep(Duration::from_secs(20));
    assert_eq!(target.collected(), b"", "the destination sees the end");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[test]
fn agents_find_every_server_behind_a_balancer() {
    for program in [Program::Ours, Program::Upstream] {
        let hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
        let port = free_port();
        let start = |host| {
            Pair::server_at(
                Program::Ours,
                Front::HttpConnectUds,
                host,
                port,
                &["--server-count=3"],
            )
        };
        let mut servers: Vec<Pair> = hosts.into_iter().filter_map(start).collect();
        let balancer = super::targets::balance(hosts.map(|host| address(host, port)).to_vec());
        let further = [
            "--proxy-server-host=127.0.0.1".to_owned(),
            format!("--proxy-server-port={balancer}"),
        ];
        let mut further: Vec<&str> = further.iter().map(String::as_str).collect();
        if program == Program::Ours {
            further.push("--allow-destinations=127.0.0.0/8");
        }
        if servers[0].start_agent_with(program, &further).is_none() {
            return;
        }
        let target = super::targets::Target::echo();
        for server in &servers {
            server.wait_for_agents(1);
            let (head, _) = server.connect(&target.address());
            assert_eq!(head, "HTTP/1.1 200 Connection Established", "{program:?}");
        }
        // One that is replaced is found again, and the others are not left.
        servers[1].server_process().kill();
        servers[1].restart_server();
        for server in &servers {
            server.wait_for_agents(1);
        }
    }
}
