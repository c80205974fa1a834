//! What REST answers, as OpenAPI 3.1: for whoever generates a client, and for the test that holds
//! the handlers to it. The schema of a criterion comes from the type that is read, so it cannot
//! drift; a pattern's validity is no schema, so a body that fits may still be refused.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::rest::{MAX_PAGE_SIZE, PAGE_SIZE};
use super::{MAX_BODY_SIZE, MAX_NAME_LENGTH, MAX_REGISTRATIONS};
use crate::assemble::CloseReason;
use crate::evaluate::Criterion;

/// The document.
pub(super) fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(build);
    &DOCUMENT
}

fn build() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let criterion = generator.subschema_for::<Criterion>().to_value();
    let mut schemas: Map<String, Value> = generator.take_definitions(true);
    // The name stands in the address, so the body may leave it out.
    if let Some(mut unnamed) = schemas.get("Criterion").cloned() {
        if let Some(required) = unnamed.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|key| key != "name");
        }
        schemas.insert("UnnamedCriterion".to_owned(), unnamed);
    }
    schemas.values_mut().for_each(allow_scalars);
    schemas.extend(own_schemas(&criterion));
    for asked in ["Question", "Trajectory", "ToolCall"] {
        schemas.get_mut(asked).into_iter().for_each(allow_scalars);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "spanscore",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": format!(
                "Criteria of a running sidecar. Bodies are JSON or YAML, at most {} MiB; the API registers at most {MAX_REGISTRATIONS} criteria.",
                MAX_BODY_SIZE >> 20
            ),
        },
        "security": [{}, { "token": [] }],
        "paths": paths(),
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "headers": { "ETag": { "description": "Another one whenever anything of the answer is.", "schema": { "type": "string" } } },
            "responses": {
                "problem": {
                    "description": "Not done: what is wrong, and where.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
                "unchanged": { "description": "The caller has it already." },
            },
        },
    })
}

fn paths() -> Value {
    let one = reference("Registration");
    let set = reference("Set");
    let name = json!({
        "name": "name", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH },
    });
    let validate_only = json!({
        "name": "validate_only", "in": "query", "description": "Only tell whether it could be done.", "schema": { "type": "boolean" },
    });
    let ttl = json!({
        "name": "ttl", "in": "query", "description": "Taken out by itself after so long: 90s, 15m, 1h.",
        "schema": { "type": "string", "pattern": "^[1-9][0-9]{0,3}(ms|s|m|h)$" },
    });
    let if_match = header(
        "If-Match",
        "Only if what is there has this ETag; `*` if anything is there.",
    );
    let if_none_match = header("If-None-Match", "`*`: only if nothing is there.");
    let if_changed = header("If-None-Match", "Answer 304 if it still has this ETag.");
    let page_size = json!({
        "name": "page_size", "in": "query",
        "schema": { "type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": PAGE_SIZE },
    });
    let page_token = json!({
        "name": "page_token", "in": "query", "description": "`next_page_token` of the page before.",
        "schema": { "type": "string", "pattern": "^[A-Za-z0-9_-]*$" },
    });
    json!({
        "/v1/criteria": {
            "get": operation("list", "Every criterion in force, sorted by name", vec![page_size, page_token, if_changed.clone()], None,
                &[("200", "A page", Some(reference("Page"))), ("304", "", None)], &["400"]),
            "put": operation("replace", "Register exactly these, all at once", vec![validate_only.clone(), ttl.clone(), if_match.clone(), if_none_match.clone()],
                Some(reference("Criteria")), &[("200", "Done", Some(set))], &["400", "409", "412", "413", "415", "500", "503"]),
        },
        "/v1/criteria/{name}": {
            "get": operation("get", "What stands under a name", vec![name.clone(), if_changed], None,
                &[("200", "The criterion in force", Some(one.clone())), ("304", "", None)], &["400", "404"]),
            "put": operation("upsert", "Register a criterion under its name", vec![name.clone(), validate_only.clone(), ttl, if_match.clone(), if_none_match],
                Some(reference("UnnamedCriterion")), &[("200", "Another one in its place", Some(one.clone())), ("201", "A new one", Some(one))],
                &["400", "409", "412", "413", "415", "500", "503"]),
            "delete": operation("delete", "Take out what the API registered under a name", vec![name, validate_only, if_match], None,
                &[("200", "Taken out", Some(reference("Deleted")))], &["400", "404", "409", "412", "500", "503"]),
        },
        "/v1/evaluate": {
            "post": operation("evaluate", "Judge what is sent along; nothing of it is kept", vec![], Some(reference("Question")),
                &[("200", "An evaluation for each criterion that is for it", Some(reference("Evaluations")))], &["400", "404", "413", "415", "503"]),
        },
        "/v1/status": {
            "get": operation("status", "What is in force and how the last reload went", vec![], None,
                &[("200", "The status", Some(json!({ "type": "object" })))], &["400"]),
        },
        "/v1/openapi.json": {
            "get": operation("openapi", "This document", vec![], None, &[("200", "The document", Some(json!({ "type": "object" })))], &["400"]),
        },
        "/-/reload": {
            "post": operation("reload", "Read the configuration again", vec![], None,
                &[("200", "It is in force", Some(json!({ "type": "object" })))], &["400", "409", "500"]),
        },
    })
}

fn operation(
    id: &str,
    summary: &str,
    parameters: Vec<Value>,
    body: Option<Value>,
    answers: &[(&str, &str, Option<Value>)],
    problems: &[&str],
) -> Value {
    let mut responses = Map::new();
    for (status, description, schema) in answers {
        let answer = match schema {
            Some(schema) => json!({
                "description": description,
                "headers": { "ETag": { "$ref": "#/components/headers/ETag" } },
                "content": { "application/json": { "schema": schema } },
            }),
            None => json!({ "$ref": "#/components/responses/unchanged" }),
        };
        responses.insert((*status).to_owned(), answer);
    }
    for status in problems.iter().chain(&["401", "403"]) {
        responses.insert(
            (*status).to_owned(),
            json!({ "$ref": "#/components/responses/problem" }),
        );
    }
    let mut operation = json!({ "operationId": id, "summary": summary, "parameters": parameters, "responses": responses });
    if let Some(schema) = body {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": schema }, "application/yaml": { "schema": schema } },
        });
    }
    operation
}

fn header(name: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "header", "description": description,
        "schema": { "type": "string", "pattern": "^(\\*|\"[0-9a-f]{1,32}\")$" },
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn own_schemas(criterion: &Value) -> Map<String, Value> {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "array", "items": text });
    let time = json!({ "type": "string", "format": "date-time" });
    let completeness: Vec<Option<&str>> = CloseReason::ALL
        .map(|reason| Some(reason.as_str()))
        .into_iter()
        .chain([None])
        .collect();
    let schemas = json!({
        "Registration": {
            "type": "object",
            "required": ["name", "criterion", "revision", "source", "etag"],
            "properties": {
                "name": text, "criterion": criterion, "revision": text, "source": { "enum": ["file", "api"] }, "expires_at": time,
                "shadows": { "type": "object", "required": ["source", "revision"], "properties": { "source": text, "revision": text } },
                "warnings": texts, "etag": text,
            },
        },
        "Page": {
            "type": "object",
            "required": ["criteria", "revision", "etag"],
            "properties": {
                "criteria": { "type": "array", "items": reference("Registration") }, "revision": text, "etag": text, "next_page_token": text,
            },
        },
        "Criteria": {
            "type": "object", "required": ["criteria"], "additionalProperties": false,
            "properties": { "criteria": { "type": "array", "items": criterion } },
        },
        "Set": {
            "type": "object", "required": ["revision", "etag", "added", "changed", "removed"],
            "properties": { "revision": text, "etag": text, "added": texts, "changed": texts, "removed": texts },
        },
        "Deleted": {
            "type": "object", "required": ["revision"], "properties": { "revision": text, "uncovered": reference("Registration") },
        },
        "Question": {
            "type": "object", "additionalProperties": false,
            "oneOf": [{ "required": ["trajectory"] }, { "required": ["traces"] }],
            "properties": {
                "trajectory": { "anyOf": [reference("Trajectory"), { "type": "null" }] },
                "traces": { "type": ["object", "null"], "description": "OTLP/JSON: `{\"resourceSpans\": […]}`; what its spans expect of themselves is not read" },
                "criteria": { "type": ["array", "null"], "items": criterion }, "names": { "type": ["array", "null"], "items": text },
            },
        },
        "Trajectory": {
            "type": "object", "additionalProperties": false,
            "description": "As `spanscore inspect --format jsonl` shows it.",
            "properties": {
                "trace_id": id(16), "span_id": id(8), "service": nullable("string"), "root": nullable("string"), "agent": nullable("string"),
                "session": nullable("string"), "completeness": { "enum": completeness }, "spans": number(),
                "tool_calls": { "type": ["array", "null"], "items": reference("ToolCall") },
            },
        },
        "ToolCall": {
            "type": "object", "required": ["name"], "additionalProperties": false,
            "properties": {
                "name": text, "call_id": nullable("string"), "args": true, "result": true, "error": nullable("boolean"), "agent": nullable("string"),
                "step": number(), "parallel_group": number(),
                "span_id": id(8), "start": decimal(), "end": decimal(), "convention": nullable("string"),
            },
        },
        "Evaluations": {
            "type": "object", "required": ["evaluations"],
            "properties": { "evaluations": { "type": "array", "items": reference("Evaluation") } },
        },
        "Evaluation": {
            "type": "object",
            "description": "As `spanscore replay --format jsonl` shows it.",
            "required": ["criterion", "evaluator", "threshold", "score", "label", "explanation", "details", "criterion_revision"],
            "properties": {
                "criterion": text, "evaluator": text, "threshold": { "type": "number" }, "score": nullable("number"),
                "label": { "enum": ["pass", "fail", "not_evaluated", "error"] }, "explanation": text, "details": { "type": "object" },
                "criterion_revision": text,
            },
        },
        "Problem": {
            "type": "object", "required": ["title", "status", "detail"],
            "properties": {
                "title": text, "status": { "type": "integer" }, "detail": text,
                "errors": {
                    "type": "array",
                    "items": {
                        "type": "object", "required": ["pointer", "message"],
                        "properties": {
                            "pointer": text, "line": { "type": "integer" }, "column": { "type": "integer" }, "message": text, "remedy": text,
                        },
                    },
                },
            },
        },
    });
    match schemas {
        Value::Object(schemas) => schemas,
        _ => Map::new(),
    }
}

/// What is to be a text may also be written without quotes, as `1.10` or `false`: in YAML as in
/// JSON it is then taken as it was written.
fn allow_scalars(node: &mut Value) {
    match node {
        Value::Array(items) => items.iter_mut().for_each(allow_scalars),
        Value::Object(fields) => {
            let is_choice = fields.contains_key("enum") || fields.contains_key("const");
            match fields.get_mut("type").filter(|_| !is_choice) {
                Some(kind) if kind == "string" => *kind = json!(["string", "number", "boolean"]),
                Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "string") => {
                    kinds.extend([json!("number"), json!("boolean")])
                }
                _ => {}
            }
            fields.values_mut().for_each(allow_scalars);
        }
        _ => {}
    }
}

fn nullable(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn number() -> Value {
    json!({ "type": ["integer", "null"], "minimum": 0, "maximum": u32::MAX })
}

fn decimal() -> Value {
    json!({ "type": ["string", "null"], "pattern": "^[0-9]{1,19}$" })
}

fn id(n_bytes: usize) -> Value {
    json!({ "type": ["string", "null"], "pattern": format!("^([0-9a-fA-F]{{{}}})?$", n_bytes * 2) })
}
