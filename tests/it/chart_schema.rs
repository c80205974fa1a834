//! Checks that the chart's schema of the configuration is current, so that `helm lint` rejects a
//! misspelt key of `spanscore.yaml` before anything is installed. Does not prove that Helm reads
//! the schema; `tests/kubernetes/manifests.sh` does.

use serde_json::{Map, Value};
use spanscore::config;

use crate::support::pages::{assert_current, read};

const FILE: &str = "deploy/helm/spanscore/values.schema.json";
const BEGIN: &str = "  \"$defs\": {\n";

/// Keywords that only describe and reject nothing.
const COMMENTS: [&str; 5] = ["$schema", "title", "description", "default", "format"];

/// Returns the schema without the keywords in [`COMMENTS`], in the dialect of the chart's schema,
/// which older versions of Helm support.
fn plain(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let mut plain_fields = Map::new();
            for (key, value) in fields {
                if COMMENTS.contains(&key.as_str()) {
                    continue;
                }
                let value = match key.as_str() {
                    // The keys of these maps are names of settings and types, not keywords of the
                    // schema.
                    "properties" | "$defs" => Value::Object(
                        value
                            .as_object()
                            .into_iter()
                            .flatten()
                            .map(|(name, schema)| (name.clone(), plain(schema)))
                            .collect(),
                    ),
                    "const" | "enum" => value.clone(),
                    _ => plain(value),
                };
                let key = match key.as_str() {
                    "prefixItems" => "items",
                    "items" if fields.contains_key("prefixItems") => "additionalItems",
                    key => key,
                };
                plain_fields.insert(key.to_owned(), value);
            }
            Value::Object(plain_fields)
        }
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

#[test]
fn the_chart_knows_every_key_of_the_configuration() {
    let Value::Object(mut root) = plain(&config::schema()) else {
        panic!("the schema is an object");
    };
    let Some(Value::Object(definitions)) = root.remove("$defs") else {
        panic!("the schema has definitions");
    };
    let text = read(FILE);
    let (before, _) = text.split_once(BEGIN).expect("the chart has definitions");
    assert!(before.contains("\"config\": { \"$ref\": \"#/$defs/Config\" }"));
    let mut lines = vec![format!("    \"Config\": {}", Value::Object(root))];
    lines.extend(
        definitions
            .iter()
            .map(|(name, schema)| format!("    \"{name}\": {schema}")),
    );
    assert_current(
        FILE,
        &format!("{before}{BEGIN}{}\n  }}\n}}\n", lines.join(",\n")),
    );
}
