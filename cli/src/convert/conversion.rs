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
use super::original::{ObjectKind, OriginalObject};
use super::plan::{Candidate, Plan, plan};
use super::policy::{ConvertedPolicy, SourceKind, convert};
use super::print::print;
use super::scan::scan;

/// The result for all policies.
#[derive(Debug, Default)]
pub struct Conversion {
    new: Vec<(ObjectRef, Vec<NewObject>)>,
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
    /// How many policies were converted.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.new.len()
    }

    /// What a policy became.
    pub fn of(&self, reference: &ObjectRef) -> impl Iterator<Item = &NewObject> {
        let one = self.new.iter().find(|(own, _)| own == reference);
        one.into_iter().flat_map(|(_, new)| new)
    }

    /// All that is new.
    pub fn all(&self) -> impl Iterator<Item = &NewObject> {
        self.new.iter().flat_map(|(_, new)| new)
    }
}

/// A policy while it is converted.
struct PolicyInProgress<'a> {
    found: &'a OriginalObject,
    reference: &'a ObjectRef,
    /// For messages: what and where it is.
    place: String,
    policy: Policy,
    converted: ConvertedPolicy,
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
        match start(one, reference, *source, objects, reading) {
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
    let ids: Vec<&PolicyId> = moving.iter().map(|one| &one.policy.id).collect();
    let stay: Vec<Policy> = before
        .iter()
        .filter(|policy| !ids.contains(&&policy.id))
        .cloned()
        .collect();
    let candidates: Vec<Candidate> = moving.iter().map(PolicyInProgress::candidate).collect();
    let (mut plans, staying) = (plan(&candidates, &stay), stay.len());
    let mut carried = Conversion {
        policies: stay,
        ..Conversion::default()
    };
    for one in &moving {
        let plan = plans.remove(&one.policy.id);
        let plan = plan.unwrap_or_else(|| Err("there is another policy of this name".to_owned()));
        match plan.and_then(|plan| one.finish(&plan, &mut carried)) {
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
        Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy => true,
        Kind::ClusterNetworkPolicy
        | Kind::ClusterEgressFirewall
        | Kind::NetworkPolicy
        | Kind::LegacyNetworkPolicy
        | Kind::AuditedApiServerEgressPolicy
        | Kind::ApiServerEgressPolicy => false,
    };
    let is_moving = |policy: &&Policy| moving.iter().any(|one| one.policy.id == policy.id);
    let missed = before.iter().filter(is_old).filter(|policy| !is_moving(policy));
    missed
        .map(|policy| format!("{}: its text cannot be taken apart", policy.id))
        .collect()
}

/// Converts what was understood; refuses what is enforced closed, for which there are no words.
fn start<'a>(
    found: &'a OriginalObject,
    reference: &'a ObjectRef,
    source: SourceKind,
    objects: &WrittenObjects,
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
    let reasons: Vec<String> = lowered
        .diagnostics
        .iter()
        .filter(|diagnostic| closes(diagnostic))
        .map(|diagnostic| reason(&place, diagnostic))
        .collect();
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let policy = policy(lowered.entities).ok_or_else(|| vec![format!("{place}: it is no policy")])?;
    Ok(PolicyInProgress {
        converted: convert(
            found.document.root.clone(),
            source,
            reading == UnknownFields::AsStored,
        ),
        found,
        reference,
        place,
        policy,
    })
}

/// Whether something is enforced that was not written. A name or protocol that is none matches nothing, which
/// can be carried over.
fn closes(diagnostic: &Diagnostic) -> bool {
    diagnostic.severity == Severity::Error
        && !matches!(diagnostic.code, Code::InvalidDomain | Code::InvalidProtocol)
}

fn reason(place: &str, diagnostic: &Diagnostic) -> String {
    let Diagnostic {
        code,
        field,
        found,
        accepted,
        enforced,
        ..
    } = diagnostic;
    let hint = match code {
        Code::UnknownField | Code::DuplicateField => {
            " (--as-stored reads and converts it as an API server would have stored it)"
        }
        _ => "",
    };
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
    fn candidate(&self) -> Candidate {
        Candidate {
            id: self.policy.id.clone(),
            priority: self.policy.rank.priority,
            parts: self.converted.parts(),
        }
    }

    fn finish(&self, plan: &Plan, carried: &mut Conversion) -> Result<(), String> {
        let mut new: Vec<NewObject> = Vec::new();
        let roots = self.converted.cut(&plan.parts);
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
            carried.policies.push(read_again(&text)?);
            new.push(NewObject { root, text });
        }
        for note in self.converted.notes.iter().chain(&plan.notes) {
            carried.notes.push(format!("{}: {note}", self.place));
        }
        let lost = self.lost(&new);
        if !lost.is_empty() {
            carried.notes.push(format!(
                "{}: comments that are left out: {}",
                self.place,
                lost.join(" ")
            ));
        }
        carried.new.push((self.reference.clone(), new));
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

/// What is printed is what is compared: it is read from the text.
fn read_again(text: &str) -> Result<Policy, String> {
    let mut manifest = manifest::read(text, "the result");
    if let Some(problem) = manifest.problems.first() {
        return Err(format!("what came out cannot be read: {problem}"));
    }
    let object: Option<Object> = manifest.documents.pop().map(|document| document.object);
    let lowered = object.as_ref().map(lower).ok_or("nothing came out")?;
    if let Some(diagnostic) = lowered.diagnostics.iter().find(|diagnostic| closes(diagnostic)) {
        return Err(reason("what came out cannot be understood", diagnostic));
    }
    policy(lowered.entities).ok_or_else(|| "no policy came out".to_owned())
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
