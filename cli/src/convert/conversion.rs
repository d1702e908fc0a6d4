//! All policies at once: what cannot be carried over, names and priorities, and the result read again.

use std::collections::BTreeMap;

use egret_policies::api::manifest;
use egret_policies::api::{Object, UnknownFields};
use egret_policies::diagnostic::{Code, Diagnostic, ObjectRef, Severity};
use egret_policies::lower::{equal_priorities, lower, lower_as};
use egret_policies::model::cluster::Entity;
use egret_policies::model::{Kind, Policy, PolicyId};

use crate::manifests::objects::WrittenObjects;

use super::document::{Document, Value};
use super::form_of_2016::{self, ConvertedForm};
use super::original::{ObjectKind, OriginalObject, Source};
use super::plan::{Candidate, Plan, plan};
use super::policy::{ConvertedPolicy, SourceKind, convert};
use super::print::print;
use super::scan::scan;

/// The result for all policies.
#[derive(Debug, Default)]
pub struct Conversion {
    /// Each with whether it was in the form of 2016.
    new: Vec<(ObjectRef, bool, Vec<NewObject>)>,
    /// All policies afterwards.
    pub policies: Vec<Policy>,
    /// What should be known.
    pub notes: Vec<String>,
}

/// A new object.
#[derive(Debug)]
pub struct NewObject {
    /// Its value.
    pub root: Value,
    /// The same as text.
    pub text: String,
}

impl Conversion {
    /// How many objects became how many, of those in the form of 2016 or of the others.
    #[must_use]
    pub fn counts(&self, is_of_2016: bool) -> (usize, usize) {
        let those = self
            .new
            .iter()
            .filter(|(_, was_of_2016, _)| *was_of_2016 == is_of_2016);
        those.fold((0, 0), |(old, all), (_, _, new)| (old + 1, all + new.len()))
    }

    /// What a policy became.
    pub fn of(&self, reference: &ObjectRef) -> impl Iterator<Item = &NewObject> {
        let one = self.new.iter().find(|(own, _, _)| own == reference);
        one.into_iter().flat_map(|(_, _, new)| new)
    }

    /// All that is new.
    pub fn all(&self) -> impl Iterator<Item = &NewObject> {
        self.new.iter().flat_map(|(_, _, new)| new)
    }
}

/// A policy while it is converted.
struct PolicyInProgress<'a> {
    found: &'a OriginalObject,
    reference: &'a ObjectRef,
    /// For messages: what and where it is.
    place: String,
    /// What it means now; a Namespace may mean nothing.
    policy: Option<Policy>,
    converted: Converted,
}

enum Converted {
    /// To ClusterNetworkPolicies, whose names and priorities depend on all others.
    Cluster(ConvertedPolicy),
    /// To a NetworkPolicy.
    Of2016(ConvertedForm),
}

/// Carries everything over.
///
/// # Errors
/// What cannot be, each with the reason.
pub fn convert_all(
    found: &[OriginalObject],
    objects: &WrittenObjects,
    before: &[Policy],
    reading: UnknownFields,
) -> Result<Conversion, Vec<String>> {
    let mut moving = Vec::new();
    let mut refused = Vec::new();
    for one in found {
        let ObjectKind::Policy { reference, source } = &one.origin else {
            continue;
        };
        match start(one, reference, *source, (objects, before), reading) {
            Ok(policy) => moving.push(policy),
            Err(reasons) => refused.extend(reasons),
        }
    }
    if refused.is_empty() {
        refused.extend(missed(before, &moving));
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    let ids: Vec<&PolicyId> = moving.iter().filter_map(PolicyInProgress::id).collect();
    let stay: Vec<Policy> = before
        .iter()
        .filter(|policy| !ids.contains(&&policy.id))
        .cloned()
        .collect();
    let candidates: Vec<Candidate> = moving.iter().filter_map(PolicyInProgress::candidate).collect();
    let (mut plans, staying) = (plan(&candidates, &stay), stay.len());
    let mut carried = Conversion {
        policies: stay,
        ..Conversion::default()
    };
    for one in &moving {
        match one.finish(&mut plans, &mut carried) {
            Ok(()) => {}
            Err(reason) => refused.push(format!("{}: {reason}", one.place)),
        }
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    let new = carried.policies.get(staying..).unwrap_or_default();
    carried.notes.extend(ties(&carried.policies, new));
    Ok(carried)
}

/// Policies that were understood, but are not found in the text: nobody would see that they are not converted.
fn missed(before: &[Policy], moving: &[PolicyInProgress<'_>]) -> Vec<String> {
    let is_old = |policy: &&Policy| match policy.id.kind {
        Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy | Kind::LegacyNetworkPolicy => true,
        Kind::ClusterNetworkPolicy
        | Kind::ClusterEgressFirewall
        | Kind::NetworkPolicy
        | Kind::AuditedApiServerEgressPolicy
        | Kind::ApiServerEgressPolicy => false,
    };
    let is_moving = |policy: &&Policy| moving.iter().any(|one| one.id() == Some(&policy.id));
    let missed = before.iter().filter(is_old).filter(|policy| !is_moving(policy));
    missed
        .map(|policy| format!("{}: its text cannot be taken apart", policy.id))
        .collect()
}

/// Converts what was understood; refuses what is enforced closed, for which there are no words.
fn start<'a>(
    found: &'a OriginalObject,
    reference: &'a ObjectRef,
    source: Source,
    (objects, before): (&WrittenObjects, &[Policy]),
    reading: UnknownFields,
) -> Result<PolicyInProgress<'a>, Vec<String>> {
    let place = match objects.place(reference, "") {
        (Some(file), Some(line)) => format!("{reference} ({file}:{line})"),
        (Some(_) | None, _) => reference.to_string(),
    };
    let object = objects
        .get(reference)
        .ok_or_else(|| vec![format!("{place}: it cannot be found again")])?;
    let lowered = lower_as(object, reading);
    let is_well_stored = || {
        let stored = lower_as(object, UnknownFields::AsStored);
        !stored
            .diagnostics
            .iter()
            .any(|diagnostic| closes(diagnostic, source))
    };
    let reasons: Vec<String> = lowered
        .diagnostics
        .iter()
        .filter(|diagnostic| closes(diagnostic, source))
        .map(|diagnostic| reason(&place, diagnostic, hint(diagnostic, reading, is_well_stored)))
        .collect();
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let policy = policy(lowered.entities);
    let (root, prune) = (found.document.root.clone(), reading == UnknownFields::AsStored);
    let converted = match (source, &policy) {
        (Source::Namespace, isolated) => form_of_2016::namespace(root, isolated.as_ref(), before)
            .map(Converted::Of2016)
            .map_err(|reason| vec![format!("{place}: {reason}")])?,
        (Source::Cluster(_) | Source::Of2016, None) => {
            return Err(vec![format!("{place}: it is no policy")]);
        }
        (Source::Of2016, Some(policy)) => {
            Converted::Of2016(form_of_2016::policy(root, policy, before, prune))
        }
        (Source::Cluster(source), Some(_)) => Converted::Cluster(convert(root, source, prune)),
    };
    Ok(PolicyInProgress {
        converted,
        found,
        reference,
        place,
        policy,
    })
}

/// Whether something is enforced that was not written. A name or protocol of v1alpha1 that is none matches nothing,
/// which can be carried over.
fn closes(diagnostic: &Diagnostic, source: Source) -> bool {
    let matches_nothing = matches!(source, Source::Cluster(_))
        && matches!(diagnostic.code, Code::InvalidDomain | Code::InvalidProtocol);
    diagnostic.severity == Severity::Error && !matches_nothing
}

/// What else to do than to correct it.
fn hint(diagnostic: &Diagnostic, reading: UnknownFields, is_well_stored: impl Fn() -> bool) -> &'static str {
    match (diagnostic.code, reading) {
        (Code::UnknownField | Code::DuplicateField, UnknownFields::AsWritten) if is_well_stored() => {
            " (--as-stored reads and converts it as an API server would have stored it)"
        }
        (Code::UnknownField | Code::DuplicateField, UnknownFields::AsWritten) => {
            " (--as-stored does not help: without the field an API server would not have stored the object)"
        }
        (Code::FieldMissing | Code::UnknownAlternative, UnknownFields::AsStored) => {
            " (no API server has such an object: correct it, or take it out of the manifests)"
        }
        _ => "",
    }
}

fn reason(place: &str, diagnostic: &Diagnostic, hint: &str) -> String {
    let Diagnostic {
        code,
        field,
        found,
        accepted,
        enforced,
        ..
    } = diagnostic;
    let field = if field.is_empty() { "the object" } else { field };
    format!(
        "{place}: {code} {field}: found {found}; accepted: {accepted}; enforced until then: {enforced}{hint}"
    )
}

fn policy(entities: Vec<Entity>) -> Option<Policy> {
    entities.into_iter().find_map(|entity| match entity {
        Entity::Policy(policy) => Some(policy),
        Entity::Namespace(_)
        | Entity::Pod(_)
        | Entity::Node(_)
        | Entity::Service(_)
        | Entity::EndpointSlice(_)
        | Entity::NodeAddressReport(_)
        | Entity::ApiServerAddresses(_) => None,
    })
}

impl PolicyInProgress<'_> {
    fn id(&self) -> Option<&PolicyId> {
        self.policy.as_ref().map(|policy| &policy.id)
    }

    fn candidate(&self) -> Option<Candidate> {
        match (&self.converted, &self.policy) {
            (Converted::Cluster(converted), Some(policy)) => Some(Candidate {
                id: policy.id.clone(),
                priority: policy.rank.priority,
                parts: converted.parts(),
            }),
            (Converted::Cluster(_), None) | (Converted::Of2016(_), _) => None,
        }
    }

    fn finish(
        &self,
        plans: &mut BTreeMap<PolicyId, Result<Plan, String>>,
        carried: &mut Conversion,
    ) -> Result<(), String> {
        match &self.converted {
            Converted::Of2016(ConvertedForm { roots, notes }) => {
                self.keep(roots.clone(), notes.iter(), carried)
            }
            Converted::Cluster(converted) => {
                let plan = self.id().and_then(|id| plans.remove(id));
                let plan = plan.ok_or("there is another policy of this name")??;
                let notes = converted.notes.iter().chain(&plan.notes);
                self.keep(converted.cut(&plan.parts), notes, carried)
            }
        }
    }

    fn keep<'n>(
        &self,
        roots: Vec<Value>,
        notes: impl Iterator<Item = &'n String>,
        carried: &mut Conversion,
    ) -> Result<(), String> {
        let source = match &self.converted {
            Converted::Cluster(_) => Source::Cluster(SourceKind::Admin),
            Converted::Of2016(_) => Source::Of2016,
        };
        let mut new: Vec<NewObject> = Vec::new();
        let count = roots.len();
        for (index, root) in roots.into_iter().enumerate() {
            let is_last = index + 1 == count;
            let below = if is_last {
                self.found.document.below.clone()
            } else {
                Vec::new()
            };
            let text = print(&Document {
                root: root.clone(),
                below,
            });
            carried.policies.extend(read_again(&text, source)?);
            new.push(NewObject { root, text });
        }
        for note in notes {
            carried.notes.push(format!("{}: {note}", self.place));
        }
        // Of an object that is left out nobody misses comments.
        let lost = if new.is_empty() {
            Vec::new()
        } else {
            self.lost(&new)
        };
        if !lost.is_empty() {
            carried.notes.push(format!(
                "{}: comments that are left out: {}",
                self.place,
                lost.join(" ")
            ));
        }
        let was_of_2016 = source == Source::Of2016;
        carried.new.push((self.reference.clone(), was_of_2016, new));
        Ok(())
    }

    /// Comments of the object that are in none of the new ones.
    fn lost(&self, new: &[NewObject]) -> Vec<String> {
        let scanned = new.iter().filter_map(|new| scan(&new.text));
        let mut kept: BTreeMap<String, usize> = BTreeMap::new();
        for comment in scanned.flat_map(|scanned| scanned.comments.into_values()) {
            *kept.entry(comment.trim_end().to_owned()).or_default() += 1;
        }
        let written = self.found.document.root.comments();
        let mut is_lost = |comment: &String| match kept.get_mut(comment.trim_end()) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            Some(_) | None => true,
        };
        let lost = written.into_iter().filter(|comment| is_lost(comment));
        lost.chain(self.found.lost.clone()).collect()
    }
}

/// What is printed is what is compared: it is read from the text. A Namespace is no policy.
fn read_again(text: &str, source: Source) -> Result<Option<Policy>, String> {
    let mut manifest = manifest::read(text, "the result");
    if let Some(problem) = manifest.problems.first() {
        return Err(format!("what came out cannot be read: {problem}"));
    }
    let object: Option<Object> = manifest.documents.pop().map(|document| document.object);
    let lowered = object.as_ref().map(lower).ok_or("nothing came out")?;
    let is_wrong = |diagnostic: &&Diagnostic| closes(diagnostic, source);
    if let Some(diagnostic) = lowered.diagnostics.iter().find(is_wrong) {
        return Err(reason("what came out cannot be understood", diagnostic, ""));
    }
    let is_namespace = matches!(lowered.entities.as_slice(), [Entity::Namespace(_)]);
    match policy(lowered.entities) {
        None if !is_namespace => Err("no policy came out".to_owned()),
        policy => Ok(policy),
    }
}

/// New objects that share their priority with another: no API says which of them goes first.
fn ties(after: &[Policy], new: &[Policy]) -> Vec<String> {
    let new: Vec<ObjectRef> = new.iter().map(|policy| ObjectRef::from(&policy.id)).collect();
    let is_new = |diagnostic: &Diagnostic| new.contains(&diagnostic.object);
    let tied = equal_priorities(after).into_iter().filter(is_new);
    tied.map(|diagnostic| {
        let Diagnostic {
            object,
            code,
            found,
            enforced,
            ..
        } = diagnostic;
        format!("{object}: {code} priority {found}: here {enforced}, others may ask in another order")
    })
    .collect()
}
