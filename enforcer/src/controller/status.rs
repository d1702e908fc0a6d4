//! What the status of a policy should be, and what of it has to be written.

use egret_policies::controller::{Cluster, Condition, ProgrammedNodes, conditions, resolve};
use egret_policies::diagnostic::Diagnostic;
use egret_policies::model::{Kind, Policy};
use serde_json::{Map, Value as Json, json};

/// The longest message of a condition (metav1.Condition).
const MOST_CHARACTERS: usize = 32_768;

/// What a status should say.
#[derive(Debug)]
pub(super) struct DesiredStatus {
    conditions: Vec<Condition>,
    /// Which generation conditions are about, where they say so themselves.
    observed_generation: Option<i64>,
    /// Everything but the conditions.
    rest: Map<String, Json>,
}

impl DesiredStatus {
    /// None where the kind has no status.
    pub(super) fn of(
        policy: &Policy,
        diagnostics: &[Diagnostic],
        cluster: &Cluster<'_>,
        generation: i64,
        programmed: ProgrammedNodes<'_>,
    ) -> Option<Self> {
        match policy.id.kind {
            Kind::NetworkPolicy
            | Kind::LegacyNetworkPolicy
            // No API server stores these.
            | Kind::AuditedApiServerEgressPolicy
            | Kind::ApiServerEgressPolicy => None,
            Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy | Kind::ClusterNetworkPolicy => {
                Some(Self {
                    conditions: conditions(policy, diagnostics, cluster, programmed),
                    observed_generation: Some(generation),
                    rest: Map::new(),
                })
            }
            Kind::ClusterEgressFirewall => {
                let mut status = resolve(policy, diagnostics, cluster, generation, programmed);
                let conditions = std::mem::take(&mut status.conditions);
                let written = serde_json::to_value(status).expect("a status is fields, numbers and texts");
                let Json::Object(mut rest) = written else {
                    unreachable!("a structure is an object")
                };
                rest.remove("conditions");
                Some(Self {
                    conditions,
                    observed_generation: None,
                    rest,
                })
            }
        }
    }

    /// The status to write over `existing`; none where it says all that already. Conditions of others are not in it, and
    /// stay. `now` is RFC 3339.
    pub(super) fn to_write(&self, existing: &Json, now: &str) -> Option<Json> {
        let mut differs = false;
        let mut conditions = Vec::new();
        for condition in &self.conditions {
            let message: String = condition.message.chars().take(MOST_CHARACTERS).collect();
            let mut wanted = json!({
                "type": condition.r#type,
                "status": condition.status,
                "reason": condition.reason,
                "message": message,
            });
            if let Some(generation) = self.observed_generation {
                wanted["observedGeneration"] = json!(generation);
            }
            let there = existing_condition(existing, condition.r#type);
            let since = there
                .filter(|there| there["status"] == *condition.status)
                .and_then(|there| there["lastTransitionTime"].as_str());
            wanted["lastTransitionTime"] = json!(since.unwrap_or(now));
            differs |= there != Some(&wanted);
            conditions.push(wanted);
        }
        differs |= self
            .rest
            .iter()
            .any(|(field, value)| existing.get(field) != Some(value));
        differs.then(|| {
            let mut status = self.rest.clone();
            status.insert("conditions".to_owned(), Json::Array(conditions));
            Json::Object(status)
        })
    }
}

/// Whether a status is about this generation: its own field, or that of the condition Accepted.
pub(super) fn is_about(status: &Json, generation: i64) -> bool {
    let own = status.get("observedGeneration").and_then(Json::as_i64);
    let accepted = || {
        existing_condition(status, "Accepted")?
            .get("observedGeneration")?
            .as_i64()
    };
    own.or_else(accepted) == Some(generation)
}

fn existing_condition<'a>(status: &'a Json, r#type: &str) -> Option<&'a Json> {
    let conditions = status.get("conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == *r#type)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-01-02T00:00:00Z";

    fn desired(status: &'static str, message: &str) -> DesiredStatus {
        DesiredStatus {
            conditions: vec![Condition {
                r#type: "Programmed",
                status,
                reason: "Pending",
                message: message.to_owned(),
            }],
            observed_generation: Some(2),
            rest: Map::new(),
        }
    }

    fn existing(status: &str, message: &str) -> Json {
        json!({"conditions": [
            {"type": "Ready-In-Zone-a", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": BEFORE},
            {"type": "Programmed", "status": status, "reason": "Pending", "message": message,
             "observedGeneration": 2, "lastTransitionTime": BEFORE},
        ]})
    }

    #[test]
    fn a_status_that_says_the_same_is_not_written() {
        let same = existing("False", "1/2 nodes");
        assert_eq!(desired("False", "1/2 nodes").to_write(&same, NOW), None);
        assert!(desired("False", "1/2 nodes").to_write(&Json::Null, NOW).is_some());
    }

    #[test]
    fn the_time_of_a_condition_is_that_of_its_last_transition() {
        let time = |desired: DesiredStatus| {
            let written = desired.to_write(&existing("False", "1/2 nodes"), NOW).unwrap();
            written["conditions"][0]["lastTransitionTime"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(time(desired("False", "0/2 nodes")), BEFORE);
        assert_eq!(time(desired("True", "2/2 nodes")), NOW);
    }

    #[test]
    fn conditions_of_others_are_not_written() {
        let written = desired("True", "2/2 nodes")
            .to_write(&existing("False", "1/2 nodes"), NOW)
            .unwrap();
        assert_eq!(written["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(written["conditions"][0]["type"], "Programmed");
    }

    #[test]
    fn every_field_of_a_firewall_is_compared() {
        let mut firewall = desired("False", "1/2 nodes");
        firewall.rest.insert("rules".to_owned(), json!(2));
        let mut there = existing("False", "1/2 nodes");
        assert!(firewall.to_write(&there, NOW).is_some());
        there["rules"] = json!(2);
        assert_eq!(firewall.to_write(&there, NOW), None);
    }

    #[test]
    fn a_status_is_about_the_generation_that_it_names() {
        assert!(is_about(&json!({"observedGeneration": 3}), 3));
        assert!(!is_about(&json!({"observedGeneration": 2}), 3));
        let accepted = json!({"conditions": [{"type": "Accepted", "observedGeneration": 3}]});
        assert!(is_about(&accepted, 3));
        assert!(!is_about(&Json::Null, 0));
    }
}
