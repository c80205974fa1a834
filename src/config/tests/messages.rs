//! Snapshots of the message about every kind of mistake; a new message is a new case here.

mod hostile;

use super::{Given, config, messages};

const TEN_MISTAKES: &str = r#"# A configuration with ten mistakes, and a few more.
receivers:
  otlp:
    grpc: { enabled: yes, listen: "127.0.0.1" }
    htpp: { enabled: true }
forward:
  endpoint: otel-collector:4317
  protocol: grcp
  timeout: 10 seconds
  signals: [traces, spans]
  queue: { max_size: 64MB }
criteria:
  - name: checkout-order
    evaluate:
      tool_call_ordr: { tool_calls_order: [search, edit] }
  - name: checkout
    treshold: 0.8
    evaluate:
      tool_call_order: { tool_calls_order: search }
  - evaluate: { tool_call_order: { tool_calls_order: [search] } }
    threshold: 3
"#;

#[test]
fn all_mistakes_of_a_file_are_reported_at_once() {
    let found: Vec<String> = messages(TEN_MISTAKES)
        .iter()
        .map(|problem| {
            let spot = problem.spot.as_ref().unwrap();
            format!("{}:{} {}", spot.line, spot.column, problem.title)
        })
        .collect();
    assert_eq!(
        found,
        [
            "4:22 `receivers.otlp.grpc.enabled` is the text `yes`",
            "4:35 `127.0.0.1` has no port",
            "5:5 unknown key `htpp` in `receivers.otlp`",
            "7:13 `otel-collector:4317` has no scheme",
            "8:13 unknown protocol `grcp`",
            "9:12 `10 seconds` is not a duration",
            "10:21 unknown signal `spans`",
            "11:22 `64MB` is not a size",
            "15:7 unknown evaluator `tool_call_ordr`",
            "17:5 unknown key `treshold` in `criteria[checkout]`",
            "19:44 `criteria[checkout].evaluate.tool_call_order.tool_calls_order` is the text \
             `search`",
            "20:5 `criteria[2]` has no `name`",
            "21:16 a threshold is a number from 0 to 1, since scores are; found 3",
        ]
    );
}

#[test]
fn an_unknown_evaluator_is_shown_as_documented() {
    let text = "\n\n\n\n\n\n\n\n\n\n\ncriteria:\n  - name: a\n    evaluate:\
        \n      tool_call_ordr: { tool_calls_order: [search, edit] }\n";
    insta::assert_snapshot!(messages(text), @r"
    error: unknown evaluator `tool_call_ordr`
      --> spanscore.yaml:15:7
       |
    15 |       tool_call_ordr: { tool_calls_order: [search, edit] }
       |       ^^^^^^^^^^^^^^ did you mean `tool_call_order`?
    ");
}

/// The name of each case, and a text that causes messages.
const CASES: &[(&str, &str)] = &[
    // === syntax ===
    ("a tab", "forward:\n\ttimeout: 1s\n"),
    (
        "a tab below spaces",
        "forward:\n  timeout: 1s\n\tprotocol: grpc\n",
    ),
    (
        "a tab in a list of maps",
        "criteria:\n-\tname: a\n\tthreshold: 1\n",
    ),
    (
        "an unclosed double quote",
        "forward:\n  endpoint: \"http://a\n  timeout: 1s\n",
    ),
    (
        "an unclosed quote before another",
        "criteria:\n  - name: \"a\n    threshold: 1\n  - name: \"b\"\n",
    ),
    (
        "an unclosed single quote in a flow map",
        "log: { level: 'info }\n",
    ),
    ("a quote inside quotes", "criteria:\n  - name: 'it's'\n"),
    ("text after quotes", "log:\n  level: \"info\" now\n"),
    ("a NUL byte", "f\0o\0r\0"),
    (
        "a secret beside an unclosed quote",
        "forward:\n  headers: { authorization: \"Bearer abc }\n",
    ),
    (
        "bad indentation",
        "forward:\n  timeout: 1s\n   protocol: grpc\n",
    ),
    ("a colon in a value", "forward:\n  endpoint: x: y\n"),
    (
        "an open bracket",
        "forward:\n  signals: [traces\n  timeout: 1s\n",
    ),
    ("an unquoted at sign", "log:\n  level: @info\n"),
    ("two documents", "log: {}\n---\nlog: {}\n"),
    (
        "a variable unquoted in a flow map",
        "forward: { endpoint: ${env:BACKEND} }\n",
    ),
    (
        "a secret beside a syntax error",
        "forward:\n  headers: { authorization: Bearer abc: d }\n",
    ),
    (
        "a key given twice",
        "forward:\n  timeout: 1s\n  protocol: grpc\n  timeout: 2s\n",
    ),
    ("an unknown alias", "log: *level\n"),
    ("a list as a key", "[a, b]: 1\n"),
    ("not a map", "- forward\n"),
    ("a long line", LONG_LINE),
    ("letters beyond ASCII", "explain: { größe: 5 }\n"),
    // === keys ===
    ("an unknown section", "fordward: {}\n"),
    (
        "a key of another section",
        "receivers:\n  otlp:\n    listen: \"127.0.0.1:4317\"\n",
    ),
    (
        "a key for anchors",
        "forward:\n  x-common: &c 5s\n  timeout: *c\n",
    ),
    ("a dotted key", "forward.endpoint: http://localhost:4319\n"),
    ("a section of the Collector", "exporters: {}\n"),
    ("a key like none", "shutdown:\n  zzz: 1\n"),
    (
        "a required key",
        "receivers:\n  otlp:\n    tls:\n      cert_file: a.pem\n",
    ),
    // === types ===
    ("a text for a section", "forward: http://localhost:4317\n"),
    ("a number for a text", "forward:\n  endpoint: [1]\n"),
    ("a text for a list", "forward:\n  signals: traces\n"),
    (
        "quoted numbers",
        "criteria:\n  - name: a\n    threshold: \"0.8\"\n    evaluate: { tool_call_count: { \
         tool_calls_count: { a: [\"<=\", \"3\"] } } }\
         \nassemble: { span_limit: \"5\", settle: \"5\" }\
         \nreceivers: { otlp: { grpc: { enabled: \"true\" } } }\n",
    ),
    (
        "a map for a list",
        "criteria:\n  name: a\n  evaluate: { tool_calls: { required: [a] } }\n",
    ),
    (
        "a flow map and a text for lists",
        "criteria:\n  - name: a\n    evaluate: { tool_calls: { required: { name: b } } }\n  \
         - name: b\n    evaluate: { tool_call_order: { tool_calls_order: a } }\n",
    ),
    ("a negative count", "assemble:\n  span_limit: -1\n"),
    ("a fraction for a count", "assemble:\n  span_limit: 1.5\n"),
    ("a bare number for a duration", "forward:\n  timeout: 10\n"),
    ("a boolean for a duration", "forward:\n  timeout: true\n"),
    ("no value", "forward:\n  timeout:\n"),
    ("a map for a word", "log:\n  level: { info: debug }\n"),
    (
        "two evaluators",
        "criteria:\n  - name: a\n    evaluate:\n      tool_call_order: { tool_calls_order: [a] }\
         \n      tool_order: {}\n",
    ),
    ("no evaluator", "criteria:\n  - name: a\n    evaluate: {}\n"),
    (
        "an evaluator without fields",
        "criteria:\n  - name: a\n    evaluate: tool_call_order\n",
    ),
    ("a criterion without evaluator", "criteria:\n  - name: a\n"),
    ("a text for a criterion", "criteria:\n  - checkout\n"),
    (
        "sessions that no pass is possible for",
        "criteria:\n  - name: a\n    scope: session\
         \n    evaluate: { tool_call_order: { tool_calls_order: [a] } }\n",
    ),
    (
        "the duration of a session",
        "criteria:\n  - name: a\n    scope: session\
         \n    evaluate: { efficiency: { max_duration: 5s } }\n",
    ),
    (
        "sessions of replicas",
        "assemble: { peers: gateway, session: { whole: true, inactive: 0s, max_size: 0 } }\
         \ncriteria:\n  - name: a\n    scope: session\
         \n    evaluate: { tool_calls: { disallowed: [x] } }\n",
    ),
    (
        "an alarm that no moment raises",
        "criteria:\n  - name: a\n    alarm: true\n    evaluate:\
         \n      constraints: { rules: [{ response: { a: x, b: y } }] }\n",
    ),
    (
        "an alarm of each agent",
        "criteria:\n  - name: a\n    scope: agent\n    alarm: { score_span: true }\
         \n    evaluate: { tool_calls: { disallowed: [x] } }\n",
    ),
    (
        "an alarm that is a text",
        "criteria:\n  - name: a\n    alarm: loud\
         \n    evaluate: { tool_calls: { disallowed: [x] } }\n",
    ),
    (
        "an unknown scope",
        "criteria:\n  - name: a\n    scope: agents\
         \n    evaluate: { tool_call_order: { tool_calls_order: [a] } }\n",
    ),
    (
        "a listen address by name",
        "admin:\n  listen: sidecar:13133\n",
    ),
    (
        "a listen address without host",
        "admin:\n  listen: \":13133\"\n",
    ),
    (
        "links that lead nowhere",
        "admin:\n  links:\n    - { name: Files, url: \"file:///{trace_id}\" }\n    - { name: \
         Jaeger, url: \"http://jaeger/{trace}\" }\n",
    ),
    ("a port alone", "admin:\n  listen: 13133\n"),
    ("a port too large", "admin:\n  listen: 127.0.0.1:99999\n"),
    // === spellings of the reference documents ===
    (
        "graders",
        "graders:\n  - type: tool-calls\n    config:\
         \n      required: [search, { name: edit, path: src/.* }]\n",
    ),
    (
        "a grader as a criterion",
        "criteria:\n  - type: tool-calls\n    config: { required: [search] }\n",
    ),
    (
        "an evaluator configuration",
        "criteria:\n  - name: a\n    evaluatorTypeId: uipath-tool-call-order\n    evaluatorConfig:\
         \n      strict: true\n      defaultEvaluationCriteria: { toolCallsOrder: [a, b] }\n",
    ),
    (
        "default criteria",
        "criteria:\n  - name: a\n    evaluate:\n      tool_call_order:\
         \n        default_evaluation_criteria: { tool_calls_order: [a, b] }\n",
    ),
    (
        "camel case",
        "criteria:\n  - name: a\n    evaluate: { tool_call_order: { toolCallsOrder: [a] } }\n",
    ),
    (
        "the name of a program's class",
        "criteria:\n  - name: a\
         \n    evaluate: { ToolCallOrderEvaluator: { tool_calls_order: [a] } }\n",
    ),
    ("http/json", "forward:\n  protocol: http/json\n"),
    // === evaluators ===
    (
        "look-ahead",
        "criteria:\n  - name: a\n    evaluate: { tool_calls: { required: [\"(?!x)y\"] } }\n",
    ),
    (
        "a broken pattern",
        "criteria:\n  - name: a\n    evaluate:\n      tool_calls:\
         \n        required: [{ name: \"(a\" }]\n",
    ),
    (
        "nothing asked for",
        "criteria:\n  - name: a\n    evaluate: { tool_calls: {} }\n",
    ),
    (
        "a position on a forbidden call",
        "criteria:\n  - name: a\
         \n    evaluate: { tool_calls: { disallowed: [{ name: a, final: true }] } }\n",
    ),
    (
        "an unknown operator",
        "criteria:\n  - name: a\
         \n    evaluate: { tool_call_count: { tool_calls_count: { a: [\"~\", 1], b: [\">\", -1], \
         c: 3 } } }\n",
    ),
    (
        "a typo in a pattern's fields",
        "criteria:\n  - name: a\
         \n    evaluate: { tool_calls: { required: [{ nmae: a }, { name: b, comand: c }] } }\n",
    ),
    (
        "a name that is a number",
        "criteria:\n  - name: a\
         \n    evaluate: { tool_order: { expected_tools: [{ tool_name: [a] }] } }\n",
    ),
    (
        "something empty that only warns",
        "criteria:\n  - name: a\n    evaluate: { tool_order: { expected_tools: [] } }\n",
    ),
    (
        "a threshold that every score reaches",
        "criteria:\n  - name: a\n    threshold: 0\n\
         \n    evaluate: { tool_calls: { required: [b] } }\n",
    ),
    // === variables in values ===
    (
        "an unset variable",
        "forward:\n  endpoint: ${env:BACKEND}\n",
    ),
    (
        "a variable without env",
        "forward:\n  endpoint: ${BACKEND}\n",
    ),
    (
        "a file outside headers",
        "forward:\n  endpoint: ${file:/run/secrets/endpoint}\n",
    ),
    (
        "a missing secret",
        "forward:\n  headers: { authorization: \"Bearer ${file:/run/secrets/key}\" }\n",
    ),
    // === endpoints ===
    (
        "credentials in an endpoint",
        "forward:\n  endpoint: https://user:pass@otlp.example.com\n",
    ),
    (
        "a strange scheme",
        "forward:\n  endpoint: grpc://collector:4317\n",
    ),
    (
        "a signal's path",
        "forward:\n  endpoint: http://collector:4318/v1/traces\n",
    ),
    (
        "a path with gRPC",
        "forward:\n  endpoint: http://collector:4317/otlp\n  protocol: grpc\n",
    ),
    (
        "a port that is none",
        "scores:\n  endpoint: http://collector:http\n",
    ),
    (
        "an IPv6 address without brackets",
        "forward:\n  endpoint: http://::1:4317\n",
    ),
    (
        "a query",
        "forward:\n  endpoint: http://collector:4318/?key=1\n",
    ),
    (
        "keys of Kafka that we do not have",
        "kafka:\n  tls: { server_name: a }\n  sasl: { mechanism: OAUTHBEARER, \
         username: a, password: b }\n  write: { logs_topic: otlp_logs }\n  \
         read: { topics: [a], threads: 2, commit_interval: 1s }\n",
    ),
    // === settings that conflict ===
    (
        "both receivers off",
        "receivers:\n  otlp:\n    grpc: { enabled: false }\n    http: { enabled: false }\n",
    ),
    (
        "one port twice",
        "receivers:\n  otlp:\n    http: { listen: \"0.0.0.0:4317\" }\n",
    ),
    (
        "quiet longer than the deadline",
        "shutdown: { deadline: 1s, quiet: 5s }\n",
    ),
    (
        "a certificate without key",
        "forward:\n  endpoint: https://a\n  tls: { cert_file: a.pem }\n",
    ),
    (
        "a key without certificate",
        "scores:\n  endpoint: https://a\n  tls: { key_file: a.pem }\n",
    ),
    (
        "a large size limit",
        "assemble:\n  size_limit: 16MiB\n  open: { max_size: 32MiB }\n",
    ),
    (
        "a large size limit for many threads",
        "scoring: { threads: 8 }\nassemble:\n  size_limit: 16MiB\n  open: { max_size: 128MiB }\n",
    ),
    (
        "zeros",
        "assemble: { span_limit: 0, settle: 0 }\nscores: { batch: { max_evaluations: 0 } }\
         \nforward: { queue: { max_size: 0 } }\n",
    ),
    (
        "a share above one",
        "scores: { span: { sample_pass: 1.5 } }\n",
    ),
    (
        "a shrinking backoff",
        "forward: { retry: { multiplier: 0.5 } }\n",
    ),
    ("no threads that judge", "scoring: { threads: 0 }\n"),
    ("threads in words", "scoring: { threads: many }\n"),
    ("threads as a fraction", "scoring: { threads: 1.5 }\n"),
    ("no requests in flight", "forward: { max_concurrency: 0 }\n"),
    (
        "too many requests in flight",
        "forward: { max_concurrency: 1000 }\n",
    ),
    ("little memory", "memory: { limit: 16MiB }\n"),
    (
        "header names and values",
        "forward:\n  headers: { \"a b\": c, content-type: x, d: \"e\\nf\" }\n",
    ),
    (
        "an origin without scheme",
        "receivers: { otlp: { http: { cors_allowed_origins: [example.com] } } }\n",
    ),
    (
        "one name for two criteria",
        "criteria:\n  - name: a\n    evaluate: { tool_call_order: { tool_calls_order: [a] } }\
         \n  - evaluate: { tool_call_order: { tool_calls_order: [b] } }\n    name: a\n",
    ),
    // === warnings ===
    (
        "any certificate",
        "forward:\n  endpoint: https://a\n  tls: { insecure_skip_verify: true }\n",
    ),
    (
        "TLS without https",
        "forward:\n  endpoint: http://a\n  tls: { ca_file: ca.pem }\n",
    ),
    (
        "gRPC at the port of HTTP",
        "forward:\n  endpoint: http://a:4318\n  protocol: grpc\n",
    ),
    (
        "headers for another host",
        "forward:\n  endpoint: https://a\n  headers: { authorization: x }\nscores:\
         \n  endpoint: https://b\n",
    ),
    (
        "more than the memory",
        "memory: { limit: 64MiB }\nforward: { queue: { max_size: 64MiB } }\n",
    ),
    (
        "criteria without scoring",
        "scoring: { enabled: false }\ncriteria:\n  - name: a\
         \n    evaluate: { tool_call_order: { tool_calls_order: [a] } }\n",
    ),
    (
        "a request larger than all of them",
        "receivers: { otlp: { max_request_size: 64MiB, max_in_flight: 32MiB } }\n",
    ),
    (
        "a convention for every span",
        "tools: { conventions: [{ name: house, match: {} }, { name: house, match: { a: b } }] }\n",
    ),
    (
        "a text that others read as a boolean",
        "criteria:\n  - name: a\n    evaluate:\n      tool_calls:\n        disallowed:\
         \n          - { name: a, where: { args.x: 5, args.a.b: No } }\n",
    ),
    (
        "a page of text",
        "log:\n  level: |\n    one line\n    another\nforward: { timeout: { a: \"x\" } }\
         \nassemble: { span_limit: \
         abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz }\n",
    ),
    (
        "no signals",
        "forward:\n  endpoint: http://a\n  signals: []\n",
    ),
];

const LONG_LINE: &str = concat!(
    r#"{"receivers":{"otlp":{"grpc":{"enabled":true,"listen":"127.0.0.1:4317"},"#,
    r#""http":{"enabled":true,"listen":"127.0.0.1:4318"},"max_request_size":"64MiB"}},"#,
    r#""forward":{"endpoint":"http://collector:4317","protocl":"grpc","timeout":"10s","#,
    r#""compression":"none","signals":["traces","logs","metrics"]}}"#,
);

#[test]
fn every_mistake_is_reported_with_its_place_and_remedy() {
    let mut report = String::new();
    for (name, text) in CASES {
        let messages = messages(text);
        assert!(!messages.is_empty(), "nothing was said about {name}");
        report.push_str(&format!("=== {name} ===\n{}\n", messages.render(false)));
    }
    insta::assert_snapshot!(report);
}

#[test]
fn sessions_of_a_topic_are_refused() {
    let text = "kafka: { brokers: [\"a:9092\"], read: { enabled: true } }\ncriteria:\n  - name: a\
                \n    scope: session\n    evaluate: { tool_calls: { disallowed: [x] } }\n";
    let report = messages(text).render(false);
    assert!(report.contains("a topic is keyed by trace"), "{report}");
}

#[test]
fn a_comment_with_nothing_wrong_says_nothing() {
    assert!(messages("# only a comment\n").is_empty());
    assert!(messages("").is_empty());
    assert!(messages("forward:\n  # endpoint: http://a\nscores:\n  span:\n").is_empty());
}

#[test]
fn colour_is_only_added_never_needed() {
    let problems = messages("forward:\n  timeout: soon\n");
    let coloured = problems.render(true);
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    assert_ne!(coloured, plain);
    assert_eq!(plain, problems.render(false));
}

#[test]
fn a_header_value_is_never_shown() {
    let secret = "s3cr3t";
    let texts = [
        format!("forward: {{ headers: {{ authorization: {secret} }}, timeout: soon }}\n"),
        format!("forward:\n  headers: {{ authorization: \"Bearer {secret}\", \"a b\": c }}\n"),
        format!("forward:\n  headers: {{ authorization: Bearer {secret}: d }}\n"),
        format!(
            "forward: {{ headers: {{ x-long: {}, x-mine: {secret}: d }} }}\n",
            "x".repeat(1_000)
        ),
        format!("forward:\n  headers: {{ authorization: [\"{secret}\"] }}\n"),
        format!("forward:\n  headers: \"authorization: {secret}\"\n"),
        format!("forward:\n  header: {{ authorization: {secret} }}\n"),
        format!("forward: {{ endpoint: http://a, apikey: {secret} }}\n"),
        format!("scores: {{ writers: [{{ langfuse: {{ secret_keyy: {secret} }} }}] }}\n"),
        format!("scores: {{ writers: [{{ datadog: {{ api_kye: {secret} }} }}] }}\n"),
        format!("admin: {{ token: {secret} }}\n"),
    ];
    for text in &texts {
        let report = messages(text).render(false);
        assert!(report.contains("error"), "{report}");
        assert!(!report.contains(secret), "{report}");
    }
    let variables = [
        (
            "SPANSCORE_FORWARD__HEADERS",
            "{ authorization: s3cr3t, \"a b\": s3cr3t, c: [s3cr3t] }",
        ),
        ("OTEL_EXPORTER_OTLP_HEADERS", "s3cr3t"),
        (
            "SPANSCORE_SCORES__WRITERS",
            "[{ langfuse: { secret_key: s3cr3t, endpoint: 5 } }]",
        ),
    ];
    for variable in variables {
        let report = Given {
            variables: &[variable],
            ..Given::default()
        }
        .messages()
        .render(false);
        assert!(
            report.contains("error") && !report.contains(secret),
            "{report}"
        );
    }
    let loaded = config(&format!(
        "forward: {{ endpoint: http://a, headers: {{ authorization: {secret} }} }}\n"
    ));
    assert!(!loaded.to_yaml().contains(secret));
    assert!(!format!("{loaded:?}").contains(secret));
    assert!(
        loaded.to_yaml().contains("authorization: \"****\""),
        "{}",
        loaded.to_yaml()
    );
}
