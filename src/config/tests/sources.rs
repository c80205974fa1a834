//! Tests of the precedence and spelling of sources. They do not prove that the values have an
//! effect.

use super::super::{Protocol, keys, variables};
use super::{Config, Given, config, json, messages, titles};

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_opentelemetry_beats_the_default() {
    let otel = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317");
    let own = ("SPANSCORE_FORWARD__ENDPOINT", "http://own:4317");
    let text = "\nforward:\n  endpoint: http://file:4317\n";
    let flag = ("forward.endpoint", "http://flag:4317");
    let cases = [
        (Given::default(), None, "forward.endpoint"),
        (
            Given {
                variables: &[otel],
                ..Given::default()
            },
            Some("http://otel:4317"),
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        (
            Given {
                text,
                variables: &[otel],
                ..Given::default()
            },
            Some("http://file:4317"),
            "forward.endpoint (spanscore.yaml:3)",
        ),
        (
            Given {
                text,
                variables: &[otel, own],
                ..Given::default()
            },
            Some("http://own:4317"),
            "SPANSCORE_FORWARD__ENDPOINT",
        ),
        (
            Given {
                text,
                variables: &[otel, own],
                flags: &[flag],
                ..Given::default()
            },
            Some("http://flag:4317"),
            "--set forward.endpoint",
        ),
    ];
    for (given, endpoint, origin) in cases {
        let config = given.config();
        assert_eq!(config.forward.endpoint.as_deref(), endpoint);
        assert_eq!(config.origin_of("forward.endpoint"), origin);
        assert_eq!(
            config
                .forward_destination()
                .map(|destination| destination.origin),
            endpoint.map(|_| origin.to_owned())
        );
    }
}

#[test]
fn a_null_in_the_file_wins_over_opentelemetry() {
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"),
    ];
    let given = |text| {
        Given {
            text,
            variables: &variables,
            ..Given::default()
        }
        .config()
        .forward
    };
    assert_eq!(
        given("forward: { endpoint: null, tls: null }").endpoint,
        None
    );
    assert_eq!(given("forward: { endpoint: null, tls: null }").tls, None);
    // A section whose keys are all commented out is ignored.
    assert_eq!(
        given("forward:\n  # endpoint: x\n").endpoint.as_deref(),
        Some("http://otel:4317")
    );
}

#[test]
fn opentelemetrys_variables_are_read_in_their_own_formats() {
    let variables = [
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "https://otlp.example.com/base",
        ),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%2Cc, x = y=z ,"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert.pem"),
    ];
    let destination = Given {
        variables: &variables,
        ..Given::default()
    }
    .config()
    .forward_destination()
    .unwrap();
    let headers: Vec<_> = destination
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(headers, [("api-key", "a b,c"), ("x", "y=z")]);
    assert_eq!(
        destination.endpoint.to_string(),
        "https://otlp.example.com:443/base"
    );
    assert_eq!(destination.protocol, Protocol::HttpProtobuf);
    assert_eq!(destination.compression, super::super::Compression::Gzip);
    assert_eq!(destination.timeout, std::time::Duration::from_millis(2500));
    assert_eq!(destination.tls.ca_file.unwrap().to_str(), Some("/ca.pem"));
    assert_eq!(destination.tls.key_file.unwrap().to_str(), Some("/key.pem"));
    assert_eq!(
        destination.tls.cert_file.unwrap().to_str(),
        Some("/cert.pem")
    );
}

#[test]
fn a_wrong_variable_is_named() {
    let cases = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization: x"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem"),
        ("SPANSCORE_FORWARD__TIMEOUT", "soon"),
        ("SPANSCORE_FORWARD__SIGNALS", "[traces, spans]"),
        ("SPANSCORE_FORWARD__SIGNALS", "[traces"),
        ("SPANSCORE_FORWARD__RETRY", "{ multiplyer: 2 }"),
        ("SPANSCORE_FORWARD__ENDPIONT", "http://a"),
        ("SPANSCORE_FORWARD_ENDPOINT", "http://a"),
        ("SPANSCORE_WHATEVER", "1"),
        ("SPANSCORE_CRITERIA__NAME", "1"),
    ];
    let report: Vec<String> = cases
        .iter()
        .map(|variable| {
            Given {
                variables: &[*variable],
                ..Given::default()
            }
            .messages()
            .render(false)
        })
        .collect();
    assert!(
        report.iter().all(|report| report.starts_with("error")),
        "{report:?}"
    );
    insta::assert_snapshot!(report.join("\n"));
    let flags = [
        ("forward.endpiont", "http://a"),
        ("forward.timeout", "soon"),
    ];
    insta::assert_snapshot!(Given { flags: &flags, ..Given::default() }.messages(), @r"
    error: `soon` is not a duration
      --> --set forward.timeout
       |
     1 | soon
       | ^^^^ write a whole number with a unit, such as `500ms`, `2s`, `15m` or `1h`

    error: unknown key `forward.endpiont` in `--set forward.endpiont=…`
       = did you mean `forward.endpoint`?
    ");
}

#[test]
fn an_endpoint_per_signal_is_mentioned_where_nothing_would_be_forwarded() {
    let variable = (
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "http://a:4318/v1/traces",
    );
    let warned = Given {
        variables: &[variable],
        ..Given::default()
    }
    .messages();
    assert_eq!(
        titles(&warned),
        ["`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is not read, and nothing is forwarded"]
    );
    let other = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
    assert!(
        Given {
            variables: &[variable, other],
            ..Given::default()
        }
        .messages()
        .is_empty()
    );
}

#[test]
fn variables_that_kubernetes_sets_for_a_service_of_our_name_are_no_mistake() {
    let variables = [
        ("SPANSCORE_SERVICE_HOST", "10.0.0.1"),
        ("SPANSCORE_SERVICE_PORT", "4317"),
        ("SPANSCORE_SERVICE_PORT_OTLP_GRPC", "4317"),
        ("SPANSCORE_PORT", "tcp://10.0.0.1:4317"),
        ("SPANSCORE_PORT_4317_TCP", "tcp://10.0.0.1:4317"),
        ("SPANSCORE_PORT_4317_TCP_ADDR", "10.0.0.1"),
        ("SPANSCORE_PORT_4317_TCP_PROTO", "tcp"),
        ("SPANSCORE_ADMIN_SERVICE_HOST", "10.0.0.2"),
        ("SPANSCORE_ADMIN_PORT_13133_TCP_PORT", "13133"),
    ];
    assert_eq!(
        json(
            &Given {
                variables: &variables,
                ..Given::default()
            }
            .config()
        ),
        json(&Config::default())
    );
}

#[test]
fn an_empty_variable_is_as_good_as_none() {
    let variables = [
        ("SPANSCORE_FORWARD__ENDPOINT", ""),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        ("SPANSCORE_FORWARD__TIMEOUT", "  "),
    ];
    assert_eq!(
        json(
            &Given {
                variables: &variables,
                ..Given::default()
            }
            .config()
        ),
        json(&Config::default())
    );
}

#[test]
fn every_key_can_be_set_by_a_variable() {
    let defaults = json(&Config::default());
    let leaves: Vec<Vec<String>> = keys::known()
        .iter()
        .filter(|key| !key.section)
        .map(|key| key.path.clone())
        .collect();
    assert!(leaves.len() > 80, "{}", leaves.len());
    let variables: Vec<(String, String)> = leaves
        .iter()
        .map(|path| {
            let value = match defaults.pointer(&format!("/{}", path.join("/"))) {
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                // Keys below `tls: null` and `sasl: null` have no value.
                None if path.ends_with(&["mechanism".to_owned()]) => "PLAIN".to_owned(),
                None if path.ends_with(&["insecure_skip_verify".to_owned()]) => "false".to_owned(),
                None => "x.pem".to_owned(),
            };
            (variables::variable_of(path), value)
        })
        .collect();
    let borrowed: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let config = Given {
        variables: &borrowed,
        ..Given::default()
    }
    .config();
    for path in &leaves {
        assert_eq!(
            config.origin_of(&path.join(".")),
            variables::variable_of(path)
        );
    }
    assert_eq!(
        config
            .scores
            .span
            .peer
            .tls
            .unwrap()
            .ca_file
            .unwrap()
            .to_str(),
        Some("x.pem")
    );
}

#[test]
fn a_list_or_map_in_a_variable_is_inline_yaml_and_anything_else_is_taken_as_it_is() {
    let variables = [
        ("SPANSCORE_FORWARD__SIGNALS", "[traces, logs]"),
        (
            "SPANSCORE_FORWARD__RETRY",
            "{ multiplier: 2, max_interval: 10s }",
        ),
        ("SPANSCORE_FORWARD__HEADERS__X_API_KEY", "a: b #c"),
        (
            "SPANSCORE_CRITERIA",
            "[{ name: a, evaluate: { tool_call_order: { tool_calls_order: [x] } } }]",
        ),
        ("SPANSCORE_FORWARD__ENDPOINT", "http://a"),
    ];
    let config = Given {
        text: "forward: { headers: { y: z } }",
        variables: &variables,
        ..Given::default()
    }
    .config();
    assert_eq!(config.forward.signals.len(), 2);
    assert_eq!(config.forward.retry.multiplier, 2.0);
    assert_eq!(config.criteria[0].name, "a");
    let headers: Vec<_> = config
        .forward
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(headers, [("x-api-key", "a: b #c"), ("y", "z")]);
}

#[test]
fn a_mistake_in_the_file_is_reported_even_if_a_variable_overrides_it() {
    let variables = [("SPANSCORE_FORWARD__TIMEOUT", "1s")];
    let report = Given {
        text: "forward: { timeout: soon }\n",
        variables: &variables,
        ..Given::default()
    }
    .messages();
    assert_eq!(titles(&report), ["`soon` is not a duration"]);
    // A variable may supply a value that is missing in the file.
    let variables = [("SPANSCORE_RECEIVERS__OTLP__TLS__KEY_FILE", "key.pem")];
    let given = Given {
        text: "receivers: { otlp: { tls: { cert_file: cert.pem } } }\n",
        variables: &variables,
        ..Given::default()
    };
    assert_eq!(
        given.config().receivers.otlp.tls.unwrap().key_file.to_str(),
        Some("key.pem")
    );
}

#[test]
fn variables_and_files_are_put_into_values() {
    let text = r#"
forward:
  endpoint: ${env:SCHEME:-https}://${env:HOST}:4317
  compression: "${env:COMPRESSION:-none}"
  timeout: ${env:TIMEOUT:-10s}
  headers:
    authorization: Bearer ${file:secrets/key}
    literal: $${env:HOST} costs 5$ {x}
scores: { span: { enabled: "${env:SPANS}", sample_pass: "${env:SHARE:-0.5}" } }
assemble: { span_limit: "${env:LIMIT}" }
tools: { ignore: ["a${2}", "${env:NUMBER}"] }
"#;
    let variables = [
        ("HOST", "otlp.example.com"),
        ("SPANS", "false"),
        ("LIMIT", "7"),
        ("NUMBER", "5"),
    ];
    let loaded = Given {
        text,
        variables: &variables,
        files: &[("secrets/key", "s3cr3t\n")],
        ..Given::default()
    }
    .load()
    .unwrap();
    let config = loaded.config;
    assert_eq!(
        config.forward.endpoint.as_deref(),
        Some("https://otlp.example.com:4317")
    );
    assert_eq!(config.forward.timeout.to_string(), "10s");
    assert_eq!(
        config.forward.headers["authorization"].expose(),
        "Bearer s3cr3t"
    );
    assert_eq!(
        config.forward.headers["literal"].expose(),
        "${env:HOST} costs 5$ {x}"
    );
    assert!(!config.scores.span.enabled);
    assert_eq!(config.scores.span.sample_pass, 0.5);
    assert_eq!(config.assemble.span_limit, 7);
    assert_eq!(config.tools.ignore, ["a${2}", "5"]);
    assert_eq!(loaded.files, [std::path::PathBuf::from("secrets/key")]);
}

#[test]
fn json_is_accepted_also_with_tabs() {
    let text = "{\n\t\"forward\": {\n\t\t\"endpoint\": \"http://a:4317\",\n\t\t\"timeout\": \"2s\"\
        \n\t},\n\t\"criteria\": []\n}\n";
    assert_eq!(config(text).forward.timeout.to_string(), "2s");
    let report = messages(&text.replace("2s", "soon"));
    let spot = report.iter().next().unwrap().spot.clone().unwrap();
    assert_eq!((spot.line, spot.column), (4, 14));
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_no_matter() {
    let report = messages("\u{feff}forward:\r\n  timeout: soon\r\n");
    let spot = report.iter().next().unwrap().spot.clone().unwrap();
    assert_eq!((spot.line, spot.column, spot.width), (2, 12, 4));
    assert_eq!(spot.excerpt.as_deref(), Some("  timeout: soon"));
}

#[test]
fn words_and_numbers_stay_as_they_are_written_where_a_text_is_wanted() {
    let config = config("tools: { ignore: [no, 1.10, 0x10, null_call, \"true\", 007] }\n");
    assert_eq!(
        config.tools.ignore,
        ["no", "1.10", "0x10", "null_call", "true", "007"]
    );
}

// === criteria files ===

const CRITERION: &str =
    "criteria:\n  - name: NAME\n    evaluate: { tool_call_order: { tool_calls_order: [a] } }\n";

#[test]
fn criteria_come_from_the_files_beside_the_main_one_too() {
    let (a, b) = (
        CRITERION.replace("NAME", "a"),
        CRITERION.replace("NAME", "b"),
    );
    let main = format!(
        "criteria_files: [\"criteria/*.yaml\"]\n{}",
        CRITERION.replace("NAME", "main")
    );
    let files = [
        ("criteria/b.yaml", b.as_str()),
        ("criteria/a.yaml", a.as_str()),
        ("other/c.yaml", "wrong: 1"),
    ];
    let loaded = Given {
        text: &main,
        files: &files,
        ..Given::default()
    }
    .load()
    .unwrap();
    let names: Vec<_> = loaded
        .config
        .criteria
        .iter()
        .map(|criterion| criterion.name.as_str())
        .collect();
    assert_eq!(names, ["main", "a", "b"]);
    let file_of = |name: &&str| &*loaded.config.criterion_files()[*name];
    let files: Vec<&str> = names.iter().map(file_of).collect();
    assert_eq!(
        files,
        ["spanscore.yaml", "criteria/a.yaml", "criteria/b.yaml"]
    );
    assert_eq!(loaded.files.len(), 2);
}

#[test]
fn mistakes_of_all_criteria_files_are_reported_at_once() {
    let b = CRITERION
        .replace("NAME", "main")
        .replace("tool_calls_order", "tool_calls_ordr");
    let main = format!(
        "criteria_files: [\"criteria/*.yaml\", missing.yaml]\n{}",
        CRITERION.replace("NAME", "main")
    );
    let a = CRITERION.replace("NAME", "main");
    let files = [
        ("criteria/a.yaml", a.as_str()),
        ("criteria/b.yaml", b.as_str()),
        ("criteria/c.yaml", "forward: {}\n"),
        ("criteria/d.yaml", "- name: d\n"),
        ("criteria/e.yaml", "criteria: none\n"),
        ("criteria/f.yaml", "criteria: [\n"),
        ("criteria/g.yaml", "# nothing\n"),
    ];
    insta::assert_snapshot!(
        Given {
            text: &main,
            files: &files,
            ..Given::default()
        }
        .messages()
    );
}

#[test]
fn top_level_keys_for_anchors_are_not_read() {
    let text = "x-order: &order { tool_calls_order: [pay, \"${env:NOT_SET:-ship}\"] }
x-unused: { anything: \"${env:NOT_SET}\" }
criteria:
  - { name: a, evaluate: { tool_call_order: *order } }
";
    let config = config(text);
    let criteria = serde_json::to_value(&config.criteria).unwrap();
    assert_eq!(
        criteria[0]["evaluate"],
        serde_json::json!({
            "tool_call_order": { "tool_calls_order": ["pay", "ship"], "strict": false },
        })
    );
}

#[test]
fn more_name_attributes_than_can_be_numbered_are_a_mistake() {
    let names = |n| {
        format!(
            "tools: {{ name_attributes: [{}] }}",
            vec!["a"; n].join(", ")
        )
    };
    let limit = judge::extract::Recogniser::MAX_NAME_ATTRIBUTES;
    config(&names(limit));
    assert_eq!(
        titles(&messages(&names(limit + 1))),
        [format!(
            "`tools.name_attributes` has {} entries, and at most {limit} are possible",
            limit + 1
        )]
    );
}
