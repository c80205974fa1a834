//! The JSON Schema of the configuration, and the list of all keys made from it. Knows no key by
//! name, so this list cannot drift apart from the keys that serde accepts.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Config;

/// A key, as the path of names that leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) path: Vec<String>,
    /// A map with names of the user's choosing, such as `forward.headers`.
    pub(super) open: bool,
    /// A section: a map with fixed keys.
    pub(super) section: bool,
}

/// The JSON Schema of the configuration (draft 2020-12), with descriptions. Every number, boolean
/// and text may also be a `${env:…}`.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Config).to_value();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), "configuration of spanscore".into());
    }
    allow_variables(&mut schema);
    let whole = schema.clone();
    allow_empty_sections(&whole, &mut schema);
    schema
}

/// Every key outside lists, sections included, in the order of the schema. Made on first use: it
/// occupies a quarter of a megabyte, which a sidecar without variables and flags does not need.
pub(super) fn known() -> &'static [Key] {
    static KNOWN: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(Config).to_value();
        let mut keys = Vec::new();
        walk(&schema, &schema, &mut Vec::new(), &mut keys);
        keys
    });
    &KNOWN
}

fn walk(schema: &Value, node: &Value, path: &mut Vec<String>, keys: &mut Vec<Key>) {
    let node = resolved(schema, node);
    let properties = node.get("properties").and_then(Value::as_object);
    if !path.is_empty() {
        let open = node
            .get("additionalProperties")
            .is_some_and(Value::is_object);
        keys.push(Key {
            path: path.clone(),
            open,
            section: properties.is_some(),
        });
    }
    for (name, property) in properties.into_iter().flatten() {
        path.push(name.clone());
        walk(schema, property, path, keys);
        path.pop();
    }
}

/// Follows `$ref`, and takes the first choice of an optional value.
fn resolved<'a>(schema: &'a Value, mut node: &'a Value) -> &'a Value {
    loop {
        if let Some(name) = node.get("$ref").and_then(Value::as_str) {
            let Some(target) = schema.pointer(name.trim_start_matches('#')) else {
                return node;
            };
            node = target;
        } else if let Some(choice) = node
            .get("anyOf")
            .and_then(Value::as_array)
            .and_then(|choices| choices.first())
        {
            node = choice;
        } else {
            return node;
        }
    }
}

fn allow_variables(node: &mut Value) {
    match node {
        Value::Array(items) => items.iter_mut().for_each(allow_variables),
        Value::Object(object) => {
            let is_plain =
                |kind: &Value| matches!(kind.as_str(), Some("boolean" | "integer" | "number"));
            let widened = match object.get("type") {
                Some(kind) if is_plain(kind) => Some(vec![kind.clone(), "string".into()]),
                _ => None,
            };
            if let Some(kinds) = widened {
                object.insert("type".to_owned(), kinds.into());
                object.insert("pattern".to_owned(), "\\$\\{env:".into());
            }
            object.values_mut().for_each(allow_variables);
        }
        _ => {}
    }
}

/// A section or a list whose keys are all commented out, as in the starter, is null in YAML, and
/// read as empty.
fn allow_empty_sections(whole: &Value, node: &mut Value) {
    match node {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| allow_empty_sections(whole, item)),
        Value::Object(object) => {
            let required = object.get("required").cloned().unwrap_or_default();
            let is_required = |name: &str| {
                required
                    .as_array()
                    .is_some_and(|names| names.iter().any(|required| required == name))
            };
            for (name, property) in object
                .get_mut("properties")
                .and_then(Value::as_object_mut)
                .into_iter()
                .flatten()
            {
                let kind = resolved(whole, property)
                    .get("type")
                    .cloned()
                    .unwrap_or_default();
                let Some(property) = property
                    .as_object_mut()
                    .filter(|_| (kind == "object" || kind == "array") && !is_required(name))
                else {
                    continue;
                };
                if let Some(target) = property.remove("$ref") {
                    property.insert(
                        "anyOf".to_owned(),
                        json!([{ "$ref": target }, { "type": "null" }]),
                    );
                } else if let Some(kind) = property.get_mut("type") {
                    *kind = json!([kind.take(), "null"]);
                }
            }
            object
                .values_mut()
                .for_each(|value| allow_empty_sections(whole, value));
        }
        _ => {}
    }
}
