//! Serves the checked-in OpenAPI document, `openapi.yaml`, as JSON. Adds the version and the
//! schemas of criteria, which are generated from the types that read criteria, so that they always
//! agree. A schema cannot describe which patterns are valid, so a body that fits the schema may
//! still be rejected.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::config;

const TEXT: &str = include_str!("openapi.yaml");

/// The document is created at its first use.
pub(super) fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(build);
    &DOCUMENT
}

fn build() -> Value {
    let mut document: Value =
        serde_saphyr::from_str(TEXT).expect("a test reads the checked-in document");
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.extend(criterion_schemas());
    }
    document
}

fn criterion_schemas() -> Map<String, Value> {
    let mut all = config::schema_of_types();
    let mut schemas = Map::new();
    take("Criterion", &mut all["$defs"], &mut schemas);
    // The path contains the name, so the body may omit it.
    if let Some(mut unnamed) = schemas.get("Criterion").cloned() {
        if let Some(required) = unnamed.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|key| key != "name");
        }
        schemas.insert("UnnamedCriterion".to_owned(), unnamed);
    }
    schemas.values_mut().for_each(allow_scalars);
    schemas
}

/// Moves a definition, and the definitions that it refers to, out of `all`.
fn take(name: &str, all: &mut Value, taken: &mut Map<String, Value>) {
    let Some(mut schema) = all.get_mut(name).map(Value::take) else {
        return;
    };
    if schema.is_null() {
        return;
    }
    let mut names = Vec::new();
    refer_to_components(&mut schema, &mut names);
    taken.insert(name.to_owned(), schema);
    for name in names {
        take(&name, all, taken);
    }
}

fn refer_to_components(node: &mut Value, names: &mut Vec<String>) {
    match node {
        Value::Array(items) => {
            for item in items {
                refer_to_components(item, names);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = value
                    .as_str()
                    .and_then(|text| text.strip_prefix("#/$defs/"));
                if let Some(name) = name.filter(|_| key == "$ref").map(str::to_owned) {
                    *value = format!("#/components/schemas/{name}").into();
                    names.push(name);
                } else {
                    refer_to_components(value, names);
                }
            }
        }
        _ => {}
    }
}

/// Allows numbers and booleans for texts, such as `1.10` or `false`: the reader accepts them as
/// written, in YAML and in JSON.
fn allow_scalars(node: &mut Value) {
    match node {
        Value::Array(items) => items.iter_mut().for_each(allow_scalars),
        Value::Object(fields) => {
            let is_choice = fields.contains_key("enum") || fields.contains_key("const");
            match fields.get_mut("type").filter(|_| !is_choice) {
                Some(kind) if kind == "string" => *kind = json!(["string", "number", "boolean"]),
                Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "string") => {
                    kinds.retain(|kind| kind != "number" && kind != "boolean");
                    kinds.extend([json!("number"), json!("boolean")]);
                }
                _ => {}
            }
            fields.values_mut().for_each(allow_scalars);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;
    use serde_json::{Map, Value};

    use super::take;
    use crate::config;
    use judge::evaluate::Criterion;

    #[test]
    fn the_schemas_are_those_of_a_criterion() {
        let mut generator = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into())
            .into_generator();
        generator.subschema_for::<Criterion>();
        let expected: Map<String, Value> = generator.take_definitions(true);
        let mut schemas = Map::new();
        take(
            "Criterion",
            &mut config::schema_of_types()["$defs"],
            &mut schemas,
        );
        assert_eq!(schemas, expected);
    }
}
