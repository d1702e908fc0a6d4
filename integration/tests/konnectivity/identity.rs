//! Who an agent is: by certificate or token, renewed while connections go on, and what it may stand for.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use super::api_server::{Cluster, LOG, kubelet, selector};
use super::pair::{Front, Pair, Program};
use super::process::{free_port, within};
use super::targets::Target;
use super::{echo, keys};

const CONNECTED: &str = "HTTP/1.1 200 Connection Established";
const LOOPBACK: &str = "--allow-destinations=127.0.0.0/8";

#[test]
fn certificates_of_all_sides_are_renewed_while_connections_go_on() {
    let mut pair = Pair::start(Program::Ours, Program::Ours, Front::HttpConnectUds).unwrap();
    let target = Target::echo();
    let (_, stream) = pair.connect(&target.address());
    let mut stream = stream.unwrap();
    assert_eq!(echo(&mut stream, b"before"), b"before");
    let old = tempfile::tempdir().unwrap();
    keys::write(old.path());
    keys::write_other(Path::new(&pair.file("")));
    within("the agent connects anew", || {
        pair.agent().log().contains("connected anew")
    });
    assert_eq!(echo(&mut stream, b"after"), b"after");
    assert_eq!(pair.connect(&target.address()).0, CONNECTED);
    drop(stream);
    // The authority of before is none any more.
    let file = |flag: &str, name: &str| format!("--{flag}={}", old.path().join(name).display());
    let shown = [file("agent-cert", "client.crt"), file("agent-key", "client.key")];
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    pair.launch_agent(Program::Ours, &shown).unwrap();
    within("it is refused", || {
        pair.agent().log().contains("no connection to a proxy server")
    });
    assert!(!pair.agent().log().contains("connected to a proxy server"));
}

#[test]
fn an_agent_stands_for_what_its_certificate_has_alone() {
    for binding in ["audit", "enforce"] {
        let further = [&*format!("--agent-identifier-binding={binding}")];
        let front = Front::HttpConnectUds;
        let mut pair = Pair::server_at(Program::Ours, front, "127.0.0.1", free_port(), &further).unwrap();
        pair.start_agent(Program::Ours, "ipv4=127.0.0.2&host=localhost&default-route=true")
            .unwrap();
        pair.wait_for_agents(1);
        for spoofed in ["ipv4=10.0.0.9", "ipv4=127.0.0.1&host=node-2", "ipv6=fd00::9"] {
            let before = pair.server_log();
            pair.start_agent(Program::Ours, spoofed).unwrap();
            let claim = spoofed.rsplit('=').next().unwrap();
            if binding == "enforce" {
                within("it is refused", || {
                    let log = pair.agent().log();
                    log.contains("the agent may not stand for") && log.contains(claim)
                });
            } else {
                within("it is connected", || {
                    pair.agent().log().contains("connected to a proxy server")
                });
                assert!(pair.server_log()[before.len()..].contains("stands for what it does not show to be"));
            }
        }
        let connected = if binding == "enforce" { 1 } else { 4 };
        pair.wait_for_agents(connected);
    }
}

/// How much longer than it says an API server takes a token, in seconds (`DefaultLeeway` of go-jose).
const LEEWAY: u64 = 60;

/// What is needed to write tokens as the API server does.
struct Issuer {
    key: KeyPair,
    pod: Value,
    node: Value,
}

impl Issuer {
    fn new(cluster: &Cluster) -> Self {
        let object = |path: &str| -> Value { serde_json::from_str(&cluster.curl("GET", path, "")).unwrap() };
        let key = fs::read_to_string(cluster.file("tokens.key")).unwrap();
        Self {
            key: KeyPair::from_pem(&key).unwrap(),
            pod: object("/api/v1/namespaces/default/pods/p"),
            node: object("/api/v1/nodes/n"),
        }
    }

    /// A token of a service account of `default`, bound to the pod, that the API server takes for so many seconds.
    fn token(&self, account: &Value, audience: &str, seconds: u64) -> String {
        let now = egret_shared::rt::clock::since_epoch().as_secs() - LEEWAY;
        let reference =
            |object: &Value| json!({"name": object["metadata"]["name"], "uid": object["metadata"]["uid"]});
        let name = account["metadata"]["name"].as_str().unwrap();
        let claims = json!({
            "iss": "https://kubernetes.default.svc", "aud": [audience], "iat": now, "nbf": now, "exp": now + seconds,
            "sub": format!("system:serviceaccount:default:{name}"),
            "kubernetes.io": {
                "namespace": "default", "serviceaccount": reference(account),
                "pod": reference(&self.pod), "node": reference(&self.node),
            },
        });
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(json!({"alg": "ES256", "typ": "JWT"})), part(claims));
        let signature = raw_signature(&self.key.sign(signed.as_bytes()).unwrap());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Of two integers in DER (RFC 3279) as two of 32 octets each (RFC 7518 §3.4).
fn raw_signature(der: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    let mut rest = &der[2..];
    for _ in 0..2 {
        let (number, behind) = rest[2..].split_at(rest[1].into());
        let digits = &number[number.len().saturating_sub(32)..];
        raw.extend(std::iter::repeat_n(0, 32 - digits.len()));
        raw.extend(digits);
        rest = behind;
    }
    raw
}

#[test]
fn an_agent_shows_a_token_that_the_api_server_takes_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let kubeconfig = format!("--kubeconfig={}", path("kubeconfig"));
    let further = [
        "--cluster-ca-cert=",
        "--agent-namespace=default",
        "--agent-service-account=agent",
        "--authentication-audience=proxy",
        "--agent-identifier-binding=enforce",
        &kubeconfig,
    ];
    let front = Front::HttpConnectUds;
    let mut pair = Pair::server_at(Program::Ours, front, "127.0.0.1", free_port(), &further).unwrap();
    let Some(cluster) = Cluster::start(&selector(&pair, front)) else {
        return;
    };
    cluster.create_pod(kubelet(Path::new(&cluster.file(""))));
    fs::write(path("kubeconfig"), cluster.kubeconfig()).unwrap();
    let account = |name: &str| -> Value {
        let object =
            format!(r#"{{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {{"name": "{name}"}}}}"#);
        let made = cluster.curl("POST", "/api/v1/namespaces/default/serviceaccounts", &object);
        serde_json::from_str(&made).unwrap()
    };
    let (agent, other) = (account("agent"), account("other"));
    let issuer = Issuer::new(&cluster);
    let start = |pair: &mut Pair, name: &str, token: &str, identifiers: &str| {
        fs::write(path(name), token).unwrap();
        let token = format!("--service-account-token-path={}", path(name));
        let identifiers = format!("--agent-identifiers={identifiers}");
        pair.launch_agent(Program::Ours, &[&token, &identifiers, LOOPBACK])
            .unwrap();
    };
    let is_refused = |pair: &Pair, text: &str| {
        within("it is refused", || pair.agent().log().contains(text));
    };
    start(&mut pair, "1", "no.token.this", "");
    is_refused(&pair, "the agent's token is not taken");
    start(&mut pair, "2", &issuer.token(&agent, "others", 600), "");
    is_refused(&pair, "the agent's token is not taken");
    start(&mut pair, "3", &issuer.token(&other, "proxy", 600), "");
    is_refused(&pair, "the agent's token is of ");
    start(
        &mut pair,
        "4",
        &issuer.token(&agent, "proxy", 600),
        "host=n&ipv4=10.0.0.9",
    );
    is_refused(&pair, "the agent may not stand for 10.0.0.9");
    assert_eq!(pair.readiness(), 503);
    // Networks, zone and default route are what the node's object says.
    let wide = "cidr=10.1.0.0/24&zone=a&default-route=true";
    start(&mut pair, "4a", &issuer.token(&agent, "proxy", 600), wide);
    is_refused(
        &pair,
        "may not stand for 10.1.0.0/24, the zone a, the default route",
    );
    // It would be taken as soon as the node is another one.
    pair.agent().kill();
    let mut node: Value = serde_json::from_str(&cluster.curl("GET", "/api/v1/nodes/n", "")).unwrap();
    node["metadata"]["labels"] = json!({
        "topology.kubernetes.io/zone": "a",
        "node-restriction.kubernetes.io/konnectivity-default-route": "true",
    });
    node["spec"] = json!({"podCIDR": "10.1.0.0/16", "podCIDRs": ["10.1.0.0/16"]});
    let put = cluster.curl("PUT", "/api/v1/nodes/n", &node.to_string());
    assert!(put.contains("10.1.0.0/16"), "{put}");
    start(&mut pair, "4b", &issuer.token(&agent, "proxy", 600), wide);
    pair.wait_for_agents(1);
    pair.agent().kill();
    let wider = "cidr=10.0.0.0/8&cidr=127.0.0.1/32";
    start(&mut pair, "4c", &issuer.token(&agent, "proxy", 600), wider);
    is_refused(&pair, "may not stand for 10.0.0.0/8:");
    within("none is left", || pair.readiness() == 503);

    // The node's name, and an address of its status.
    start(
        &mut pair,
        "5",
        &issuer.token(&agent, "proxy", 12),
        "host=n&ipv4=127.0.0.1",
    );
    pair.wait_for_agents(1);
    assert_eq!(cluster.log_of_pod(), LOG);
    let target = Target::echo();
    let (_, stream) = pair.connect(&target.address());
    let mut stream = stream.unwrap();
    // The kubelet writes a new one in time: the agent shows it, and connections by the old one go on beyond its end.
    fs::write(path("5"), issuer.token(&agent, "proxy", 600)).unwrap();
    within("the agent connects anew", || {
        pair.agent().log().contains("connected anew")
    });
    within("the token before ends", || {
        pair.server_log()
            .contains("an agent's stream takes no further connections")
    });
    assert_eq!(echo(&mut stream, b"goes on"), b"goes on");
    assert_eq!(pair.connect(&target.address()).0, CONNECTED);
    pair.agent().kill();

    // Another one's token is not renewed.
    start(&mut pair, "6", &issuer.token(&agent, "proxy", 3), "");
    pair.wait_for_agents(1);
    is_refused(&pair, "the agent's token is not taken");
    assert_eq!(pair.readiness(), 503);
}
