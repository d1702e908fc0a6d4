//! Whether a connection may be asked for: by the policies in force, before any agent is chosen. A name is resolved here, once:
//! each of its addresses is judged, and one of them is what an agent dials.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_policies::api_server::{ApiServerEgress, Destination, Dial, DialVerdict, EarlyVerdict};
use egret_policies::model::api_server::{Selection, ServerName, TunnelLimits};
use egret_policies::rules::Origin;
use egret_policies::simulator::Verdict;
use egret_shared::name::DnsName;
use egret_shared::rt::clock;
use metrics::{counter, gauge};
use tokio::time::MissedTickBehavior;

use super::cluster::{Changes, Cluster};
use super::first_octets::SeenName;
use super::open_tunnels::{Allowed, OpenTunnel, OpenTunnels, Permit, Revoked, RuleKey, ServerNameState};
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
    pub(super) verdict: Early,
    pub(super) permit: Option<Permit>,
}

/// What is said of a connection before its client has sent anything.
#[derive(Clone, Copy, Debug)]
pub(super) enum Early {
    /// It may use this.
    Allowed(TunnelLimits),
    /// It is judged when its client says which server name it asks for.
    ByServerName,
}

/// What is said of it then.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) server_name: SeenName,
    /// None where it is judged by its address alone.
    pub(super) judged: Option<(Judgement, TunnelLimits)>,
}

/// What was said of a connection, for the record.
#[derive(Clone, Debug, Default)]
pub(super) struct Judgement {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) destination: Option<Destination>,
    pub(super) rule: Option<Origin>,
    pub(super) would_deny: Option<Origin>,
    /// The rule is known when the server name is.
    pub(super) awaits_server_name: bool,
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

    /// How many connections rules allowed.
    pub(super) fn opened(&self) -> u64 {
        self.open.opened()
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
                match judge_again(egress, &tunnel) {
                    Some((Said::Verdict(verdict), _)) if verdict.verdict == Verdict::Deny => {
                        revoked.push((tunnel, verdict.rule))
                    }
                    Some((Said::Verdict(verdict), _)) => {
                        self.open.allowed_by(number, verdict.rule.as_ref().map(key))
                    }
                    Some((Said::ByServerName, _)) | None => {}
                }
            }
            drop(rules);
            for (tunnel, rule) in revoked {
                end(&tunnel, rule);
            }
        }
    }

    /// Judges a connection by the server name that its client asks for, where a rule asks too. What is refused ends.
    pub(super) fn name_seen(&self, permit: &Permit, server_name: SeenName) -> Named {
        let mut rules = lock(&self.rules);
        // From now on a change of the rules is about this name.
        let before = permit.named(server_name.clone());
        let was_awaited = before == Some(ServerNameState::Awaited);
        let judged = match (&mut *rules, permit.tunnel()) {
            (Rules::InForce(egress), Some(tunnel)) if was_awaited || egress.asks_for_server_names() => {
                judge_again(egress, &tunnel).map(|(said, judgement)| (tunnel, said, judgement))
            }
            _ => None,
        };
        let (refused, judged) = match judged {
            Some((tunnel, said, judgement)) => (
                admit_named(permit, &tunnel, &said, &server_name),
                Some((judgement, said.limits())),
            ),
            None if was_awaited => {
                let text = format!("egress denied: no rules are in force ({server_name})");
                (Some(Revoked { text, rule: None }), None)
            }
            None => (None, None),
        };
        drop(rules);
        if let Some(revoked) = refused {
            tracing::info!("{}", revoked.text);
            permit.revocation().revoke(revoked);
        }
        Named { server_name, judged }
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
        let Some((said, judgement)) = judge(egress, selection, name.as_ref(), (&addresses, port), None)
        else {
            return Err(denied("egress denied: the name has no address".to_owned()));
        };
        if let Said::Verdict(verdict) = &said {
            count_decision(selection, verdict);
        }
        let rule = judgement.rule.as_ref().map(words).unwrap_or_default();
        let (allowed, early) = match said {
            Said::ByServerName => (Allowed::ByServerName, Early::ByServerName),
            Said::Verdict(verdict) if verdict.verdict == Verdict::Deny => {
                let text = format!("egress denied by {rule}: {selection} -> {address}");
                return Err((Refusal::Denied(text), judgement));
            }
            Said::Verdict(verdict) => {
                let rule = verdict.rule.as_ref().map(key);
                let allowed = Allowed::By(rule, verdict.limits.connections);
                (allowed, Early::Allowed(verdict.limits))
            }
        };
        // Before other rules are in force: who is allowed by these is judged by those, too.
        let to = (addresses.clone(), port);
        let permit = self.open.add(selection, name.clone(), to, allowed);
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
                verdict: early,
                permit: Some(permit),
            }),
            None => {
                let most = early.limits().connections.unwrap_or_default();
                let text =
                    format!("egress denied by {rule}: {most} connections are open: {selection} -> {address}");
                Err((Refusal::Denied(text), judgement))
            }
        }
    }
}

/// What is said of a connection.
enum Said {
    Verdict(DialVerdict),
    /// Nothing before its server name is known.
    ByServerName,
}

/// Counts it for the rule that allows it; else why it is refused.
fn admit_named(permit: &Permit, tunnel: &OpenTunnel, said: &Said, name: &SeenName) -> Option<Revoked> {
    let to = format!("{} -> {} ({name})", tunnel.selection, tunnel.destination());
    let Said::Verdict(verdict) = said else {
        let text = format!("egress denied: {to}");
        return Some(Revoked { text, rule: None });
    };
    count_decision(tunnel.selection, verdict);
    let (rule, by) = (
        &verdict.rule,
        verdict.rule.as_ref().map(words).unwrap_or_default(),
    );
    let text = if verdict.verdict == Verdict::Deny {
        format!("egress denied by {by}: {to}")
    } else if permit.moved_to(rule.as_ref().map(key), verdict.limits.connections) {
        return None;
    } else {
        let most = verdict.limits.connections.unwrap_or_default();
        format!("egress denied by {by}: {most} connections are open: {to}")
    };
    let rule = rule.clone();
    Some(Revoked { text, rule })
}

impl Said {
    fn limits(&self) -> TunnelLimits {
        match self {
            Self::Verdict(verdict) => verdict.limits,
            Self::ByServerName => TunnelLimits::default(),
        }
    }

    fn is_denied(&self) -> bool {
        matches!(self, Self::Verdict(verdict) if verdict.verdict == Verdict::Deny)
    }

    /// How much it tells beside others about the same name.
    fn weight(&self) -> u8 {
        match self {
            Self::Verdict(verdict) if verdict.verdict == Verdict::Deny => 3,
            Self::ByServerName => 2,
            Self::Verdict(verdict) => u8::from(verdict.would_deny.is_some()),
        }
    }
}

/// The verdict on an open connection by what is known of it now.
fn judge_again(egress: &mut ApiServerEgress, tunnel: &OpenTunnel) -> Option<(Said, Judgement)> {
    let judge = |egress: &mut ApiServerEgress, server_name| {
        let to = (tunnel.addresses.as_slice(), tunnel.port);
        judge(egress, tunnel.selection, tunnel.name.as_ref(), to, server_name)
    };
    match &tunnel.server_name {
        ServerNameState::Seen(name) => judge(egress, Some(&name.known())),
        ServerNameState::Awaited => judge(egress, None),
        ServerNameState::Unread => match judge(egress, None)? {
            // What passed already cannot be asked for its name.
            (Said::ByServerName, _) => judge(egress, Some(&ServerName::Unknown)),
            said => Some(said),
        },
    }
}

/// The verdict on all addresses: the first that is refused speaks for all. None where there is no address.
fn judge(
    egress: &mut ApiServerEgress,
    selection: Selection,
    name: Option<&DnsName>,
    (addresses, port): (&[IpAddr], u16),
    server_name: Option<&ServerName>,
) -> Option<(Said, Judgement)> {
    let mut chosen: Option<(Said, IpAddr)> = None;
    for &address in addresses {
        let dial = Dial {
            selection,
            name,
            address,
            port,
        };
        let said = match server_name {
            Some(server_name) => Said::Verdict(egress.decide(dial, server_name, clock::now())),
            None => match egress.decide_early(dial, clock::now()) {
                EarlyVerdict::Whatever(verdict) => Said::Verdict(verdict),
                EarlyVerdict::ByServerName => Said::ByServerName,
            },
        };
        let is_denied = said.is_denied();
        if chosen.as_ref().is_none_or(|(it, _)| it.weight() < said.weight()) {
            chosen = Some((said, address));
        }
        if is_denied {
            break;
        }
    }
    let (said, address) = chosen?;
    let (rule, would_deny) = match &said {
        Said::Verdict(verdict) => (verdict.rule.clone(), verdict.would_deny.clone()),
        Said::ByServerName => (None, None),
    };
    let judgement = Judgement {
        addresses: addresses.to_vec(),
        destination: Some(egress.destination(address)),
        rule,
        would_deny,
        awaits_server_name: matches!(said, Said::ByServerName),
    };
    Some((said, judgement))
}

fn key(rule: &Origin) -> RuleKey {
    (Arc::clone(&rule.policy), rule.rule)
}

fn end(tunnel: &OpenTunnel, rule: Option<Origin>) {
    let by = rule.as_ref().map(words).unwrap_or_default();
    let text = format!(
        "egress ended by {by}: {} -> {}",
        tunnel.selection,
        tunnel.destination()
    );
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
            verdict: Early::Allowed(TunnelLimits::default()),
            permit: None,
        }
    }
}

impl Early {
    /// What is known of the limits.
    pub(super) fn limits(self) -> TunnelLimits {
        match self {
            Self::Allowed(limits) => limits,
            Self::ByServerName => TunnelLimits::default(),
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
