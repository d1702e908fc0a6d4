//! Who an agent is: by its certificate, or by the token of a service account that the API server reviews. What it says of itself is bound to
//! that.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use egret_shared::rt::clock;
use http::{HeaderMap, Method, StatusCode};
use ipnet::IpNet;
use metrics::counter;
use serde_json::{Value, json};
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::ParsedCertificate;

use crate::api_server::ApiServer;
use crate::grpc;
use crate::proto::{Claim, Identifiers};

/// A token that says nothing of its end is reviewed as often as this.
const UNTIL_REVIEW: Duration = Duration::from_secs(3600);
/// What the API server says of the pod that a token is bound to (KEP-4193).
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Of a node, its zone (kubernetes.io, Well-Known Labels).
const ZONE: &str = "topology.kubernetes.io/zone";
/// Of a node whose agents may have `default-route`. No kubelet can give its node a label of this prefix (admission plugin NodeRestriction).
const DEFAULT_ROUTE: &str = "node-restriction.kubernetes.io/konnectivity-default-route";

/// What becomes of an agent that stands for what it cannot show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum IdentifierBinding {
    /// It is told in the log and counted.
    Audit,
    /// The agent is refused.
    Enforce,
}

/// How agents show who they are.
#[derive(Debug)]
pub(super) enum Authentication {
    /// By TLS: others get no further than the handshake.
    Certificate,
    Token(TokenReview),
}

/// The tokens that are taken.
#[derive(Debug)]
pub(super) struct TokenReview {
    pub(super) api_server: ApiServer,
    pub(super) namespace: String,
    pub(super) account: String,
    pub(super) audience: String,
}

/// Who an agent showed itself to be.
#[derive(Clone, Debug)]
pub(super) enum AgentIdentity {
    Certificate(CertificateDer<'static>),
    Token { token: String, node: Option<String> },
}

/// Why an agent is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unauthenticated {
    #[error("{0}")]
    Refused(String),
    /// Nobody can say: the agent may ask again.
    #[error("{0:#}")]
    Unknown(anyhow::Error),
}

impl Authentication {
    pub(super) async fn identify(
        &self,
        headers: &HeaderMap,
        certificate: Option<&CertificateDer<'static>>,
    ) -> Result<AgentIdentity, Unauthenticated> {
        match self {
            Self::Certificate => {
                let certificate = certificate.cloned();
                let missing = || Unauthenticated::Refused("the agent shows no certificate".to_owned());
                certificate.map(AgentIdentity::Certificate).ok_or_else(missing)
            }
            Self::Token(review) => {
                let token = bearer(headers).map_err(Unauthenticated::Refused)?;
                let node = review.review(&token).await?;
                Ok(AgentIdentity::Token { token, node })
            }
        }
    }

    /// Returns when what the agent showed counts no longer.
    pub(super) async fn expired(&self, identity: &AgentIdentity) -> Unauthenticated {
        let (Self::Token(review), AgentIdentity::Token { token, node }) = (self, identity) else {
            return std::future::pending().await;
        };
        loop {
            let until = lifetime(token).unwrap_or(UNTIL_REVIEW);
            // A token whose time is over and that is taken all the same is asked for once a minute.
            tokio::time::sleep(until.max(MIN_UNTIL_REVIEW)).await;
            match review.review(token).await {
                Ok(found) if found == *node => {}
                Ok(_other) => return Unauthenticated::Refused("the token is of another node now".to_owned()),
                Err(error @ Unauthenticated::Refused(_)) => return error,
                // It was taken before, and is asked for again.
                Err(error @ Unauthenticated::Unknown(_)) => {
                    tracing::warn!(%error, "a token cannot be reviewed")
                }
            }
        }
    }

    /// Whether the agent may stand for what it says: the identifiers that it does not show to be its own.
    pub(super) async fn unbound(&self, identity: &AgentIdentity, identifiers: &Identifiers) -> Vec<String> {
        let shown = match (self, identity) {
            (_, AgentIdentity::Certificate(certificate)) => Shown::Certificate(certificate),
            (Self::Token(review), AgentIdentity::Token { node: Some(node), .. })
                if identifiers.claims().next().is_some() =>
            {
                let shown = review.shown_by_node(node).await.unwrap_or_else(|error| {
                    tracing::warn!(node, error = %format!("{error:#}"), "the addresses of a node are not known");
                    ShownByNode {
                        names: vec![node.clone()],
                        ..ShownByNode::default()
                    }
                });
                Shown::Node(shown)
            }
            (_, AgentIdentity::Token { .. }) => Shown::Node(ShownByNode::default()),
        };
        let unbound = identifiers.claims().filter(|claim| !shown.has(claim));
        unbound.map(|claim| claim.to_string()).collect()
    }
}

/// What an agent's identifiers are held against.
enum Shown<'a> {
    Certificate(&'a CertificateDer<'static>),
    Node(ShownByNode),
}

/// What the object of a node says.
#[derive(Debug, Default)]
struct ShownByNode {
    /// Its own name, and all names and addresses that its status has.
    names: Vec<String>,
    /// Of its pods.
    networks: Vec<IpNet>,
    zone: Option<String>,
    is_default_route: bool,
}

impl Shown<'_> {
    fn has(&self, claim: &Claim<'_>) -> bool {
        match self {
            Self::Certificate(certificate) => match claim {
                Claim::Address(address) => is_of(certificate, &address.to_string()),
                Claim::Host(host) => is_of(certificate, host),
                Claim::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                    is_of(certificate, &network.addr().to_string())
                }
                // No certificate can say so.
                Claim::Network(_) | Claim::Zone(_) | Claim::DefaultRoute => true,
            },
            Self::Node(node) => node.has(claim),
        }
    }
}

impl ShownByNode {
    fn has(&self, claim: &Claim<'_>) -> bool {
        let has_name = |name: &str| self.names.iter().any(|it| it == name);
        match claim {
            Claim::Address(address) => has_name(&address.to_string()),
            Claim::Host(host) => has_name(host),
            Claim::Network(network) => {
                let is_address = network.prefix_len() == network.max_prefix_len();
                self.networks.iter().any(|own| own.contains(network))
                    || is_address && has_name(&network.addr().to_string())
            }
            Claim::Zone(zone) => self.zone.as_deref() == Some(zone),
            Claim::DefaultRoute => self.is_default_route,
        }
    }
}

fn is_of(certificate: &CertificateDer<'static>, name: &str) -> bool {
    let name = ServerName::try_from(name);
    let parsed = ParsedCertificate::try_from(certificate);
    matches!((parsed, name), (Ok(parsed), Ok(name)) if verify_server_name(&parsed, &name).is_ok())
}

/// The shortest pause between two reviews of a token.
const MIN_UNTIL_REVIEW: Duration = Duration::from_secs(1);

/// Says what is not bound; whether the agent is to be refused for it.
pub(super) fn check_binding(
    binding: IdentifierBinding,
    agent: &str,
    unbound: &[String],
) -> Result<(), String> {
    if unbound.is_empty() {
        return Ok(());
    }
    let list = unbound.join(", ");
    counter!("egret_konnectivity_unbound_identifiers_total").increment(1);
    match binding {
        IdentifierBinding::Audit => {
            tracing::warn!(
                agent,
                identifiers = list,
                "an agent stands for what it does not show to be"
            );
            Ok(())
        }
        IdentifierBinding::Enforce => Err(format!(
            "the agent may not stand for {list}: neither its certificate nor its token's node is that"
        )),
    }
}

impl TokenReview {
    /// The node of the pod that has the token, where the API server tells it.
    async fn review(&self, token: &str) -> Result<Option<String>, Unauthenticated> {
        let asked = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self.audience]},
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let answer = self.api_server.request(Method::POST, path, Some(&asked)).await;
        let (code, answer) = answer.map_err(Unauthenticated::Unknown)?;
        if code != StatusCode::CREATED && code != StatusCode::OK {
            let text = format!("a token cannot be reviewed: {code} {}", answer["message"]);
            return Err(Unauthenticated::Unknown(anyhow::Error::msg(text)));
        }
        self.verdict(&answer["status"])
    }

    fn verdict(&self, status: &Value) -> Result<Option<String>, Unauthenticated> {
        let refused = |text: String| Err(Unauthenticated::Refused(text));
        if status["authenticated"] != true {
            let error = status["error"]
                .as_str()
                .unwrap_or("the API server does not know it");
            return refused(format!("the agent's token is not taken: {error}"));
        }
        let has_audience = |list: &Vec<Value>| list.iter().any(|one| *one == *self.audience);
        if !status["audiences"].as_array().is_some_and(has_audience) {
            return refused(format!(
                "the agent's token is not for the audience {:?}",
                self.audience
            ));
        }
        let expected = format!("system:serviceaccount:{}:{}", self.namespace, self.account);
        let user = &status["user"];
        if user["username"] != *expected {
            return refused(format!(
                "the agent's token is of {}, and not of {expected}",
                user["username"]
            ));
        }
        Ok(user["extra"][NODE_NAME][0].as_str().map(str::to_owned))
    }

    async fn shown_by_node(&self, node: &str) -> anyhow::Result<ShownByNode> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '.';
        anyhow::ensure!(node.chars().all(is_name), "{node:?} is no name of a node");
        let path = format!("/api/v1/nodes/{node}");
        let (code, answer) = self.api_server.request(Method::GET, &path, None).await?;
        anyhow::ensure!(code == StatusCode::OK, "{code} {}", answer["message"]);
        let addresses = answer["status"]["addresses"]
            .as_array()
            .context("a node without addresses")?;
        let addresses = addresses.iter().filter_map(|one| one["address"].as_str());
        // Addresses compare as addresses.
        let canonical = |text: &str| {
            text.parse()
                .map_or_else(|_name| text.to_owned(), |ip: IpAddr| ip.to_string())
        };
        let networks = answer["spec"]["podCIDRs"].as_array().into_iter().flatten();
        let labels = &answer["metadata"]["labels"];
        Ok(ShownByNode {
            names: addresses.map(canonical).chain([node.to_owned()]).collect(),
            networks: networks.filter_map(|one| one.as_str()?.parse().ok()).collect(),
            zone: labels[ZONE].as_str().map(str::to_owned),
            is_default_route: labels[DEFAULT_ROUTE] == "true",
        })
    }
}

fn bearer(headers: &HeaderMap) -> Result<String, String> {
    let header = grpc::single(headers, http::header::AUTHORIZATION.as_str())?;
    let header = header.ok_or_else(|| "the agent shows no token".to_owned())?;
    let token = header.strip_prefix("Bearer ");
    let token = token.ok_or_else(|| "authorization is not \"Bearer\" and a token".to_owned())?;
    Ok(token.trim().to_owned())
}

/// How long a token counts, by what it says (RFC 7519, `exp`): it was reviewed.
fn lifetime(token: &str) -> Option<Duration> {
    let payload = token.split('.').nth(1)?;
    let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    let expires = Duration::from_secs(claims["exp"].as_u64()?);
    Some(expires.saturating_sub(clock::since_epoch()))
}
