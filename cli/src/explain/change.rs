//! What to change for the other verdict.

use egret_policies::model::api_server::Selection;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::OWN_NODE;
use egret_shared::name::DnsName;
use egret_shared::net::IpNet;

use crate::verdict::row::VerdictWord;

use super::report::{PathEnd, PolicyStep, RuleOutcome, RuleStep, SuggestedChange, TierOutcome, TierStep};
use super::snippet::{PolicyDialect, cluster_rule, isolation, network_policy_rule};
use super::viewpoint::{Viewpoint, protocol_words};

/// More hints than this nobody reads.
const SHOWN: usize = 3;

/// What to change: where the connection is denied every side that denies it, else one of them.
pub(super) fn change(
    verdict: VerdictWord,
    sides: [(&PathEnd, Option<&Viewpoint<'_>>); 2],
    name: Option<&DnsName>,
) -> SuggestedChange {
    let is_denied = verdict == VerdictWord::Deny;
    let mut how = Vec::new();
    for (side, view) in sides {
        let Some(view) = view else {
            how.extend(Some(side).filter(|_| is_denied).and_then(ways_to_let_in));
            continue;
        };
        match (is_denied, side.end.verdict) {
            (true, VerdictWord::Deny) => how.extend(ways_to_allow(view, side, name)),
            (false, VerdictWord::Allow) => how.extend(ways_to_deny(view, side)),
            (true, VerdictWord::Allow | VerdictWord::Error)
            | (false, VerdictWord::Deny | VerdictWord::Error) => {}
        }
    }
    if how.is_empty() {
        how.push("no policy can change it: none is asked about either end".to_owned());
    }
    SuggestedChange {
        to: if is_denied {
            VerdictWord::Allow
        } else {
            VerdictWord::Deny
        },
        how,
    }
}

/// A client outside that a ClusterEgressFirewall refuses.
fn ways_to_let_in(side: &PathEnd) -> Option<String> {
    let (VerdictWord::Deny, Some(policy), Some(rule)) = (side.end.verdict, &side.end.policy, side.end.rule)
    else {
        return None;
    };
    Some(format!(
        "write services: {{exposure: Ignore}} in {policy}, which lets in whoever a Service leads there from outside, or put an Allow rule before rule {rule}"
    ))
}

fn about(view: &Viewpoint<'_>) -> String {
    format!("{} of {}", view.direction.word(), view.subject.pod.key)
}

fn deciding(side: &PathEnd) -> Option<&TierStep> {
    side.tiers
        .iter()
        .find(|step| step.outcome == TierOutcome::Decides)
}

/// The rule that decides; none where an isolation does.
fn matching<'a>(side: &PathEnd, step: &'a TierStep) -> Option<(&'a PolicyStep, &'a RuleStep)> {
    rules(step).find(|(policy, rule)| {
        rule.result == RuleOutcome::Match
            && side.end.policy.as_ref() == Some(&policy.policy)
            && side.end.rule == Some(rule.rule)
    })
}

fn rules(step: &TierStep) -> impl Iterator<Item = (&PolicyStep, &RuleStep)> {
    let with_policy = |policy| move |rule| (policy, rule);
    step.policies
        .iter()
        .flat_map(move |policy: &PolicyStep| policy.rules.iter().map(with_policy(policy)))
}

fn ways_to_allow(view: &Viewpoint<'_>, side: &PathEnd, name: Option<&DnsName>) -> Vec<String> {
    let Some(step) = deciding(side) else {
        return Vec::new();
    };
    let about = about(view);
    let mut ways = vec![match matching(side, step) {
        Some((policy, rule)) => format!("{about}: {}", go_before(view, step.tier, policy, rule, name)),
        None => format!(
            "{about}: add to {} the {} rule {}",
            one_of(step),
            view.direction.word(),
            network_policy_rule(view)
        ),
    }];
    ways.extend(near_misses(view, step).take(SHOWN).map(|way| format!("or {way}")));
    ways
}

fn go_before(
    view: &Viewpoint<'_>,
    tier: Tier,
    policy: &PolicyStep,
    rule: &RuleStep,
    name: Option<&DnsName>,
) -> String {
    let (title, policy) = (rule.title(), &policy.policy);
    let written = dialect(tier, policy).and_then(|dialect| cluster_rule(view, dialect, true, name));
    match written {
        Some(written) => format!(
            "put before {title} of {policy} the rule {written}{}",
            match tier {
                Tier::ClusterEgressFirewall => "; the tiers after it decide then",
                Tier::Admin | Tier::NetworkPolicy | Tier::Baseline => "",
            }
        ),
        None => format!(
            "take {} out of {title} of {policy}{}",
            view.peer_name(),
            what_follows(tier)
        ),
    }
}

fn dialect(tier: Tier, policy: &str) -> Option<PolicyDialect> {
    match tier {
        Tier::ClusterEgressFirewall => Some(PolicyDialect::Firewall),
        Tier::NetworkPolicy => None,
        // Its rules are written otherwise.
        Tier::Admin | Tier::Baseline if policy.starts_with("APIServerEgressPolicy/") => None,
        Tier::Admin | Tier::Baseline if policy.starts_with("ClusterNetworkPolicy/") => {
            Some(PolicyDialect::Cluster)
        }
        Tier::Admin | Tier::Baseline => Some(PolicyDialect::Admin),
    }
}

fn one_of(step: &TierStep) -> String {
    let policies: Vec<&str> = step
        .policies
        .iter()
        .map(|policy| policy.policy.as_str())
        .filter(|policy| *policy != OWN_NODE)
        .collect();
    match policies.as_slice() {
        [only] => (*only).to_owned(),
        several => {
            let shown: Vec<&str> = several.iter().take(SHOWN).copied().collect();
            format!("one of {}", shown.join(", "))
        }
    }
}

/// Rules that would have allowed it but for one half.
fn near_misses<'a>(view: &'a Viewpoint<'_>, step: &'a TierStep) -> impl Iterator<Item = String> + 'a {
    rules(step).filter_map(|(policy, rule)| {
        let (Some(peer), Some(port)) = (&rule.peer, &rule.port) else {
            return None;
        };
        let title = format!("{} of {}", rule.title(), policy.policy);
        match (rule.action, rule.result, peer.matches, port.matches, &rule.names) {
            (Action::Allow | Action::Pass, RuleOutcome::NoMatch, true, false, _) => Some(format!(
                "let {title} have {}: its peer matches",
                protocol_words(view.protocol)
            )),
            (Action::Allow | Action::Pass, RuleOutcome::NoMatch, false, true, Some(names))
                if view.peer.is_none() =>
            {
                Some(format!(
                    "have the pod ask for {names} and be told {}: then {title} matches",
                    view.address
                ))
            }
            (Action::Allow | Action::Pass, RuleOutcome::NoMatch, false, true, None | Some(_)) => {
                Some(format!("let {title} have {}: its port matches", view.peer_name()))
            }
            (Action::Allow | Action::Deny | Action::Pass, _, _, _, _) => None,
        }
    })
}

fn ways_to_deny(view: &Viewpoint<'_>, side: &PathEnd) -> Vec<String> {
    if Selection::is_one(&view.subject.pod.key) {
        let rule = format!(
            "{{action: Deny, to: [{{networks: [{}]}}]}}",
            IpNet::from(view.address)
        );
        return vec![format!(
            "{}: have an APIServerEgressPolicy before it with the rule {rule}",
            about(view)
        )];
    }
    let about = about(view);
    let Some(step) = deciding(side) else {
        if side.end.tier == "exempt" {
            return Vec::new();
        }
        return vec![format!(
            "{about}: isolate the pod by a NetworkPolicy of {} with the spec {}",
            view.subject.pod.key.namespace(),
            isolation(view)
        )];
    };
    let mut ways = Vec::new();
    if let Some((policy, rule)) = matching(side, step) {
        let others = others(step, rule);
        ways.push(format!(
            "{about}: take {} out of {} of {}{others}{}",
            view.peer_name(),
            rule.title(),
            policy.policy,
            what_follows(step.tier),
        ));
    }
    if let Some(rule) = cluster_rule(view, PolicyDialect::Cluster, false, None) {
        let place = match (step.tier, matching(side, step)) {
            (Tier::Admin, Some((policy, _))) => format!("stands before {}", policy.policy),
            (Tier::ClusterEgressFirewall | Tier::NetworkPolicy | Tier::Baseline, _) | (Tier::Admin, None) => {
                "selects the pod".to_owned()
            }
        };
        let start = if ways.is_empty() {
            format!("{about}: ")
        } else {
            "or ".to_owned()
        };
        ways.push(format!(
            "{start}have in a ClusterNetworkPolicy of tier Admin that {place} the {} rule {rule}",
            view.direction.word()
        ));
    }
    ways
}

/// Only a NetworkPolicy denies what it does not allow.
const fn what_follows(tier: Tier) -> &'static str {
    match tier {
        Tier::NetworkPolicy => "",
        Tier::ClusterEgressFirewall | Tier::Admin | Tier::Baseline => {
            "; the rules and tiers after it decide then"
        }
    }
}

/// The rules of the tier that would allow it if the first did not.
fn others(step: &TierStep, first: &RuleStep) -> String {
    let titles: Vec<String> = rules(step)
        .filter(|(_, rule)| rule.would_match && rule.action == Action::Allow && !std::ptr::eq(*rule, first))
        .map(|(policy, rule)| format!("{} of {}", rule.title(), policy.policy))
        .collect();
    if titles.is_empty() {
        return String::new();
    }
    format!(", and out of {}", titles.join(", "))
}
