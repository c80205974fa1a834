//! Tests of the files that we ship: the example with every key, the starter, the schema, the
//! printed configuration. They do not prove that the comments in those files are true.

use std::sync::Arc;

use judge::extract::{CallUncertainty, CapturedParts, ToolCall, Trajectory};
use otlp::span::TraceId;
use serde_json::Value;

use super::super::{Config, keys, schema, starter};
use super::{Given, config, json, messages};

const EXAMPLE: &str = include_str!("../../../deploy/spanscore.yaml");

#[test]
fn the_example_holds_every_key_with_its_default() {
    let example = config(EXAMPLE);
    assert_eq!(json(&example), json(&Config::default()));
    // The example sets each key, so the origin of each key is the file.
    for key in keys::known().iter().filter(|key| {
        let is_below_null = key.path.iter().any(|part| part == "tls" || part == "sasl");
        !key.section && !is_below_null
    }) {
        let key = key.path.join(".");
        assert!(
            example.origin_of(&key).contains("spanscore.yaml"),
            "`{key}` is not in deploy/spanscore.yaml"
        );
    }
    assert!(messages(EXAMPLE).is_empty());
}

#[test]
fn the_criterion_in_the_comments_of_the_example_is_right() {
    let (_, after) = EXAMPLE
        .split_once("A criterion looks like this:\n")
        .unwrap();
    let criterion: String = after
        .lines()
        .take_while(|line| line.starts_with("#  "))
        .map(|line| format!("{}\n", &line[1..]))
        .collect();
    let config = config(&format!("criteria:\n{criterion}"));
    assert_eq!(config.criteria[0].name, "checkout-order");
    assert_eq!(config.criteria[0].threshold, 0.8);
}

#[test]
fn the_schema_knows_every_key_and_describes_it() {
    let schema = schema();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert_eq!(schema["additionalProperties"], false);
    let example: Value = json(&config(EXAMPLE));
    let mut n_keys = 0;
    walk(&schema, &schema, &example, "", &mut n_keys);
    assert!(n_keys > 80, "{n_keys}");
    // A variable may supply the number as text.
    let limit = schema
        .pointer("/$defs/Assemble/properties/span_limit")
        .unwrap();
    assert_eq!(limit["type"], serde_json::json!(["integer", "string"]));
    // A section or list may be empty, like `forward:` in the starter; a value may not.
    let null = serde_json::json!({ "type": "null" });
    assert_eq!(schema.pointer("/properties/forward/anyOf/1"), Some(&null));
    assert_eq!(
        schema.pointer("/properties/criteria/type"),
        Some(&serde_json::json!(["array", "null"]))
    );
    assert_eq!(schema.pointer("/$defs/Log/properties/level/anyOf"), None);
    assert!(
        messages("forward:\ncriteria:\n").is_empty() && !messages("log: { level: }").is_empty()
    );
}

fn walk(schema: &Value, node: &Value, value: &Value, path: &str, n_keys: &mut usize) {
    let node = match node.get("anyOf").and_then(Value::as_array) {
        Some(choices) => &choices[0],
        None => node,
    };
    let resolved = match node.get("$ref").and_then(Value::as_str) {
        Some(target) => schema
            .pointer(target.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{path}: {target}")),
        None => node,
    };
    let Some(properties) = resolved.get("properties").and_then(Value::as_object) else {
        return;
    };
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        let property = properties
            .get(key)
            .unwrap_or_else(|| panic!("{path} is not in the schema"));
        assert!(
            property.get("description").is_some(),
            "{path} has no description"
        );
        *n_keys += 1;
        walk(schema, property, value, &path, n_keys);
    }
}

#[test]
fn printed_configuration_can_be_read_again() {
    let text = "forward: { endpoint: \"http://a:4317\", timeout: 1500ms, signals: [logs] }\
        \nscores: { span: { sample_pass: 0.25 } }\
        \ntools: { ignore: [\"no\", \"a: b\", \"#c\", \"-\", \"\", \"1\", \"true\"] }\
        \ncriteria: [{ name: a, description: \"x # y\", select: { calls: \"*\" }, \
        evaluate: { tool_call_order: { tool_calls_order: [a, b] } } }]\n";
    for given in [text, EXAMPLE, ""] {
        let printed = config(given).to_yaml();
        assert_eq!(json(&config(&printed)), json(&config(given)), "{printed}");
    }
}

#[test]
fn printed_configuration_says_where_each_value_came_from() {
    let variables = [
        ("SPANSCORE_FORWARD__ENDPOINT", "http://a:4317"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "k=v"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
    ];
    let config = Given {
        text: "log:\n  level: debug\n",
        variables: &variables,
        ..Given::default()
    }
    .config();
    let marked: Vec<_> = config
        .to_yaml()
        .lines()
        .filter(|line| line.contains('#'))
        .map(str::to_owned)
        .collect();
    insta::assert_snapshot!(marked.join("\n"), @r##"
      endpoint: "http://a:4317"  # SPANSCORE_FORWARD__ENDPOINT
        k: "****"  # OTEL_EXPORTER_OTLP_HEADERS
      timeout: 500ms  # OTEL_EXPORTER_OTLP_TIMEOUT
      level: debug  # spanscore.yaml:2
    "##);
}

// === init ===

#[test]
fn the_starter_is_right_as_it_is_and_with_its_comments_taken_away() {
    let text = starter(None);
    assert!(messages(&text).is_empty());
    assert!(config(&text).criteria.is_empty());
    let uncommented: String = text
        .lines()
        .map(|line| {
            let code = line
                .trim_start()
                .strip_prefix("# ")
                .filter(|_| line.starts_with("  "));
            let indent = line.len() - line.trim_start().len();
            code.map_or_else(
                || format!("{line}\n"),
                |code| format!("{:indent$}{code}\n", ""),
            )
        })
        .collect();
    let variables = [("OTLP_API_KEY", "k")];
    let config = Given {
        text: &uncommented,
        variables: &variables,
        ..Given::default()
    }
    .config();
    assert_eq!(config.criteria[0].name, "checkout-order");
    assert_eq!(
        config.forward_destination().unwrap().headers[0].1.expose(),
        "Bearer k"
    );
}

#[test]
fn criteria_are_proposed_from_what_all_runs_share() {
    let trajectories = [
        trajectory(
            "invoke_agent shop",
            Some("shop"),
            &["validate", "search", "search", "order"],
        ),
        trajectory(
            "invoke_agent shop",
            Some("shop"),
            &["validate", "search", "price", "order", "mail"],
        ),
        trajectory("POST /refund *", None, &["refund"]),
        trajectory("idle", None, &[]),
    ];
    let text = starter(Some(&trajectories));
    insta::assert_snapshot!(text.split_once("\ncriteria:\n").unwrap().1, @r#"
      - name: shop-order
        description: "what all 2 recorded runs did, in this order"
        select:
          root: "invoke_agent shop"
          agent: shop
        evaluate:
          tool_call_order:
            tool_calls_order: [validate, search, order]
      - name: post-refund-order
        description: "what one recorded run did, in this order"
        select:
          root: "POST /refund ?"
        evaluate:
          tool_call_order:
            tool_calls_order: [refund]
      - name: shop-effort
        description: "at most twice as many calls as any of 2 recorded runs made"
        select:
          root: "invoke_agent shop"
          agent: shop
        evaluate:
          efficiency:
            max_calls: 10
      - name: post-refund-effort
        description: "at most twice as many calls as the recorded run made, and few repeats"
        select:
          root: "POST /refund ?"
        evaluate:
          efficiency:
            max_calls: 2
            max_repeats: 2
    "#);
    let config = config(&text);
    let selected: Vec<_> = config
        .criteria
        .iter()
        .map(|criterion| {
            trajectories
                .iter()
                .filter(|trajectory| criterion.select.matches(trajectory))
                .count()
        })
        .collect();
    assert_eq!(selected, [2, 1, 2, 1]);
    let text = starter(Some(&trajectories[3..]));
    assert!(text.contains("nothing can be proposed") && messages(&text).is_empty());
}

#[test]
fn runs_without_an_agent_are_not_judged_with_those_that_have_one() {
    let trajectories = [
        trajectory("session", None, &["plan"]),
        trajectory("session", Some("shop"), &["order"]),
        trajectory("", Some("shop"), &["ask"]),
    ];
    let config = config(&starter(Some(&trajectories)));
    let selected = config.criteria.iter().map(|criterion| {
        let runs = trajectories.iter().enumerate();
        runs.filter(|(_, run)| criterion.select.matches(run))
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    });
    let each = [[0], [1], [2]];
    assert_eq!(selected.collect::<Vec<_>>(), [each, each].concat());
}

fn trajectory(root: &str, agent: Option<&str>, names: &[&str]) -> Trajectory {
    let call = |name: &&str| ToolCall {
        name: Arc::from(*name),
        call_id: None,
        args: None,
        result: None,
        captured: CapturedParts::default(),
        error: false,
        agent: None,
        agent_run: None,
        step: 0,
        parallel_group: None,
        span_id: None,
        start_unix_nanos: 0,
        end_unix_nanos: 0,
        convention: Arc::from("tool.name"),
        partial: false,
        untimed: false,
        uncertainty: CallUncertainty::default(),
    };
    Trajectory {
        service: Arc::from("s"),
        root: Arc::from(root),
        agent: agent.map(Arc::from),
        n_spans: 1,
        ..Trajectory::of_calls(
            TraceId::try_new(&[1; 16]).unwrap(),
            names.iter().map(call).collect(),
        )
    }
}
