//! Whether a connection may be asked for: by the policies in force, before any agent is chosen. A name is resolved here, once:
//! each of its addresses is judged, and one of them is what an agent dials.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_policies::api_server::{ApiServerEgress, Destination, Dial, DialVerdict};
use egret_policies::model::api_server::{Selection, TunnelLimits};
use egret_policies::rules::Origin;
use egret_policies::simulator::Verdict;
use egret_shared::name::DnsName;
use egret_shared::rt::clock;
use metrics::{counter, gauge};
use tokio::time::MissedTickBehavior;

use super::cluster::{Changes, Cluster};
use super::open_tunnels::{OpenTunnel, OpenTunnels, Permit, Revoked, RuleKey};
use super::policy::{Policies, PolicyFiles, PolicyTexts, UnusablePolicies};
use crate::api_server::ApiServer;
use crate::core::{Refusal, host_of};

/// How often the files are looked at.
const POLL: Duration = Duration::from_secs(1);
/// How long after a change of the cluster others are waited for: all are taken in at once.
const SETTLE: Duration = Duration::from_millis(200);
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);
/// Open connections that are judged again while others wait.
const AT_ONCE: usize = 64;

/// Judges connections.
#[derive(Debug)]
pub(super) struct Gate {
    /// Names are resolved here and judged.
    judges_names: bool,
    rules: Mutex<Rules>,
    open: Arc<OpenTunnels>,
}

#[derive(Debug)]
enum Rules {
    InForce(Box<ApiServerEgress>),
    /// Nothing is known yet, for this reason.
    Closed(String),
}

/// Where policies come from, and what of them is in force.
struct Sources {
    files: PolicyFiles,
    /// As they were read last, understood or not.
    texts: Option<PolicyTexts>,
    of_files: Result<Policies, String>,
    cluster: Option<Cluster>,
    /// What is wrong with the files now, and was told.
    told: String,
}

/// A connection that may be made.
#[derive(Debug)]
pub(super) struct Admitted {
    /// What agents may dial, in this order.
    pub(super) targets: Vec<String>,
    /// Where each of them is; none of what was not resolved here.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) judgement: Judgement,
    pub(super) limits: TunnelLimits,
    pub(super) permit: Option<Permit>,
}

/// What was said of a connection, for the record.
#[derive(Clone, Debug, Default)]
pub(super) struct Judgement {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) destination: Option<Destination>,
    pub(super) rule: Option<Origin>,
    pub(super) would_deny: Option<Origin>,
}

impl Gate {
    /// Reads the policies. What cannot be understood, or is not known, refuses.
    ///
    /// # Errors
    /// When the kernel gives nothing to wait with.
    pub(super) fn start(files: PolicyFiles, api_server: Option<&ApiServer>) -> io::Result<Arc<Self>> {
        let read = files.read();
        let of_files = read
            .as_ref()
            .map_err(ToString::to_string)
            .and_then(|texts| files.understand(texts).map_err(|error| error.to_string()));
        if let Ok(policies) = &of_files {
            for error in &policies.errors {
                tracing::error!("a policy is not understood: {error}");
            }
        }
        if let Err(error) = &of_files {
            tracing::error!(error, "no policy can be read: every connection is refused");
        }
        let sources = Sources {
            texts: read.ok(),
            of_files,
            cluster: api_server.map(Cluster::start),
            told: String::new(),
            files,
        };
        let is_watched = sources.files.path().is_some() || sources.cluster.is_some();
        let gate = Arc::new(Self {
            judges_names: is_watched,
            rules: Mutex::new(sources.rules()),
            open: Arc::default(),
        });
        if is_watched {
            let watched = Arc::clone(&gate);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()?;
            // Thousands of rules take longer to compile than a connection may wait for a runtime's thread.
            std::thread::spawn(move || runtime.block_on(watched.follow(sources)));
        }
        Ok(gate)
    }

    async fn follow(&self, mut sources: Sources) {
        let mut polls = tokio::time::interval(POLL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut settle = SETTLE;
        loop {
            let event = async {
                match &mut sources.cluster {
                    Some(cluster) => cluster.next().await,
                    None => std::future::pending().await,
                }
            };
            let mut has_other_policies = false;
            tokio::select! {
                () = event => tokio::time::sleep(settle).await,
                _tick = polls.tick() => has_other_policies = sources.reread(),
            }
            let begun = clock::now();
            let changes = sources.take_changes();
            has_other_policies |= changes.has_other_policies;
            let is_closed = matches!(&*lock(&self.rules), Rules::Closed(_));
            if is_closed || has_other_policies {
                let rules = sources.rules();
                *lock(&self.rules) = rules;
            } else if changes.is_empty() {
                continue;
            } else if let Rules::InForce(egress) = &mut *lock(&self.rules) {
                egress.update(changes.applied.into_values(), changes.deleted, clock::now());
            }
            self.judge_open();
            // Pods change all the time: with many open connections this takes a fifth of a core at most.
            settle = SETTLE.max(clock::now().since(begun) * 4);
        }
    }

    /// Ends what may go on no longer; what is allowed counts for the rule that says so now.
    fn judge_open(&self) {
        for numbers in self.open.numbers().chunks(AT_ONCE) {
            let mut rules = lock(&self.rules);
            let Rules::InForce(egress) = &mut *rules else {
                return;
            };
            let mut revoked = Vec::new();
            for &number in numbers {
                let Some(tunnel) = self.open.get(number) else {
                    continue;
                };
                match judge(
                    egress,
                    tunnel.selection,
                    tunnel.name.as_ref(),
                    &tunnel.addresses,
                    tunnel.port,
                ) {
                    Some((verdict, _)) if verdict.verdict == Verdict::Deny => {
                        revoked.push((tunnel, verdict.rule))
                    }
                    Some((verdict, _)) => self.open.allowed_by(number, verdict.rule.as_ref().map(key)),
                    None => {}
                }
            }
            drop(rules);
            for (tunnel, rule) in revoked {
                end(&tunnel, rule);
            }
        }
    }

    /// Judges `host:port`.
    pub(super) async fn admit(
        self: &Arc<Self>,
        selection: Selection,
        address: &str,
    ) -> Result<Admitted, (Refusal, Judgement)> {
        let denied = |text| (Refusal::Denied(text), Judgement::default());
        let host = host_of(address);
        let port = address
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        let Some(port) = port else {
            return Err(denied(format!("{address:?} is not host:port")));
        };
        let (name, addresses) = match host.parse::<IpAddr>() {
            Ok(ip) => (None, vec![ip]),
            // Without policies a name is the agent's to resolve, as with upstream.
            Err(_name) if !self.judges_names => return Ok(Admitted::as_asked(address)),
            Err(_name) => {
                let name = host.parse::<DnsName>();
                let name = name.map_err(|error| denied(format!("{host:?} is no name: {error}")))?;
                let refusal = |text| (Refusal::Target(text), Judgement::default());
                (Some(name), resolve(host, port).await.map_err(refusal)?)
            }
        };
        let mut rules = lock(&self.rules);
        let egress = match &mut *rules {
            Rules::InForce(egress) => egress,
            Rules::Closed(reason) => return Err(denied(format!("egress denied, {reason}"))),
        };
        let Some((verdict, judgement)) = judge(egress, selection, name.as_ref(), &addresses, port) else {
            return Err(denied("egress denied: the name has no address".to_owned()));
        };
        count_decision(selection, &verdict);
        if verdict.verdict == Verdict::Deny {
            let rule = verdict.rule.as_ref().map(words).unwrap_or_default();
            let text = format!("egress denied by {rule}: {selection} -> {address}");
            return Err((Refusal::Denied(text), judgement));
        }
        // Before other rules are in force: who is allowed by these is judged by those, too.
        let permit = self.open.add(
            selection,
            name.clone(),
            (addresses.clone(), port),
            verdict.rule.as_ref().map(key),
            verdict.limits.connections,
        );
        drop(rules);
        match permit {
            Some(permit) => Ok(Admitted {
                targets: match name {
                    None => vec![address.to_owned()],
                    Some(_) => addresses
                        .iter()
                        .map(|ip| SocketAddr::new(*ip, port).to_string())
                        .collect(),
                },
                addresses,
                judgement,
                limits: verdict.limits,
                permit: Some(permit),
            }),
            None => {
                let rule = verdict.rule.as_ref().map(words).unwrap_or_default();
                let most = verdict.limits.connections.unwrap_or_default();
                let text =
                    format!("egress denied by {rule}: {most} connections are open: {selection} -> {address}");
                Err((Refusal::Denied(text), judgement))
            }
        }
    }
}

/// The verdict on all addresses: the first that is refused speaks for all. None where there is no address.
fn judge(
    egress: &mut ApiServerEgress,
    selection: Selection,
    name: Option<&DnsName>,
    addresses: &[IpAddr],
    port: u16,
) -> Option<(DialVerdict, Judgement)> {
    let mut chosen: Option<(DialVerdict, IpAddr)> = None;
    for &address in addresses {
        let dial = Dial {
            selection,
            name,
            address,
            port,
        };
        let verdict = egress.decide(dial, clock::now());
        let is_denied = verdict.verdict == Verdict::Deny;
        let is_first = chosen.is_none();
        let tells_more =
            chosen.as_ref().is_some_and(|(it, _)| it.would_deny.is_none()) && verdict.would_deny.is_some();
        if is_denied || is_first || tells_more {
            chosen = Some((verdict, address));
        }
        if is_denied {
            break;
        }
    }
    let (verdict, address) = chosen?;
    let judgement = Judgement {
        addresses: addresses.to_vec(),
        destination: Some(egress.destination(address)),
        rule: verdict.rule.clone(),
        would_deny: verdict.would_deny.clone(),
    };
    Some((verdict, judgement))
}

fn key(rule: &Origin) -> RuleKey {
    (Arc::clone(&rule.policy), rule.rule)
}

fn end(tunnel: &OpenTunnel, rule: Option<Origin>) {
    let by = rule.as_ref().map(words).unwrap_or_default();
    let to = match (&tunnel.name, tunnel.addresses.first()) {
        (Some(name), _) => format!("{name}:{}", tunnel.port),
        (None, Some(address)) => SocketAddr::new(*address, tunnel.port).to_string(),
        (None, None) => String::new(),
    };
    let text = format!("egress ended by {by}: {} -> {to}", tunnel.selection);
    tracing::info!("{text}");
    let policy = rule
        .as_ref()
        .map_or_else(String::new, |rule| rule.policy.to_string());
    let index = rule
        .as_ref()
        .map_or_else(String::new, |rule| rule.rule.to_string());
    counter!(
        "egret_konnectivity_policy_ended_total",
        "selection" => tunnel.selection.word(), "policy" => policy, "rule" => index
    )
    .increment(1);
    tunnel.revocation().revoke(Revoked { text, rule });
}

impl Sources {
    /// What is in force by what is known now.
    fn rules(&self) -> Rules {
        let of_files = match &self.of_files {
            Ok(of_files) => of_files,
            Err(error) => {
                gauge!("egret_konnectivity_policies").set(0.0);
                return Rules::Closed(format!("no policy can be read: {error}"));
            }
        };
        if let Some(unknown) = self.cluster.as_ref().and_then(Cluster::unknown) {
            gauge!("egret_konnectivity_policies").set(0.0);
            return Rules::Closed(format!(
                "not everything is known of the API server yet: {unknown}"
            ));
        }
        for warning in &of_files.warnings {
            tracing::warn!("{warning}");
        }
        let mut policies = of_files.policies.clone();
        for policy in self.cluster.iter().flat_map(Cluster::policies) {
            let mut policy = policy.clone();
            if of_files
                .policies
                .iter()
                .any(|of_file| of_file.name == policy.name)
            {
                // Both count. No file can have this name.
                policy.name = format!("{} (API server)", policy.name).into();
            }
            policies.push(policy);
        }
        let entities = self.cluster.iter().flat_map(Cluster::entities);
        let entities = entities.chain(of_files.cluster.iter().cloned());
        let egress = ApiServerEgress::new(&policies, entities, clock::now());
        tracing::info!(policies = policies.len(), "policies are in force");
        gauge!("egret_konnectivity_policies").set(crate::admin::count(policies.len()));
        Rules::InForce(Box::new(egress))
    }

    fn take_changes(&mut self) -> Changes {
        let Some(cluster) = &mut self.cluster else {
            return Changes::default();
        };
        cluster.take_waiting();
        cluster.take_changes()
    }

    /// Reads the files again; whether they have other policies, or objects. What is not understood changes nothing.
    fn reread(&mut self) -> bool {
        let read = self.files.read();
        if matches!(&read, Ok(texts) if self.texts.as_ref() == Some(texts)) {
            return false;
        }
        let taken = read.and_then(|texts| {
            let understood = self.files.understand(&texts);
            self.texts = Some(texts);
            understood.and_then(|policies| match policies.errors.is_empty() {
                true => Ok(policies),
                false => Err(UnusablePolicies::Content(policies.errors)),
            })
        });
        match taken {
            Ok(policies) => {
                self.of_files = Ok(policies);
                self.told.clear();
                true
            }
            Err(error) => {
                let text = error.to_string();
                if self.told != text {
                    tracing::error!(error = text, "policies are not taken: what was in force stays");
                    counter!("egret_konnectivity_policy_reload_failures_total").increment(1);
                    self.told = text;
                }
                false
            }
        }
    }
}

impl Admitted {
    fn as_asked(address: &str) -> Self {
        Self {
            targets: vec![address.to_owned()],
            addresses: Vec::new(),
            judgement: Judgement::default(),
            limits: TunnelLimits::default(),
            permit: None,
        }
    }
}

/// A rule, as users look for it.
pub(super) fn words(rule: &Origin) -> String {
    let name = rule.name.as_ref().map(|name| format!(" ({name})"));
    format!("{} rule {}{}", rule.policy, rule.rule, name.unwrap_or_default())
}

fn count_decision(selection: Selection, verdict: &DialVerdict) {
    let (action, rule) = match (verdict.verdict, &verdict.would_deny) {
        (Verdict::Deny, _) => ("Deny", verdict.rule.as_ref()),
        (Verdict::Allow, Some(would)) => ("Audit", Some(would)),
        (Verdict::Allow, None) => ("Allow", verdict.rule.as_ref()),
    };
    let policy = rule.map_or_else(String::new, |rule| rule.policy.to_string());
    let index = rule.map_or_else(String::new, |rule| rule.rule.to_string());
    counter!(
        "egret_konnectivity_policy_decisions_total",
        "selection" => selection.word(), "policy" => policy, "rule" => index, "action" => action
    )
    .increment(1);
}

async fn resolve(host: &str, port: u16) -> Result<Vec<IpAddr>, String> {
    let found = tokio::time::timeout(RESOLVE_WITHIN, tokio::net::lookup_host((host, port))).await;
    let unknown = || format!("dial tcp: lookup {host}: no such host");
    match found {
        Ok(Ok(addresses)) => {
            let mut found: Vec<IpAddr> = Vec::new();
            for address in addresses {
                if !found.contains(&address.ip()) {
                    found.push(address.ip());
                }
            }
            if found.is_empty() {
                Err(unknown())
            } else {
                Ok(found)
            }
        }
        Ok(Err(error)) => {
            tracing::debug!(host, %error, "a name cannot be resolved");
            Err(unknown())
        }
        Err(_elapsed) => Err(format!("dial tcp: lookup {host}: i/o timeout")),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
