//! The node's own rules: what clients outside meet that a Service leads on.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Direction, Exposure, Labels, Rank};
use crate::rules::{DirectionRules, NodeRules, PeerMatch, PortMatch, Rule, SetId};

use super::pod_rules::{PeerTemplate, PortTemplate, RuleTemplate, Template, TemplateEffect, in_lists};
use super::set_content::SetContent;
use super::set_use::{SetUse, SetUses};

/// What the policies come to for the node, whichever pods it has.
#[derive(Debug)]
pub(crate) struct CompiledNode {
    pub(crate) rules: NodeRules,
    pub(crate) uses: BTreeMap<SetId, SetUse>,
}

/// What the node asks about clients outside that a Service leads on: the same lists, of those objects that say so.
/// The others do not count at all, with what they allow as with what they deny. Who is asked for plays no part: the
/// subject of every object is all pods, and nobody is one here.
pub(crate) fn compile_exposed(
    templates: &[(Rank, Arc<Template>)],
    own_node: Option<&Labels>,
) -> CompiledNode {
    let mut uses = SetUses::default();
    let mut groups: BTreeMap<u32, Vec<Vec<Rule>>> = BTreeMap::new();
    for (rank, template) in templates {
        let (Exposure::Reject, TemplateEffect::Rules(effect)) =
            (template.exposure(), template.effect(Direction::Egress))
        else {
            continue;
        };
        let rules = effect
            .iter()
            .filter_map(|template| exposed_rule(template, own_node, &mut uses));
        groups.entry(rank.priority).or_default().push(rules.collect());
    }
    CompiledNode {
        rules: NodeRules {
            exposed: DirectionRules::of(in_lists(groups)),
        },
        uses: uses.sets,
    }
}

/// Nobody outside was told anything by us, so a rule about names has nothing to match: it is an allow, always.
fn exposed_rule(template: &RuleTemplate, own_node: Option<&Labels>, uses: &mut SetUses) -> Option<Rule> {
    let port = match &template.port {
        PortTemplate::Any => PortMatch::Any,
        PortTemplate::Range(transport, range) => PortMatch::Range(*transport, *range),
        PortTemplate::Icmp => PortMatch::Icmp,
        PortTemplate::OfSubject { .. } => return None,
    };
    let peer = match &template.peer {
        PeerTemplate::Any => PeerMatch::Any,
        // dnsd stands in where pods ask.
        PeerTemplate::Set(set) if matches!(set.content, SetContent::DnsStandIn { .. }) => return None,
        PeerTemplate::Set(set) => uses.add(set, template.action, Direction::Egress),
        PeerTemplate::OwnNode(selector) => match own_node {
            Some(labels) if selector.matches(labels) => PeerMatch::OwnNode,
            Some(_) | None => return None,
        },
        PeerTemplate::Names(_) => return None,
    };
    let except = template.except.as_ref();
    Some(Rule {
        action: template.action,
        peer,
        except: except.map(|set| uses.add_exception(set, template.action, Direction::Egress)),
        port,
        origin: template.origin.clone(),
        attribution: None,
    })
}
