//! The plugins of a block that ask no upstream. Their files are read when the plan is put in force, and again at intervals.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

use egret_shared::rt::task;
use metrics::gauge;

use crate::config::model::{self, Hosts, LoadBalance, Zone};
use crate::dns::message::Query;
use crate::plugins::dns64::Translator;
use crate::plugins::hosts::Table;
use crate::plugins::loadbalance::{Balancer, InvalidWeights, Weights};
use crate::plugins::rewrite::Rules;
use crate::plugins::template::{InvalidTemplate, Templates};

/// The plugins that ask no upstream.
#[derive(Debug)]
pub(super) struct LocalPlugins {
    pub(super) rewrite: Option<Rules>,
    pub(super) templates: Option<Templates>,
    pub(super) hosts: Option<Arc<HostsFile>>,
    pub(super) dns64: Option<Translator>,
    balancer: Option<Arc<Loadbalance>>,
    pub(super) whoami: bool,
}

/// Why a plugin cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum InvalidLocalPlugin {
    /// A template.
    #[error(transparent)]
    Template(#[from] InvalidTemplate),
    /// A file with weights.
    #[error("{0}: {1}")]
    Weights(String, InvalidWeights),
    /// A file that cannot be read.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
}

impl LocalPlugins {
    /// Reads their files. A missing hosts file is empty, as in CoreDNS; a file of weights must exist.
    pub(super) fn new(plan: &model::Block) -> Result<Self, InvalidLocalPlugin> {
        let templates = (!plan.template.is_empty()).then(|| Templates::new(&plan.template, &plan.zones));
        let balancer = plan.loadbalance.as_ref().map(Loadbalance::start);
        Ok(Self {
            rewrite: (!plan.rewrite.is_empty()).then(|| Rules::new(&plan.rewrite)),
            templates: templates.transpose()?,
            hosts: plan
                .hosts
                .as_ref()
                .map(|hosts| HostsFile::start(hosts, &plan.zones)),
            dns64: plan.dns64.as_ref().map(Translator::new),
            balancer: balancer.transpose()?,
            whoami: plan.whoami,
        })
    }

    /// Whether an answer may depend on the client.
    pub(super) fn depends_on_client(&self) -> bool {
        let by_templates = self.templates.as_ref().is_some_and(Templates::depend_on_client);
        let by_rules = self.rewrite.as_ref().is_some_and(Rules::depend_on_client);
        self.whoami || by_templates || by_rules
    }

    /// Orders the addresses of an answer (`loadbalance`).
    pub(super) fn balance(&self, reply: Vec<u8>, query: &Query, udp_size: u16) -> Vec<u8> {
        match &self.balancer {
            Some(balancer) => balancer.apply(reply, query, udp_size),
            None => reply,
        }
    }
}

/// A hosts file that is watched.
#[derive(Debug)]
pub(super) struct HostsFile {
    plan: Hosts,
    block_zones: Vec<Zone>,
    table: RwLock<Arc<Table>>,
}

impl HostsFile {
    fn start(plan: &Hosts, block_zones: &[Zone]) -> Arc<Self> {
        let (seen, text) = read(&plan.file).unwrap_or_else(|error| {
            tracing::warn!(file = %plan.file.display(), %error, "the hosts file cannot be read");
            (None, String::new())
        });
        let hosted = Arc::new(Self {
            table: RwLock::new(Arc::new(Table::new(plan, block_zones, &text))),
            plan: plan.clone(),
            block_zones: block_zones.to_vec(),
        });
        hosted.count(seen);
        watch(&hosted, plan.reload, seen, |hosted| &hosted.plan.file, Self::take);
        hosted
    }

    pub(super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self, text: &str, seen: FileVersion) {
        let table = Table::new(&self.plan, &self.block_zones, text);
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        self.count(seen);
    }

    fn count(&self, seen: FileVersion) {
        let entries = u32::try_from(self.table().len()).unwrap_or(u32::MAX);
        let file = self.plan.file.display().to_string();
        gauge!("coredns_hosts_entries", "hostsfile" => file).set(f64::from(entries));
        let since_epoch = seen.and_then(|(modified, _)| modified.duration_since(SystemTime::UNIX_EPOCH).ok());
        let seconds = since_epoch.map_or(0.0, |span| span.as_secs_f64());
        gauge!("coredns_hosts_reload_timestamp_seconds").set(seconds);
    }
}

/// `loadbalance`, with a file of weights that is watched.
#[derive(Debug)]
struct Loadbalance {
    plan: LoadBalance,
    balancer: RwLock<Arc<Balancer>>,
}

impl Loadbalance {
    fn start(plan: &LoadBalance) -> Result<Arc<Self>, InvalidLocalPlugin> {
        let Some(file) = &plan.weights else {
            return Ok(Arc::new(Self::new(plan, Weights::default())));
        };
        let name = file.file.display().to_string();
        let (seen, text) = read(&file.file).map_err(|error| InvalidLocalPlugin::File(name.clone(), error))?;
        let weights = Weights::parse(&text).map_err(|error| InvalidLocalPlugin::Weights(name, error))?;
        let balanced = Arc::new(Self::new(plan, weights));
        watch(&balanced, file.reload, seen, Self::path, Self::take);
        Ok(balanced)
    }

    fn new(plan: &LoadBalance, weights: Weights) -> Self {
        Self {
            balancer: RwLock::new(Arc::new(Balancer::new(plan, weights))),
            plan: plan.clone(),
        }
    }

    fn path(&self) -> &Path {
        let file = self.plan.weights.as_ref();
        &file.expect("only who has a file is watched").file
    }

    /// An invalid file changes nothing.
    fn take(&self, text: &str, _seen: FileVersion) {
        match Weights::parse(text) {
            Ok(weights) => {
                let balancer = Arc::new(Balancer::new(&self.plan, weights));
                *self.balancer.write().unwrap_or_else(PoisonError::into_inner) = balancer;
            }
            Err(error) => tracing::error!(%error, "the weights stay as they are"),
        }
    }

    fn apply(&self, reply: Vec<u8>, query: &Query, udp_size: u16) -> Vec<u8> {
        let balancer = Arc::clone(&self.balancer.read().unwrap_or_else(PoisonError::into_inner));
        let same = reply.clone();
        let ordered = balancer.apply(reply, query, udp_size, |below| rand::random_range(0..below));
        ordered.unwrap_or(same)
    }
}

/// The modification time and length of a file: when they differ, the file is read again.
type FileVersion = Option<(SystemTime, u64)>;

fn read(path: &Path) -> std::io::Result<(FileVersion, String)> {
    let seen = stat(path);
    std::fs::read_to_string(path).map(|text| (seen, text))
}

fn stat(path: &Path) -> FileVersion {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}

/// Watches a file until its user is dropped.
fn watch<T: Send + Sync + 'static>(
    who: &Arc<T>,
    every: Duration,
    mut seen: FileVersion,
    path: fn(&T) -> &Path,
    take: fn(&T, &str, FileVersion),
) {
    if every.is_zero() {
        return;
    }
    let who: Weak<T> = Arc::downgrade(who);
    drop(task::spawn("file", async move {
        loop {
            tokio::time::sleep(every).await;
            let Some(who) = who.upgrade() else {
                return;
            };
            let path = path(&who);
            if stat(path) == seen {
                continue;
            }
            match read(path) {
                Ok((now, text)) => {
                    take(&who, &text, now);
                    seen = now;
                }
                Err(error) => tracing::debug!(file = %path.display(), %error, "a file cannot be read"),
            }
        }
    }));
}
