//! The server's own Lease, by which agents count servers, and the removal of those that nobody renews any more. Names, labels and times are
//! upstream's.

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use egret_shared::rt::clock;
use http::{Method, StatusCode};
use metrics::{counter, describe_counter};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api_server::{ApiServer, LeasePlace, read_lease};
use crate::core::Leases;

const DURATION: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(15);
/// The same after a failure: a lease is not lost by one.
const RETRY_EVERY: Duration = Duration::from_secs(2);
const REMOVE_EVERY: Duration = Duration::from_secs(15);

/// Keeps the Lease of a server.
#[derive(Debug)]
pub(super) struct LeaseKeeper {
    pub(super) api_server: ApiServer,
    pub(super) place: LeasePlace,
    pub(super) server_id: String,
}

impl LeaseKeeper {
    /// Renews until `stop` changes; then the Lease is removed, and agents know at once.
    pub(super) async fn run(self, mut stop: watch::Receiver<bool>) {
        describe();
        let (mut held, mut others) = (None, Leases::default());
        let mut remove_at = clock::now();
        let mut has_failed = false;
        loop {
            let pause = match self.renew(held.take()).await {
                Ok(lease) => {
                    if has_failed {
                        tracing::info!("the server's lease is renewed again");
                    }
                    has_failed = false;
                    held = Some(lease);
                    RENEW_EVERY
                }
                Err(error) => {
                    if !has_failed {
                        tracing::warn!(error = %format!("{error:#}"), "the server's lease is not renewed");
                    }
                    has_failed = true;
                    RETRY_EVERY
                }
            };
            let now = clock::now();
            if remove_at <= now {
                remove_at = now.after(REMOVE_EVERY);
                if let Err(error) = self.remove_expired(&mut others).await {
                    tracing::warn!(error = %format!("{error:#}"), "leases of other servers are not looked at");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _stopped = stop.wait_for(|is_stopped| *is_stopped) => break,
            }
        }
        if let Err(error) = self.release().await {
            tracing::warn!(error = %format!("{error:#}"), "the server's lease is not removed; it ends by itself");
        }
    }

    fn name(&self) -> String {
        format!("konnectivity-proxy-server-{}", self.server_id)
    }

    fn folder(&self) -> String {
        let namespace = &self.place.namespace;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    }

    fn path(&self) -> String {
        format!("{}/{}", self.folder(), self.name())
    }

    /// The Lease as the API server has it now.
    async fn renew(&self, held: Option<Value>) -> anyhow::Result<Value> {
        // Where somebody else wrote it or removed it, it is read again.
        for known in [held, None] {
            let known = match known {
                Some(lease) => Some(lease),
                None => match self.api_server.request(Method::GET, &self.path(), None).await? {
                    (StatusCode::OK, lease) => Some(lease),
                    (StatusCode::NOT_FOUND, _) => None,
                    (code, answer) => bail!("{code} {}", answer["message"]),
                },
            };
            let lease = self.lease(known.as_ref());
            let written = match known {
                Some(_) => {
                    self.api_server
                        .request(Method::PUT, &self.path(), Some(&lease))
                        .await?
                }
                None => {
                    self.api_server
                        .request(Method::POST, &self.folder(), Some(&lease))
                        .await?
                }
            };
            match written {
                (StatusCode::OK, lease) => return Ok(lease),
                (StatusCode::NOT_FOUND | StatusCode::CONFLICT, _) => {}
                (code, answer) => bail!("{code} {}", answer["message"]),
            }
        }
        bail!("the lease {} is written by somebody else", self.name())
    }

    fn lease(&self, before: Option<&Value>) -> Value {
        // For people, and for upstream's agents: ours compare no clocks.
        let now = humantime::format_rfc3339_micros(UNIX_EPOCH + clock::since_epoch()).to_string();
        let is_ours = |lease: &&Value| lease["spec"]["holderIdentity"] == *self.server_id;
        let acquired = before
            .filter(is_ours)
            .map(|lease| lease["spec"]["acquireTime"].clone());
        let labels: serde_json::Map<String, Value> = self
            .place
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let mut metadata = json!({"name": self.name(), "namespace": self.place.namespace, "labels": labels});
        if let Some(before) = before {
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {
                "holderIdentity": self.server_id,
                "leaseDurationSeconds": DURATION.as_secs(),
                "acquireTime": acquired.filter(Value::is_string).unwrap_or_else(|| json!(now)),
                "renewTime": now,
            },
        })
    }

    /// Removes Leases that did not change for as long as they say.
    async fn remove_expired(&self, others: &mut Leases) -> anyhow::Result<()> {
        let selector: String = form_urlencoded::byte_serialize(self.place.selector().as_bytes()).collect();
        let path = format!("{}?labelSelector={selector}", self.folder());
        let (code, list) = self.api_server.request(Method::GET, &path, None).await?;
        count("lease_list_total", code, &list);
        if code != StatusCode::OK {
            bail!("{code} {}", list["message"]);
        }
        let items = list["items"].as_array().context("a list without items")?;
        let now = clock::now();
        let mut listed = BTreeSet::new();
        for item in items {
            let metadata = &item["metadata"];
            let (Some(name), Some(version)) =
                (metadata["name"].as_str(), metadata["resourceVersion"].as_str())
            else {
                continue;
            };
            if name != self.name()
                && let Some(lease) = read_lease(&item["spec"], version)
            {
                listed.insert(name);
                others.apply(name.to_owned(), lease, now);
            }
        }
        others.retain(|name| listed.contains(name));
        for (name, version) in others.expired(now) {
            // Not one that was renewed since it was listed.
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": version},
            });
            let path = format!("{}/{name}", self.folder());
            let (code, answer) = self
                .api_server
                .request(Method::DELETE, &path, Some(&options))
                .await?;
            count("lease_delete_total", code, &answer);
            match code {
                StatusCode::OK => {
                    tracing::info!(lease = name, "a lease that nobody renewed is removed");
                    counter!("konnectivity_network_proxy_server_culled_leases_count").increment(1);
                    others.delete(&name);
                }
                StatusCode::NOT_FOUND | StatusCode::CONFLICT => {}
                code => bail!("{code} {}", answer["message"]),
            }
        }
        Ok(())
    }

    async fn release(&self) -> anyhow::Result<()> {
        let (code, answer) = self
            .api_server
            .request(Method::DELETE, &self.path(), None)
            .await?;
        match code {
            StatusCode::OK | StatusCode::NOT_FOUND => Ok(()),
            code => bail!("{code} {}", answer["message"]),
        }
    }
}

fn count(name: &'static str, code: StatusCode, answer: &Value) {
    let reason = answer["reason"].as_str().unwrap_or_default().to_owned();
    let name = format!("konnectivity_network_proxy_server_{name}");
    counter!(name, "http_status_code" => code.as_u16().to_string(), "reason" => reason).increment(1);
}

/// The texts are upstream's.
fn describe() {
    describe_counter!(
        "konnectivity_network_proxy_server_culled_leases_count",
        "Count of expired leases that the lease garbage collection controller has culled."
    );
    describe_counter!(
        "konnectivity_network_proxy_server_lease_delete_total",
        "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason."
    );
    describe_counter!(
        "konnectivity_network_proxy_server_lease_list_total",
        "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason."
    );
}
