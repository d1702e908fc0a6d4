//! Values and what they may be: the part of OpenAPI that a CustomResourceDefinition may use ("structural schema").

use serde_json::{Map, Value, json};

/// What a value may be.
#[derive(Clone, Debug)]
pub(super) struct SchemaNode(Map<String, Value>);

/// A field of an object.
pub(super) struct Property {
    name: &'static str,
    shape: SchemaNode,
    is_required: bool,
}

/// A field that must be there.
pub(super) const fn required(name: &'static str, shape: SchemaNode) -> Property {
    Property {
        name,
        shape,
        is_required: true,
    }
}

/// A field that may be left out.
pub(super) const fn optional(name: &'static str, shape: SchemaNode) -> Property {
    Property {
        name,
        shape,
        is_required: false,
    }
}

/// A text of at most so many characters.
pub(super) fn text(most: usize) -> SchemaNode {
    SchemaNode::of("string").with("maxLength", json!(most))
}

/// One of these words.
pub(super) fn word(words: &[&str]) -> SchemaNode {
    SchemaNode::of("string").with("enum", json!(words))
}

/// A moment, as RFC 3339 writes it.
pub(super) fn moment() -> SchemaNode {
    SchemaNode::of("string").with("format", json!("date-time"))
}

/// A truth value.
pub(super) fn boolean() -> SchemaNode {
    SchemaNode::of("boolean")
}

/// A whole number.
pub(super) fn integer(least: i32, most: i32) -> SchemaNode {
    SchemaNode::of("integer")
        .with("format", json!("int32"))
        .with("minimum", json!(least))
        .with("maximum", json!(most))
}

/// How many, or how often.
pub(super) fn count() -> SchemaNode {
    SchemaNode::of("integer")
        .with("format", json!("int64"))
        .with("minimum", json!(0))
}

/// A mapping of these fields.
pub(super) fn object(properties: Vec<Property>) -> SchemaNode {
    let mut required = Vec::new();
    let mut fields = Map::new();
    for Property {
        name,
        shape,
        is_required,
    } in properties
    {
        if is_required {
            required.push(name);
        }
        fields.insert(name.to_owned(), shape.into_value());
    }
    let shape = SchemaNode::of("object").with("properties", Value::Object(fields));
    if required.is_empty() {
        shape
    } else {
        shape.with("required", json!(required))
    }
}

/// A mapping without any field. Unknown fields are kept until it is judged: dropped, as elsewhere, a misspelt
/// restriction would leave the mapping that means everything.
pub(super) fn nothing() -> SchemaNode {
    SchemaNode::of("object")
        .with("maxProperties", json!(0))
        .with("x-kubernetes-preserve-unknown-fields", json!(true))
}

/// A mapping of so many fields of any name.
pub(super) fn map(value: SchemaNode, most: usize) -> SchemaNode {
    SchemaNode::of("object")
        .with("additionalProperties", value.into_value())
        .with("maxProperties", json!(most))
}

/// A list in which order counts, or which is written as a whole.
pub(super) fn list(item: SchemaNode, least: usize, most: usize) -> SchemaNode {
    let shape = SchemaNode::of("array")
        .with("items", item.into_value())
        .with("maxItems", json!(most))
        .with("x-kubernetes-list-type", json!("atomic"));
    if least == 0 {
        shape
    } else {
        shape.with("minItems", json!(least))
    }
}

/// A list of which every item is there once.
pub(super) fn set(item: SchemaNode, least: usize, most: usize) -> SchemaNode {
    list(item, least, most).with("x-kubernetes-list-type", json!("set"))
}

/// A list of objects that are told apart by a field.
pub(super) fn keyed(item: SchemaNode, key: &str, most: usize) -> SchemaNode {
    list(item, 0, most)
        .with("x-kubernetes-list-type", json!("map"))
        .with("x-kubernetes-list-map-keys", json!([key]))
}

/// A mapping of which exactly one field is there.
pub(super) fn one_of(properties: Vec<Property>) -> SchemaNode {
    let names: Vec<&str> = properties.iter().map(|property| property.name).collect();
    let present: Vec<String> = names.iter().map(|name| format!("has(self.{name})")).collect();
    let expression = format!("[{}].exists_one(present, present)", present.join(", "));
    let message = format!("exactly one of {}", names.join(", "));
    object(properties).only_where(&expression, &message)
}

/// An object of a kind: what every object has, and these fields.
pub(super) fn kind(description: &str, properties: Vec<Property>) -> SchemaNode {
    let mut all = vec![
        optional("apiVersion", SchemaNode::of("string")),
        optional("kind", SchemaNode::of("string")),
        optional("metadata", SchemaNode::of("object")),
    ];
    all.extend(properties);
    object(all).says(description)
}

impl SchemaNode {
    fn of(r#type: &str) -> Self {
        Self(Map::new()).with("type", json!(r#type))
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.0.insert(key.to_owned(), value);
        self
    }

    /// What it is, for `kubectl explain`.
    pub(super) fn says(self, description: &str) -> Self {
        self.with("description", json!(description))
    }

    /// What stands where nothing is written.
    pub(super) fn or(self, default: impl Into<Value>) -> Self {
        self.with("default", default.into())
    }

    /// The texts that are accepted (RE2).
    pub(super) fn like(self, pattern: &str) -> Self {
        self.with("pattern", json!(pattern))
    }

    /// The empty mapping is refused.
    pub(super) fn not_empty(self) -> Self {
        self.with("minProperties", json!(1))
    }

    /// A CEL expression that must hold, and what is said where it does not.
    pub(super) fn only_where(mut self, expression: &str, message: &str) -> Self {
        let rule = json!({"rule": expression, "message": message});
        let rules = self
            .0
            .entry("x-kubernetes-validations")
            .or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(rule);
        }
        self
    }

    pub(super) fn into_value(self) -> Value {
        Value::Object(self.0)
    }
}
