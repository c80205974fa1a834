//! Tests how expectations on spans are parsed, and which errors they cause.

use otlp::span::SpanId;

use super::*;
use crate::evaluate::judge::JudgedBy;

fn said(text: &str) -> StatedValue {
    StatedValue {
        span_id: SpanId::try_new(&[1; 8]),
        text: Some(Arc::from(text)),
        cut: false,
    }
}

fn read(criteria: &[&str], expect: &[&str]) -> SpanExpectations {
    read_for(&[], criteria, expect)
}

fn read_for(calls: &[ToolCall], criteria: &[&str], expect: &[&str]) -> SpanExpectations {
    let said = |texts: &[&str]| texts.iter().map(|text| said(text)).collect();
    let attributes = ExpectationAttributes {
        case_id: None,
        criteria: said(criteria),
        expect: said(expect),
    };
    SpanExpectations::read(
        &attributes,
        calls,
        |name| ["a", "b", "c, d"].contains(&name),
        16_384,
    )
}

fn error(expectations: &SpanExpectations) -> (&'static str, &str) {
    match &expectations.own {
        Some(Err(invalid)) => (invalid.error.kind, &invalid.error.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_come_as_a_comma_list_or_as_an_array() {
    for (text, expected) in [
        ("a", vec!["a"]),
        (" b , a,,a ", vec!["a", "b"]),
        ("[\"a\",\"c, d\"]", vec!["a", "c, d"]),
        ("", vec![]),
        ("[]", vec![]),
    ] {
        let read = read(&[text], &[]);
        assert_eq!(
            (
                read.names.iter().map(String::as_str).collect::<Vec<_>>(),
                read.own
            ),
            (expected, None),
            "{text}"
        );
    }
}

#[test]
fn an_unusable_expectation_is_an_error_with_its_place_and_spares_the_rest() {
    let order = r#"{"tool_call_order": {"tool_calls_order": ["a"]}}"#;
    for (criteria, expect, names, kind, parts) in [
        (
            vec!["a, x"],
            vec![],
            1,
            "unknown_criterion",
            [
                "`spanscore.criteria` of span 0101010101010101 names `x`",
                "registered",
            ],
        ),
        (
            vec!["a", "[1]"],
            vec![],
            1,
            "unreadable_expectation",
            [
                "is not a list of names: invalid type: integer",
                "line 1 column 2",
            ],
        ),
        (
            vec![],
            vec![""],
            0,
            "unreadable_expectation",
            ["EOF", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"],
        ),
        (
            vec![],
            vec![&order[..20]],
            0,
            "unreadable_expectation",
            ["`spanscore.expect` of span", "line 1 column 20"],
        ),
        (
            vec![],
            vec!["{\"tool_call_ordr\": {}}"],
            0,
            "unreadable_expectation",
            ["unknown variant `tool_call_ordr`", "`tool_order`"],
        ),
        (
            vec![],
            vec!["{\"unusable\": {}}"],
            0,
            "unreadable_expectation",
            ["unknown variant", "line 1 column"],
        ),
        (
            vec![],
            vec!["{\"tool_call_order\": \"4111 1111\"}"],
            0,
            "unreadable_expectation",
            ["invalid type: a string, expected", "line 1"],
        ),
        (
            vec![],
            vec![order, "{}"],
            0,
            "conflicting_expectations",
            ["conflicts with that of span 0101010101010101", "keep one"],
        ),
        (
            vec!["x"],
            vec![order],
            0,
            "unknown_criterion",
            ["names `x`", ""],
        ),
    ] {
        let read = read(&criteria, &expect);
        let (found, message) = error(&read);
        assert_eq!((read.names.len(), found), (names, kind), "{message}");
        parts
            .iter()
            .for_each(|part| assert!(message.contains(part), "{message}"));
        assert!(!message.contains("4111"), "{message}");
    }
}

#[test]
fn nulls_and_a_wrong_number_of_evaluators_are_errors() {
    let two = r#"{"tool_order": {"expected_tools": []}, "threshold": 0.5}"#;
    let beside = r#"{"threshold": 0.5, "tool_order": {"expected_tools": []}}"#;
    let null = r#"{"tool_calls": {"required": [{"name": "a", "command": null}]}}"#;
    for (text, part) in [
        (two, "has the keys `tool_order`, `threshold`: keep one"),
        (beside, "has the keys `threshold`, `tool_order`: keep one"),
        ("{}", "names no evaluator"),
        (r#"{"tool_calls": null}"#, "invalid type: null"),
        (null, "invalid type: null"),
    ] {
        let read = read(&[], &[text]);
        let (kind, message) = error(&read);
        assert_eq!(kind, "unreadable_expectation");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn equal_expectations_in_other_spelling_do_not_conflict() {
    let spellings = [
        r#"{"tool_order": {"expected_tools": [{"tool_name": "a", "parameters": {"n": 1}}]}}"#,
        r#"{ "tool_order": { "exact_match": false, "expected_tools":
            [{ "parameters": { "n": 1.0 }, "tool_name": "\u0061" }] } }"#,
    ];
    assert_eq!(read(&[], &spellings), read(&[], &spellings[..1]));
    let many: Vec<String> = (0..20)
        .map(|n| spellings[0].replace(": 1}", &format!(": 1.{}}}", "0".repeat(n + 1))))
        .collect();
    let many: Vec<&str> = std::iter::once(spellings[0])
        .chain(many.iter().map(String::as_str))
        .collect();
    assert_eq!(read(&[], &many), read(&[], &spellings[..1]));
    let others: Vec<String> = (0..20)
        .map(|n| spellings[0].replace(": 1}", &format!(": 2{n}}}")))
        .collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let message = read(&[], &others);
    assert!(
        error(&message).1.contains("differs from 19 others"),
        "{message:?}"
    );
    let different = spellings[1].replace("1.0", "1.5");
    let found = read(&[], &[spellings[0], &different]);
    assert_eq!(error(&found).0, "conflicting_expectations");
}

#[test]
fn it_carries_a_revision_of_the_expectation() {
    let own = |text: &str| match read(&[], &[text]).own.unwrap() {
        Ok(criterion) => JudgedBy::Criterion(criterion),
        Err(invalid) => JudgedBy::Invalid(invalid),
    };
    let revision = |text: &str| own(text).revision().to_owned();
    let order = revision(r#"{"tool_call_order": {"tool_calls_order": ["a"]}}"#);
    assert_eq!(
        order,
        revision(r#"{ "tool_call_order": { "strict": false, "tool_calls_order": ["a"] } }"#)
    );
    assert_ne!(
        order,
        revision(r#"{"tool_call_order": {"tool_calls_order": ["b"]}}"#)
    );
    assert_ne!(revision("{"), revision("{{"));
    assert_eq!(
        own(r#"{"execution_order": {"expected_output": ["a"]}}"#).threshold(),
        1.0,
        "whatever its evaluator's default"
    );
}

#[test]
fn patterns_of_runs_are_few_and_small() {
    let calls = |patterns: Vec<String>| {
        serde_json::json!({"tool_calls": {"disallowed": patterns}}).to_string()
    };
    assert!(
        read(&[], &[&calls(vec!["rm|mv".to_owned(); 32])])
            .own
            .unwrap()
            .is_ok()
    );
    let many = read(&[], &[&calls(vec!["a".to_owned(); 33])]);
    assert!(
        error(&many).1.contains("more than 32 patterns"),
        "{}",
        error(&many).1
    );
    let large = read(&[], &[&calls(vec!["(.{20}){20}".to_owned()])]);
    assert!(
        error(&large)
            .1
            .contains("is larger than 32 KiB when compiled"),
        "{}",
        error(&large).1
    );
    // The same pattern in a registered criterion may be larger.
    let registered = serde_json::json!({
        "name": "a",
        "evaluate": { "tool_calls": { "disallowed": ["(.{20}){20}"] } },
    });
    assert!(serde_json::from_value::<Criterion>(registered).is_ok());
}

#[test]
fn an_expectation_that_would_take_long_is_an_error() {
    let call = |result: &str| ToolCall {
        name: "a".into(),
        call_id: None,
        args: None,
        result: Some(Payload::new(result, serde_json::Value::Null, false)),
        captured: crate::extract::CapturedParts::default(),
        error: false,
        agent: None,
        agent_run: None,
        step: 0,
        parallel_group: None,
        span_id: None,
        start_unix_nanos: 0,
        end_unix_nanos: 0,
        convention: "gen_ai".into(),
        partial: false,
        untimed: false,
        uncertainty: crate::extract::CallUncertainty::default(),
    };
    let order =
        serde_json::json!({"tool_call_order": {"tool_calls_order": vec!["a"; 4_000]}}).to_string();
    let (many, large) = (vec![call(""); 5_000], vec![call(&"x".repeat(16_384)); 33]);
    for (calls, is_too_much) in [(&many, true), (&large, false)] {
        let own = read_for(calls, &[], &[&order]).own.unwrap();
        assert_eq!(own.is_err(), is_too_much, "{} calls", calls.len());
    }
    let too_much = read_for(&many, &[], &[&order]);
    assert!(error(&too_much).1.ends_with(
        "is too large to compare with 5000 calls: shorten it, or register a criterion instead"
    ));
}

#[test]
fn a_long_list_of_wrong_names_stays_short_in_the_message() {
    let names: Vec<String> = (0..1_000)
        .map(|n| format!("{n}{}", "x".repeat(500)))
        .collect();
    let read = read(&[&names.join(",")], &[]);
    let (_, message) = error(&read);
    assert!(
        message.len() < 1_024 && message.ends_with("; and 995 more"),
        "{message}"
    );
}
