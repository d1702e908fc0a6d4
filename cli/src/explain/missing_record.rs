//! What is missing where a question has no answer: mostly a record.

use egret_policies::model::{Peer, Rule};
use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;

use crate::cluster::selection::Selection;
use crate::verdict::questions::LoadedQuestions;
use crate::verdict::route::Unjudgeable;

/// What would give the question an answer, as far as anybody can say.
pub(super) fn what_to_add(
    selection: &mut Selection,
    asked: &LoadedQuestions,
    unjudgeable: &Unjudgeable,
) -> Vec<String> {
    match unjudgeable {
        Unjudgeable::NoRecord { pod, name } | Unjudgeable::ExpiredRecords { pod, name, .. } => {
            let mut add = vec![format!(
                "no answer for {name} was given to this pod that counts now; add one to the records: \
                 {{\"pod\": \"{pod}\", \"name\": \"{name}\", \"address\": \"…\", \"ttl\": 30}}"
            )];
            add.extend(admitting(selection, asked, pod, name));
            add
        }
        Unjudgeable::UnknownPod(_)
        | Unjudgeable::UnknownService(_)
        | Unjudgeable::UnknownNode(_)
        | Unjudgeable::NodeWithoutAddress(_)
        | Unjudgeable::EndedPod(_)
        | Unjudgeable::NoAddress(_)
        | Unjudgeable::LostAddress(_)
        | Unjudgeable::NoCommonFamily { .. }
        | Unjudgeable::UnknownPort(_)
        | Unjudgeable::NoEndpoints
        | Unjudgeable::IcmpToService
        | Unjudgeable::NoResolver(_) => Vec::new(),
    }
}

/// The rules that will match the addresses of such an answer, at their ports.
fn admitting(
    selection: &mut Selection,
    asked: &LoadedQuestions,
    pod: &PodKey,
    name: &DnsName,
) -> Vec<String> {
    let Some(member) = asked.cluster.member(pod).filter(|member| member.is_policed()) else {
        return Vec::new();
    };
    let policies = selection.policies_of(&member.pod);
    let mut rules: Vec<String> = policies
        .flat_map(|policy| policy.egress.rules().iter().map(move |rule| (policy, rule)))
        .filter(|(_, rule)| admits(rule, name))
        .map(|(policy, rule)| {
            let title = rule.name.as_ref().map(|name| format!(" ({name})"));
            let title = title.unwrap_or_default();
            format!("rule {}{title} of {} is about this name", rule.index, policy.id)
        })
        .collect();
    if rules.is_empty() {
        rules.push(format!("no rule for the egress of {pod} is about this name"));
    }
    rules
}

fn admits(rule: &Rule, name: &DnsName) -> bool {
    rule.peers.listed().iter().any(|peer| match peer {
        Peer::Names(patterns) => patterns.iter().any(|pattern| pattern.matches(name)),
        Peer::Pods { .. }
        | Peer::Networks(_)
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::External(_)
        | Peer::ApiServer
        | Peer::Services { .. } => false,
    })
}
