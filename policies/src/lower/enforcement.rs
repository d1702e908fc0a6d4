//! Audit: an annotation on a policy, or on a namespace for all its pods, by which a policy is only asked what it would
//! deny. Whatever else the annotation says, the policy is enforced.

use crate::api::{Field, Notes, Object};
use crate::diagnostic::Code;
use crate::model::Enforcement;

/// On a policy or a namespace: `audit` or `enforce`.
const ANNOTATION: &str = "policy.egret.dev/enforcement";

pub(super) fn of(object: &Object, notes: &mut Notes) -> Enforcement {
    let metadata = Field::root(&object.body).get("metadata");
    let annotations = metadata.and_then(|metadata| metadata.get("annotations"));
    let Some(annotation) = annotations.and_then(|annotations| annotations.get(ANNOTATION)) else {
        return Enforcement::Enforced;
    };
    let mark = notes.mark();
    let enforcement = match annotation.text(notes) {
        Ok("audit") => Enforcement::Audited,
        Ok("enforce") | Err(_) => Enforcement::Enforced,
        Ok(_) => {
            annotation.refuse(Code::InvalidEnforcement, "audit or enforce", notes);
            Enforcement::Enforced
        }
    };
    notes.enforce(mark, "it is enforced");
    enforcement
}
