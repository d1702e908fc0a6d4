//! Reports the node's addresses to other nodes: its NodeAddressReport, applied by the API server's server-side apply.
//!
//! Only what changes is applied, so nothing is asked at rest, and an enforcer that starts anew changes nothing. A report that
//! somebody else wrote is a conflict and stays.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use kube::{Client, Error};
use serde_json::{Value as Json, json};
use tokio::sync::{Notify, watch};

use super::client::reason;
use super::contact::Contact;
use super::counts;

/// Owns the fields of the report, and is their label (kubernetes.io, Recommended Labels).
const MANAGER: &str = "egret-enforcer";
const LABEL: &str = "app.kubernetes.io/managed-by";
/// The version of the kind that is written.
const VERSION: &str = "v1alpha1";

/// The node's addresses, each with its interface.
pub(super) type Addresses = BTreeMap<IpAddr, String>;

/// Applies the report of a node.
pub(super) struct Reporter {
    pub(super) client: Client,
    pub(super) contact: Arc<Contact>,
    pub(super) node: Arc<str>,
    pub(super) addresses: watch::Receiver<Addresses>,
    /// The version that is served; none where the kind is not.
    pub(super) served: watch::Receiver<Option<ApiResource>>,
    /// The report was deleted.
    pub(super) is_gone: Arc<Notify>,
}

impl Reporter {
    /// Runs until nobody says any more what the addresses are, or what is served.
    pub(super) async fn run(mut self) {
        let mut backoff = DefaultBackoff::default();
        let mut said = None;
        loop {
            let addresses = self.addresses.borrow_and_update().clone();
            let served = self.served.borrow_and_update().clone();
            let applied = match served {
                Some(served) if served.version == VERSION && !addresses.is_empty() => {
                    self.apply(&served, &addresses).await
                }
                // There is nothing to write, or nowhere.
                Some(_) | None => Ok(None),
            };
            let is_conflict = matches!(&applied, Err(Error::Api(status)) if status.code == 409);
            let is_unreached = matches!(&applied, Err(error) if !matches!(error, Error::Api(_)));
            let again_in = match applied {
                Ok(count) => {
                    if let Some(count) = count {
                        tracing::info!(node = %self.node, addresses = count, "reported the addresses of this node");
                    }
                    backoff.reset();
                    said = None;
                    None
                }
                Err(error) => {
                    counts::not_reported();
                    let why = reason(&error);
                    if said.as_ref() != Some(&why) {
                        tracing::warn!(node = %self.node, reason = why, "the addresses of this node are not reported");
                    }
                    said = Some(why);
                    (!is_conflict).then(|| backoff.next().unwrap_or_default())
                }
            };
            let pause = async {
                match again_in {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.addresses.changed() => if changed.is_err() { return },
                changed = self.served.changed() => if changed.is_err() { return },
                () = self.is_gone.notified() => {}
                () = self.contact.is_back.notified(), if is_unreached => {}
                () = pause => {}
            }
        }
    }

    async fn apply(&self, served: &ApiResource, addresses: &Addresses) -> kube::Result<Option<usize>> {
        let reports = Api::<DynamicObject>::all_with(self.client.clone(), served);
        let report = report(&self.node, served, addresses);
        reports
            .patch(&self.node, &PatchParams::apply(MANAGER), &Patch::Apply(&report))
            .await?;
        Ok(Some(addresses.len()))
    }
}

/// It says nothing of the time: each enforcer that starts would change it, for all nodes to read.
fn report(node: &str, served: &ApiResource, addresses: &Addresses) -> Json {
    let addresses: Vec<Json> = addresses
        .iter()
        .map(|(ip, interface)| json!({"ip": ip, "interface": interface}))
        .collect();
    json!({
        "apiVersion": served.api_version,
        "kind": served.kind,
        "metadata": {"name": node, "labels": {LABEL: MANAGER}},
        "addresses": addresses,
    })
}
