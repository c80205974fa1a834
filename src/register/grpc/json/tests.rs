//! Converts criteria to messages and back, and compares the messages' fields with those of the
//! types that read documents. The tests do not prove that clients in other languages work, such as
//! the Python client in docs/criteria-api.md.

use std::collections::BTreeSet;

use judge::evaluate::{Criterion, PatternLimits, RULE_TEMPLATES};
use prost::Message as _;
use prost_reflect::{DynamicMessage, Kind as FieldKind, MessageDescriptor};
use serde_json::json;

use super::super::messages;
use super::super::tests::POOL;
use super::*;
use crate::config;

fn criterion_message() -> MessageDescriptor {
    POOL.get_message_by_name("spanscore.v1.Criterion").unwrap()
}

/// Returns criteria that together have every evaluator and every field.
fn every_evaluator() -> Vec<Value> {
    let of = |evaluate: Value| json!({ "name": "a", "evaluate": evaluate });
    vec![
        of(json!({ "tool_call_order": { "tool_calls_order": ["a", "b"], "strict": true } })),
        of(json!({ "tool_call_count": {
            "tool_calls_count": { "a": [">=", 2], "b": ["=", 0] },
            "strict": true,
        } })),
        of(json!({ "tool_order": {
            "expected_tools": [
                { "tool_name": "a" },
                {
                    "tool_name": "b",
                    "parameters": { "n": 1, "f": 1.5, "t": [true, null, "x"] },
                },
            ],
            "exact_match": true,
        } })),
        of(json!({ "execution_order": {
            "expected_output": ["a"],
            "should_exact_match": false,
            "should_consider_ordering": true,
            "strict_mode": true,
            "over": "nodes",
        } })),
        of(json!({ "tool_calls": {
            "required": [
                "a",
                {
                    "name": "b",
                    "command": "c",
                    "path": "p",
                    "args": { "q": "x" },
                    "result": "r",
                    "min_count": 2,
                    "final": false,
                    "at_step": 0,
                },
                { "name": "c", "before_step": 3 },
                { "name": "d", "final": true },
            ],
            "disallowed": [{ "name": "z", "error": false, "result": "r" }],
            "sequence": ["a", { "name": "b", "path": "p" }],
        } })),
        of(json!({ "tool_call_args": {
            "tool_calls": [{ "name": "a", "args": { "q": 1, "deep": { "x": [1, 2] } } }],
            "strict": true,
            "subset": true,
            "exact": false,
        } })),
        of(json!({ "tool_call_output": {
            "tool_outputs": [{ "name": "a", "output": "text" }],
            "strict": true,
        } })),
        of(json!({ "constraints": { "concurrency": "reply", "rules": every_rule() } })),
        of(json!({ "trajectory_match": {
            "expected": ["a", { "name": "b", "args": { "x": 1 } }, { "name": "c", "args": {} }],
            "score": "f1",
            "ordered": true,
            "exact_args": true,
            "include_failed": false,
            "concurrency": "reply",
        } })),
        of(json!({ "trajectory_match": { "expected": ["a"], "preset": "azure_exact" } })),
        of(json!({ "efficiency": {
            "max_calls": 20,
            "max_errors": 0,
            "max_retries": 2,
            "max_repeats": 3,
            "max_duplicates": 4,
            "max_duration": "2m",
            "max_model_calls": 0,
            "max_input_tokens": 5,
            "max_output_tokens": 6,
            "max_tokens": 7,
            "ignore": [{ "name": "^poll_" }],
        } })),
        json!({
            "name": "b",
            "description": "d",
            "scope": "agent",
            "severity": "critical",
            "threshold": 0.0,
            "evaluate": { "tool_call_order": { "tool_calls_order": ["a"] } },
            "select": {
                "service": "s",
                "root": "r",
                "agent": "a",
                "calls": "c",
                "attributes": { "env": "prod" },
            },
        }),
        json!({
            "name": "c",
            "alarm": true,
            "evaluate": { "tool_calls": { "disallowed": ["a"] } },
        }),
        json!({
            "name": "d",
            "alarm": { "score_span": true },
            "evaluate": { "tool_calls": { "disallowed": ["a"] } },
        }),
    ]
}

/// Returns rules that together have every template and every field.
fn every_rule() -> Vec<Value> {
    let mut rules = vec![
        json!({ "existence": { "a": "x" } }),
        json!({ "existence": { "a": { "name": "x", "error": true }, "min": 2 } }),
        json!({ "absence": { "a": "x", "max": 3 } }),
        json!({ "absence": { "a": "x", "max": 0 } }),
        json!({ "exactly": {
            "a": { "name": "x", "command": "c", "path": "p", "args": { "q": "x" }, "result": "r" },
            "count": 2,
        } }),
        json!({ "init": { "a": "x", "overlap": "pass" } }),
        json!({ "end": { "a": "x" } }),
        json!({ "responded_existence": {
            "a": "x",
            "b": "y",
            "within": "90s",
            "same": ["args.x", { "a": "result.*.id", "b": "args.0" }],
        } }),
        json!({ "response": {
            "a": "x",
            "b": "y",
            "within": "1h",
            "same": ["args"],
            "overlap": "not_evaluated",
        } }),
    ];
    rules.extend([
        json!({ "absence": { "a": ["x", { "name": "y", "where": {
            "args.amount": { "gt": 10, "lte": "20.50" },
            "args.country": ["DE", "AT"],
            "args.approved": true,
            "result.items.*.id": { "not_equals": [1], "regex": "z", "exists": true },
        } }] } }),
        json!({ "not_succession": { "a": "x", "b": ["y", "z"], "same": [
            { "a": "result", "b": "args.body", "compare": "a_in_b" },
            { "a": "result", "b": "args.body", "compare": "shared_text", "min_length": 20 },
        ] } }),
        json!({ "total": {
            "a": "x",
            "of": "args.amount",
            "max": 0.5,
            "within": "1h",
            "same": ["args.account"],
        } }),
    ]);
    let others = RULE_TEMPLATES.iter().filter(|(template, has_b)| {
        *has_b && !["responded_existence", "response"].contains(template)
    });
    rules.extend(others.map(|(template, _)| json!({ *template: { "a": "x", "b": "y" } })));
    rules
}

#[test]
fn a_criterion_keeps_its_revision_on_the_way_through_a_message() {
    for written in every_evaluator() {
        let criterion: Criterion = serde_json::from_value(written.clone())
            .unwrap_or_else(|error| panic!("{written}: {error}"));
        let message = super::super::criterion(&criterion).unwrap();
        let bytes = message.encode_to_vec();
        // The descriptors must have every field that the generated types write.
        let dynamic = DynamicMessage::decode(criterion_message(), bytes.as_slice()).unwrap();
        assert_eq!(dynamic.unknown_fields().count(), 0, "{written}");
        let message = messages::Criterion::decode(bytes.as_slice()).unwrap();
        let text = super::super::document(&message).unwrap();
        let read = config::criterion(&text, None, PatternLimits::FILE)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read.revision(), criterion.revision(), "{written}");
    }
}

#[test]
fn the_messages_have_the_fields_of_the_types_that_are_read_and_no_others() {
    let schema = schemars::schema_for!(Criterion).to_value();
    let mut seen = BTreeSet::new();
    compare(
        &schema,
        &schema,
        &criterion_message(),
        "Criterion",
        &mut seen,
    );
    assert!(seen.len() > 30, "{seen:?}");
}

fn compare(
    whole: &Value,
    schema: &Value,
    message: &MessageDescriptor,
    path: &str,
    seen: &mut BTreeSet<String>,
) {
    let schema = resolved(whole, schema);
    // An enum of evaluators: each choice is an object with one property.
    let choices = schema
        .get("oneOf")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let properties: serde_json::Map<String, Value> =
        match schema.get("properties").and_then(Value::as_object) {
            Some(properties) => properties.clone(),
            None => choices
                .iter()
                .filter_map(|choice| choice.get("properties")?.as_object())
                .flat_map(Clone::clone)
                .collect(),
        };
    // A map with the user's own names, or values of any shape, has no fixed fields.
    if properties.is_empty() {
        return;
    }
    let named: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
    let fields: Vec<_> = message.fields().collect();
    for field in &fields {
        // One message represents the three kinds of patterns.
        assert!(
            named.contains(field.name()) || message.name() == "CallPattern",
            "{path}: nothing reads `{}`",
            field.name()
        );
    }
    // Some fields accept only null, which a message omits.
    let set = (properties.iter()).filter(|(_, property)| property["type"] != "null");
    for (name, property) in set {
        let field = fields
            .iter()
            .find(|field| field.name() == name)
            .unwrap_or_else(|| panic!("{path}: no message has `{name}`"));
        let path = format!("{path}.{name}");
        if let FieldKind::Message(inner) = field.kind()
            && !inner.full_name().starts_with("google.")
            && !field.is_map()
        {
            let property = resolved(whole, property);
            compare(
                whole,
                property.get("items").unwrap_or(property),
                &inner,
                &path,
                seen,
            );
        }
        seen.insert(path);
    }
}

/// Follows references. If a value has several spellings, picks the one with fields.
fn resolved<'a>(whole: &'a Value, mut schema: &'a Value) -> &'a Value {
    loop {
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            schema = whole.pointer(target.trim_start_matches('#')).unwrap();
        } else if let Some(ways) = schema.get("anyOf").and_then(Value::as_array) {
            schema = ways
                .iter()
                .map(|way| resolved(whole, way))
                .find(|way| way.get("properties").is_some())
                .unwrap_or(&ways[0]);
        } else {
            return schema;
        }
    }
}

#[test]
fn whole_numbers_stay_whole_and_other_values_stay_as_they_are() {
    let written = json!([2.0, -1.0, 1.5, 1e300, "2.0", true, null, { "n": 3.0 }]);
    let expected = json!([2, -1, 1.5, 1e300, "2.0", true, null, { "n": 3 }]);
    assert_eq!(to_json(&from_json(written)), Ok(expected));
    let infinite = ProtoValue {
        kind: Some(Kind::NumberValue(f64::INFINITY)),
    };
    assert!(to_json(&infinite).is_err());
}
