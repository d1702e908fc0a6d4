//! A real API server whose connections to nodes go by our pair. A small TLS server stands in the place of a kubelet.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use egret_integration::Peer;
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::keys;
use super::pair::{Front, Pair, Program};
use super::policy::Policed;
use super::process::{Process, free_port, within};

const TOKEN: &str = "tests";
const LOG: &str = "a line of a container\n";

struct Cluster {
    _server: Process,
    _etcd: Process,
    port: u16,
    folder: TempDir,
}

#[test]
fn an_api_server_reads_logs_by_the_pair_in_each_of_its_modes() {
    for front in [Front::HttpConnectUds, Front::HttpConnectTls, Front::GrpcUds] {
        let mut pair = Pair::server(Program::Ours, front).unwrap();
        let Some(cluster) = Cluster::start(&selector(&pair, front)) else {
            return;
        };
        cluster.create_pod(kubelet(cluster.folder.path()));
        // What the server says reaches who asks the API server.
        let refused = cluster.log_of_pod();
        assert!(refused.contains("No agent available"), "{front:?}: {refused}");
        pair.start_agent(Program::Ours, "").unwrap();
        pair.wait_for_agents(1);
        for _ in 0..3 {
            assert_eq!(cluster.log_of_pod(), LOG, "{front:?}");
        }
        let dials = "konnectivity_network_proxy_server_dial_duration_seconds_count";
        assert!(
            pair.server_metric(dials) > Some(0.0),
            "{front:?}: it went by the pair"
        );
        within("nothing is left", || {
            pair.server_metric("konnectivity_network_proxy_server_pending_backend_dials") == Some(0.0)
        });
    }
}

#[test]
fn a_user_of_the_api_server_reads_which_policy_refuses() {
    for front in [Front::HttpConnectUds, Front::GrpcUds] {
        let spec = "{rules: [{name: no-kubelet, action: Deny, to: [{networks: [127.0.0.1/32]}]}]}";
        let mut policed = Policed::server(front, spec, &[]);
        let Some(cluster) = Cluster::start(&selector(&policed.pair, front)) else {
            return;
        };
        policed.pair.start_agent(Program::Ours, "").unwrap();
        policed.pair.wait_for_agents(1);
        cluster.create_pod(kubelet(cluster.folder.path()));
        let refused = cluster.log_of_pod();
        let expected = "egress denied by APIServerEgressPolicy/p rule 0 (no-kubelet): cluster -> 127.0.0.1:";
        // JSON escapes the arrow's head.
        let refused = refused.replace("\\u003e", ">");
        assert!(refused.contains(expected), "{front:?}: {refused}");
        assert_eq!(policed.records(1)[0]["result"], "denied", "{front:?}");
    }
}

fn selector(pair: &Pair, front: Front) -> String {
    let (protocol, transport) = match front {
        Front::GrpcUds | Front::HttpConnectUds => (
            if front == Front::GrpcUds {
                "GRPC"
            } else {
                "HTTPConnect"
            },
            format!("uds: {{udsName: {}}}", pair.socket().display()),
        ),
        Front::HttpConnectTls => (
            "HTTPConnect",
            format!(
                "tcp: {{url: \"{}\", tlsConfig: {{caBundle: {}, clientCert: {}, clientKey: {}}}}}",
                pair.proxy_url(),
                pair.file("ca.crt"),
                pair.file("client.crt"),
                pair.file("client.key")
            ),
        ),
    };
    format!(
        "apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: {protocol}
    transport: {{{transport}}}
"
    )
}

impl Cluster {
    fn start(selector: &str) -> Option<Self> {
        let binary = Peer::KUBE_APISERVER.build().unwrap()?;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        fs::write(file("egress.yaml"), selector).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(file("tokens.key"), key.serialize_pem()).unwrap();
        fs::write(file("tokens.pub"), key.public_key_pem()).unwrap();
        fs::write(file("tokens.csv"), format!("{TOKEN},admin,1,system:masters\n")).unwrap();
        keys::write(folder.path());
        let etcd_port = free_port();
        let (client, peer) = (
            format!("http://127.0.0.1:{etcd_port}"),
            format!("http://127.0.0.1:{}", free_port()),
        );
        let etcd = [
            format!("--data-dir={}", file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        let etcd = Process::start("etcd", folder.path(), Path::new("etcd"), &etcd);
        let port = free_port();
        let server = [
            format!("--etcd-servers={client}"),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", file("certificates")),
            format!("--service-account-key-file={}", file("tokens.pub")),
            format!("--service-account-signing-key-file={}", file("tokens.key")),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--egress-selector-config-file={}", file("egress.yaml")),
        ];
        let fixed = [
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
        ];
        let arguments: Vec<_> = server.into_iter().chain(fixed.map(str::to_owned)).collect();
        let server = Process::start("kube-apiserver", folder.path(), &binary, &arguments);
        let cluster = Self {
            _server: server,
            _etcd: etcd,
            port,
            folder,
        };
        cluster.wait_until_ready();
        Some(cluster)
    }

    /// On a machine that is busy with other tests it takes longer than other things do.
    fn wait_until_ready(&self) {
        for _ in 0..600 {
            if self.curl("GET", "/readyz", "") == "ok" {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        panic!("the API server is not ready");
    }

    fn create_pod(&self, kubelet: u16) {
        let node = format!(
            r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "n"}}, "status": {{
                "addresses": [{{"type": "InternalIP", "address": "127.0.0.1"}}],
                "daemonEndpoints": {{"kubeletEndpoint": {{"Port": {kubelet}}}}}}}}}"#
        );
        let made = self.curl("POST", "/api/v1/nodes", &node);
        assert!(
            made.contains(r#""kind": "Node""#) || made.contains(r#""kind":"Node""#),
            "{made}"
        );
        let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}"#;
        within("the namespace is there", || {
            let made = self.curl("POST", "/api/v1/namespaces/default/pods", pod);
            made.contains(r#""phase": "Pending""#) || made.contains(r#""phase":"Pending""#)
        });
    }

    fn log_of_pod(&self) -> String {
        self.curl("GET", "/api/v1/namespaces/default/pods/p/log", "")
    }

    fn curl(&self, method: &str, path: &str, body: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--max-time", "40", "-X", method])
            .args(["-H", &format!("Authorization: Bearer {TOKEN}")])
            .arg(format!("https://127.0.0.1:{}{path}", self.port));
        if !body.is_empty() {
            curl.args(["-H", "Content-Type: application/json", "-d", body]);
        }
        String::from_utf8_lossy(&curl.output().unwrap().stdout).into_owned()
    }
}

/// Answers every request with the log, by TLS, as a kubelet does `GET /containerLogs/…`; its port.
fn kubelet(folder: &Path) -> u16 {
    let chain = CertificateDer::pem_file_iter(folder.join("server.crt")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap_or(0);
                let path = String::from_utf8_lossy(&request[..length]).into_owned();
                let (status, page) = if path.starts_with("GET /containerLogs/default/p/c") {
                    ("200 OK", LOG)
                } else {
                    ("404 Not Found", "no such page\n")
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                    page.len()
                );
                drop(stream.write_all(answer.as_bytes()));
                stream.conn.send_close_notify();
                drop(stream.flush());
            });
        }
    });
    port
}
