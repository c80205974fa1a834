//! The JSON Schema of the configuration, and the list of all keys made from it. A test generates
//! the schema from the types that serde reads, so that the two always agree; the program contains
//! the schema as a file, because the generating code would be 4 % of the program.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// A configuration key, as the names from the root to the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) path: Vec<String>,
    /// True for a map with user-defined names, such as `forward.headers`.
    pub(super) open: bool,
    /// True for a section: a map with fixed keys.
    pub(super) section: bool,
}

/// Returns the JSON Schema of the configuration (draft 2020-12), with descriptions. Every number
/// and boolean may also be a `${env:…}`.
pub fn schema() -> Value {
    let mut schema = of_types();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), "configuration of spanscore".into());
        // The values of these keys serve as YAML anchors; nothing else reads the keys.
        object.insert("patternProperties".to_owned(), json!({ "^x-": true }));
    }
    allow_variables(&mut schema);
    allow_empty_sections(&mut schema);
    schema
}

/// Returns the schema as generated from the types.
pub(crate) fn of_types() -> Value {
    serde_json::from_str(include_str!("schema.json")).expect("a test reads the checked-in schema")
}

/// Returns every key outside lists, including sections, in the order of the schema. Created on
/// first use: the list occupies a quarter of a megabyte, which a sidecar without variables and
/// flags does not need.
pub(super) fn known() -> &'static [Key] {
    static KNOWN: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let schema = of_types();
        let mut keys = Vec::new();
        walk(&schema, "", &mut Vec::new(), &mut keys);
        keys
    });
    &KNOWN
}

fn walk(schema: &Value, pointer: &str, path: &mut Vec<String>, keys: &mut Vec<Key>) {
    let pointer = resolved(schema, pointer);
    let node = schema.pointer(&pointer);
    let properties = node.and_then(|node| node.get("properties")?.as_object());
    if !path.is_empty() {
        let open = node.and_then(|node| node.get("additionalProperties"));
        keys.push(Key {
            path: path.clone(),
            open: open.is_some_and(Value::is_object),
            section: properties.is_some(),
        });
    }
    for name in properties.into_iter().flatten().map(|(name, _)| name) {
        path.push(name.clone());
        walk(schema, &format!("{pointer}/properties/{name}"), path, keys);
        path.pop();
    }
}

/// Resolves a pointer through `$ref` and through the first alternative of an optional value.
fn resolved(schema: &Value, pointer: &str) -> String {
    let mut pointer = pointer.to_owned();
    while let Some(node) = schema.pointer(&pointer) {
        if let Some(target) = node.get("$ref").and_then(Value::as_str) {
            pointer = target.trim_start_matches('#').to_owned();
        } else if node.get("anyOf").is_some() {
            pointer.push_str("/anyOf/0");
        } else {
            break;
        }
    }
    pointer
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

/// Allows null for sections and lists: if all keys are commented out, as in the starter, YAML has
/// null. Items of lists, such as criteria, are not sections.
fn allow_empty_sections(schema: &mut Value) {
    let mut optional = Vec::new();
    find_optional_sections(schema, "", &mut optional);
    for pointer in optional {
        let Some(Value::Object(property)) = schema.pointer_mut(&pointer) else {
            continue;
        };
        if let Some(target) = property.remove("$ref") {
            let choices = json!([{ "$ref": target }, { "type": "null" }]);
            property.insert("anyOf".to_owned(), choices);
        } else if let Some(kind) = property.get_mut("type") {
            *kind = json!([kind.take(), "null"]);
        }
    }
}

/// Finds the optional sections and lists, each once.
fn find_optional_sections(schema: &Value, pointer: &str, found: &mut Vec<String>) {
    let pointer = resolved(schema, pointer);
    let Some(section) = schema.pointer(&pointer) else {
        return;
    };
    let required = section.get("required").and_then(Value::as_array);
    let properties = section.get("properties").and_then(Value::as_object);
    for name in properties.into_iter().flatten().map(|(name, _)| name) {
        let property = format!("{pointer}/properties/{name}");
        let target = schema.pointer(&resolved(schema, &property));
        let kind = target.and_then(|target| target.get("type")?.as_str());
        let is_required = required.is_some_and(|names| names.iter().any(|other| other == name));
        if matches!(kind, Some("object" | "array")) && !is_required && !found.contains(&property) {
            found.push(property.clone());
            find_optional_sections(schema, &property, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use crate::config::Config;

    #[test]
    fn the_checked_in_schema_is_that_of_the_types() {
        let schema = schemars::schema_for!(Config).to_value();
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if include_str!("schema.json") == text {
            return;
        }
        let current = env::temp_dir().join("spanscore-schema.json");
        fs::write(&current, text).unwrap();
        let current = current.display();
        panic!("src/config/schema.json is not current: copy {current} over it");
    }
}
