//! Whether a connection may be asked for: by the policies in force, before any agent is chosen. A name is resolved here, once:
//! each of its addresses is judged, and one of them is what an agent dials.

use std::collections::HashMap;
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

use super::policy::{Policies, PolicySource, PolicyTexts, UnusablePolicies};
use crate::core::{Refusal, host_of};

/// How often the files are looked at.
const POLL: Duration = Duration::from_secs(1);
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);

/// Judges connections.
#[derive(Debug)]
pub(super) struct Gate {
    source: PolicySource,
    rules: Mutex<Rules>,
    /// Open connections by the rule that allowed them.
    open: Mutex<HashMap<RuleKey, u32>>,
}

#[derive(Debug)]
enum Rules {
    InForce(Box<ApiServerEgress>),
    /// At the start nothing could be understood.
    Closed(String),
}

type RuleKey = (Arc<str>, usize);

/// A connection that may be made.
#[derive(Debug)]
pub(super) struct Admitted {
    /// What agents may dial, in this order.
    pub(super) targets: Vec<String>,
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

/// One of the connections that a rule allows; dropped, another one may be made.
#[derive(Debug)]
pub(super) struct Permit {
    gate: Arc<Gate>,
    key: RuleKey,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = lock(&self.gate.open);
        if let Some(count) = open.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

impl Gate {
    /// Reads the policies. What cannot be understood refuses.
    pub(super) fn start(source: PolicySource) -> Arc<Self> {
        let read = source.read();
        let (texts, compiled) = match read {
            Ok(texts) => {
                let compiled = source.compile(&texts);
                (Some(texts), compiled)
            }
            Err(error) => (None, Err(error)),
        };
        let rules = match compiled {
            Ok(policies) => {
                for error in &policies.errors {
                    tracing::error!("a policy is not understood: {error}");
                }
                in_force(policies)
            }
            Err(error) => {
                tracing::error!(%error, "no policy can be read: every connection is refused");
                gauge!("egret_konnectivity_policies").set(0.0);
                Rules::Closed(error.to_string())
            }
        };
        let gate = Arc::new(Self {
            source,
            rules: Mutex::new(rules),
            open: Mutex::default(),
        });
        if gate.source.path().is_some() {
            let watched = Arc::clone(&gate);
            // Thousands of rules take longer to compile than a connection may wait for a runtime's thread.
            std::thread::spawn(move || watched.watch(texts));
        }
        gate
    }

    fn watch(&self, mut known: Option<PolicyTexts>) {
        let mut told = String::new();
        loop {
            std::thread::sleep(POLL);
            match self.reload(known.as_ref()) {
                Ok(None) => told.clear(),
                Ok(Some(texts)) => known = Some(texts),
                Err((texts, error)) => {
                    known = texts.or(known);
                    let text = error.to_string();
                    if told != text {
                        tracing::error!(error = text, "policies are not taken: what was in force stays");
                        counter!("egret_konnectivity_policy_reload_failures_total").increment(1);
                        told = text;
                    }
                }
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "said in one place")]
    fn reload(
        &self,
        known: Option<&PolicyTexts>,
    ) -> Result<Option<PolicyTexts>, (Option<PolicyTexts>, UnusablePolicies)> {
        let texts = self.source.read().map_err(|error| (None, error))?;
        if known == Some(&texts) {
            return Ok(None);
        }
        match self.source.compile(&texts) {
            Ok(policies) if policies.errors.is_empty() => {
                let rules = in_force(policies);
                *lock(&self.rules) = rules;
                Ok(Some(texts))
            }
            Ok(policies) => Err((Some(texts), UnusablePolicies::Content(policies.errors))),
            Err(error) => Err((Some(texts), error)),
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
            Err(_name) if self.source.path().is_none() => return Ok(Admitted::as_asked(address)),
            Err(_name) => {
                let name = host.parse::<DnsName>();
                let name = name.map_err(|error| denied(format!("{host:?} is no name: {error}")))?;
                let refusal = |text| (Refusal::Target(text), Judgement::default());
                (Some(name), resolve(host, port).await.map_err(refusal)?)
            }
        };
        let judged = self.judge(selection, name.as_ref(), &addresses, port);
        let (verdict, judgement) = judged.map_err(denied)?;
        count_decision(selection, &verdict);
        if verdict.verdict == Verdict::Deny {
            let rule = verdict.rule.as_ref().map(words).unwrap_or_default();
            let text = format!("egress denied by {rule}: {selection} -> {address}");
            return Err((Refusal::Denied(text), judgement));
        }
        match self.permit(&verdict) {
            Ok(permit) => Ok(Admitted {
                targets: match name {
                    None => vec![address.to_owned()],
                    Some(_) => addresses
                        .iter()
                        .map(|ip| SocketAddr::new(*ip, port).to_string())
                        .collect(),
                },
                judgement,
                limits: verdict.limits,
                permit,
            }),
            Err(text) => Err((
                Refusal::Denied(format!("{text}: {selection} -> {address}")),
                judgement,
            )),
        }
    }

    /// The verdict on all addresses: the first that is refused speaks for all.
    fn judge(
        &self,
        selection: Selection,
        name: Option<&DnsName>,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<(DialVerdict, Judgement), String> {
        let mut rules = lock(&self.rules);
        let egress = match &mut *rules {
            Rules::InForce(egress) => egress,
            Rules::Closed(reason) => return Err(format!("egress denied, no policy can be read: {reason}")),
        };
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
            let tells_more = chosen.as_ref().is_some_and(|(it, _)| it.would_deny.is_none())
                && verdict.would_deny.is_some();
            if is_denied || is_first || tells_more {
                chosen = Some((verdict, address));
            }
            if is_denied {
                break;
            }
        }
        let Some((verdict, address)) = chosen else {
            return Err("egress denied: the name has no address".to_owned());
        };
        let judgement = Judgement {
            addresses: addresses.to_vec(),
            destination: Some(egress.destination(address)),
            rule: verdict.rule.clone(),
            would_deny: verdict.would_deny.clone(),
        };
        Ok((verdict, judgement))
    }

    fn permit(self: &Arc<Self>, verdict: &DialVerdict) -> Result<Option<Permit>, String> {
        let (Some(rule), Some(most)) = (&verdict.rule, verdict.limits.connections) else {
            return Ok(None);
        };
        let key = (Arc::clone(&rule.policy), rule.rule);
        let mut open = lock(&self.open);
        let count = open.entry(key.clone()).or_default();
        if *count >= most {
            return Err(format!(
                "egress denied by {}: {most} connections are open",
                words(rule)
            ));
        }
        *count += 1;
        Ok(Some(Permit {
            gate: Arc::clone(self),
            key,
        }))
    }
}

impl Admitted {
    fn as_asked(address: &str) -> Self {
        Self {
            targets: vec![address.to_owned()],
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

fn in_force(policies: Policies) -> Rules {
    for warning in &policies.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(policies = policies.count, "policies are in force");
    gauge!("egret_konnectivity_policies").set(crate::admin::count(policies.count));
    Rules::InForce(Box::new(policies.egress))
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
