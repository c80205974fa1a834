//! The configuration's own schema in, every key it has out. Knows no key by name: what serde accepts and what this lists cannot drift apart.

use std::sync::LazyLock;

use serde_json::Value;

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

/// The JSON Schema of the configuration (draft 2020-12), with descriptions. Every number, boolean and text may also be a `${env:…}`.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Config).to_value();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), "configuration of spanscore".into());
    }
    allow_variables(&mut schema);
    schema
}

/// Every key outside lists, sections included, in the order of the schema.
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
        let open = node.get("additionalProperties").is_some_and(Value::is_object);
        keys.push(Key { path: path.clone(), open, section: properties.is_some() });
    }
    for (name, property) in properties.into_iter().flatten() {
        path.push(name.clone());
        walk(schema, property, path, keys);
        path.pop();
    }
}

/// Follows `$ref`, and of an optional value what it is when it is there.
fn resolved<'a>(schema: &'a Value, mut node: &'a Value) -> &'a Value {
    loop {
        if let Some(name) = node.get("$ref").and_then(Value::as_str) {
            let Some(target) = schema.pointer(name.trim_start_matches('#')) else { return node };
            node = target;
        } else if let Some(choice) = node.get("anyOf").and_then(Value::as_array).and_then(|choices| choices.first()) {
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
            let is_plain = |kind: &Value| matches!(kind.as_str(), Some("boolean" | "integer" | "number"));
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
