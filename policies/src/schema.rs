//! The kinds of `policy.egret.dev` as an API server knows them: CustomResourceDefinitions.
//!
//! Written beside `lower`, which reads the kinds: tests hold the two together, field by field. What `lower` calls an
//! error is refused by the API server where its schema can say it, by OpenAPI or by a CEL expression
//! (`x-kubernetes-validations`). The server estimates what an expression costs in the worst case and refuses a
//! definition that is too dear, so every list, map and text has a bound.

use serde_json::{Value, json};

mod shape;
mod firewall;
mod status;
mod addresses;
mod policy_report;

const GROUP: &str = "policy.egret.dev";
const VERSION: &str = "v1alpha1";

/// A CustomResourceDefinition.
#[derive(Clone, Debug)]
pub struct Definition {
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short: &'static [&'static str],
    columns: Vec<Value>,
    has_status: bool,
    schema: shape::SchemaNode,
}

/// All of them.
#[must_use]
pub fn definitions() -> Vec<Definition> {
    vec![
        firewall::definition(),
        addresses::api_server(),
        addresses::report(),
        policy_report::definition(),
    ]
}

impl Definition {
    /// The kind that it defines.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// The name of the object, which its plural and its group make up.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.{GROUP}", self.plural)
    }

    /// The schema of the kind: `openAPIV3Schema`.
    #[must_use]
    pub fn schema(&self) -> Value {
        self.schema.clone().into_value()
    }

    /// The object, for an API server.
    #[must_use]
    pub fn object(&self) -> Value {
        let mut version = json!({
            "name": VERSION,
            "served": true,
            "storage": true,
            "schema": {"openAPIV3Schema": self.schema()},
            "additionalPrinterColumns": self.columns,
        });
        if self.has_status {
            version["subresources"] = json!({"status": {}});
        }
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.singular,
        });
        if !self.short.is_empty() {
            names["shortNames"] = json!(self.short);
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name()},
            "spec": {"group": GROUP, "names": names, "scope": "Cluster", "versions": [version]},
        })
    }
}

/// A column of `kubectl get`.
fn column(name: &str, r#type: &str, path: &str, description: &str) -> Value {
    json!({"name": name, "type": r#type, "jsonPath": path, "description": description})
}

fn age() -> Value {
    column(
        "Age",
        "date",
        ".metadata.creationTimestamp",
        "Since when it is there",
    )
}
