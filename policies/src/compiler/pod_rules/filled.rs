//! A policy's template, filled in for one pod. The rules of a pod consist of such parts: a change of one policy replaces
//! one part of each pod that it selects.

use std::sync::Arc;

use egret_shared::name::NamePattern;
use std::collections::BTreeSet;

use super::template::{RuleTemplate, TemplateEffect};
use super::{CompileContext, Template, push_rules};
use crate::compiler::index::LivePod;
use crate::compiler::set_use::{SetUse, SetUses};
use crate::model::Direction;
use crate::rules::Rule;

/// A template, filled in for a pod.
#[derive(Clone, Debug)]
pub(crate) struct FilledTemplate {
    /// What it is made of, kept as long as it is.
    _template: Arc<Template>,
    /// Whether it is only asked.
    pub(super) is_audit: bool,
    egress: FilledEffect,
    ingress: FilledEffect,
}

/// The effect of a policy on one direction of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FilledEffect {
    /// Nothing.
    None,
    /// Rules; where the flag is set, the annotation under which policies of the form of 2016 count.
    Rules(RuleList, bool),
    /// Rules that count under such an annotation.
    Opens(RuleList),
}

/// Rules with the sets and name patterns that they use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RuleList {
    pub(super) rules: Vec<Rule>,
    /// In the order of their names, each once.
    pub(super) uses: Vec<SetUse>,
    pub(super) patterns: Vec<Arc<BTreeSet<NamePattern>>>,
}

impl FilledTemplate {
    /// Fills a policy in.
    pub(crate) fn new(
        template: &Arc<Template>,
        pod: &LivePod<'_>,
        around: CompileContext<'_>,
        is_audit: bool,
    ) -> Self {
        let part = |direction| {
            let write = |rules| fill_rules(rules, pod, direction, around);
            match template.effect(direction) {
                TemplateEffect::None => FilledEffect::None,
                TemplateEffect::Rules(rules) => {
                    FilledEffect::Rules(write(rules), template.is_annotation(direction))
                }
                TemplateEffect::Opens(rules) => FilledEffect::Opens(write(rules)),
            }
        };
        Self {
            egress: part(Direction::Egress),
            ingress: part(Direction::Ingress),
            _template: Arc::clone(template),
            is_audit,
        }
    }

    pub(super) const fn effect(&self, direction: Direction) -> &FilledEffect {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }
}

impl FilledEffect {
    /// What counts, given whether there is an annotation; nothing is not the same as no rules.
    pub(super) const fn counting(&self, is_annotated: bool) -> Option<&RuleList> {
        match self {
            Self::Rules(written, _) => Some(written),
            Self::Opens(written) if is_annotated => Some(written),
            Self::Opens(_) | Self::None => None,
        }
    }

    pub(super) const fn is_annotation(&self) -> bool {
        matches!(self, Self::Rules(_, true))
    }
}

fn fill_rules(
    templates: &[RuleTemplate],
    pod: &LivePod<'_>,
    direction: Direction,
    around: CompileContext<'_>,
) -> RuleList {
    let (mut rules, mut uses) = (Vec::new(), SetUses::default());
    for template in templates {
        push_rules(&mut rules, pod, template, direction, around, &mut uses);
    }
    rules.shrink_to_fit();
    uses.patterns.shrink_to_fit();
    RuleList {
        rules,
        uses: uses.sets.into_values().collect(),
        patterns: uses.patterns,
    }
}
