//! Tests of `scores.writers`: destinations, keys and messages. They do not prove that a backend
//! accepts the keys.

use super::super::Config;
use super::{Given, config, messages};

const WRITERS: &str = r#"
scores:
  writers:
    - phoenix: { endpoint: "http://phoenix:6006/base/", api_key_file: key }
    - mlflow:
        endpoint: "https://mlflow.example.com"
        api_key: "${env:MLFLOW_KEY}"
        headers: { x-workspace: a }
        timeout: 3s
    - langfuse:
        endpoint: "https://cloud.langfuse.com"
        public_key: pk-1
        secret_key: "${file:secret}"
    - datadog: { endpoint: "https://api.datadoghq.eu", api_key: dd, ml_app: shop-bot }
"#;

fn given() -> Config {
    let files = [("key", "hunter2\n"), ("secret", "sk-1\n")];
    Given {
        text: WRITERS,
        variables: &[("MLFLOW_KEY", "hunter3")],
        files: &files,
        ..Given::default()
    }
    .config()
}

#[test]
fn each_writer_has_an_address_and_keys() {
    let config = given();
    let lines: Vec<String> = config
        .scores
        .writers
        .iter()
        .enumerate()
        .map(|(writer_idx, writer)| {
            let destination = config.writer_destination(writer_idx, writer);
            let headers: Vec<String> = destination
                .headers
                .iter()
                .map(|(name, value)| format!("{name}: {}", value.expose()))
                .collect();
            format!(
                "{} {} {:?}\n  {}",
                destination.origin,
                destination.endpoint,
                destination.timeout,
                headers.join(", ")
            )
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    scores.writers[0].phoenix http://phoenix:6006/base 10s
      authorization: Bearer hunter2
    scores.writers[1].mlflow https://mlflow.example.com:443 3s
      x-workspace: a, authorization: Bearer hunter3
    scores.writers[2].langfuse https://cloud.langfuse.com:443 10s
      authorization: Basic cGstMTpzay0x
    scores.writers[3].datadog https://api.datadoghq.eu:443 10s
      dd-api-key: dd
    ");
}

#[test]
fn keys_are_never_shown() {
    let config = given();
    for text in [config.to_yaml(), format!("{config:?}")] {
        assert!(
            ["hunter2", "hunter3", "sk-1", "cGstMTpzay0x"]
                .iter()
                .all(|key| !text.contains(key)),
            "{text}"
        );
    }
    // The message shows the line without the key.
    let wrong = "scores:\n  writers:\n    - phoenix: { endpoint: phoenix, api_key: hunter2 }\n";
    let shown = messages(wrong).to_string();
    assert!(
        shown.contains("has no scheme") && !shown.contains("hunter2"),
        "{shown}"
    );
}

#[test]
fn mistakes_are_reported_at_their_place() {
    let wrong = r#"
scores:
  writers:
    - phoenix: { endpoint: "phoenix:6006", api_key: a, api_key_file: b, timeout: 0s }
    - phoenix: { endpoint: "http://b", headers: { host: x } }
    - langfuse: { endpoint: "https://cloud.langfuse.com" }
    - datadog: { endpoint: "https://api.datadoghq.com", api_key_file: absent }
    - mlflow: { endpoint: "http://m?a=b", tls: { cert_file: c } }
    - honeycomb: { endpoint: "http://b" }
    - mlflow: { endpoitn: "http://b" }
"#;
    let found: Vec<String> = messages(wrong)
        .iter()
        .map(|problem| {
            let spot = problem.spot.as_ref().unwrap();
            format!("{}:{} {}", spot.line, spot.column, problem.title)
        })
        .collect();
    insta::assert_snapshot!(found.join("\n"), @r"
    4:28 `phoenix:6006` has no scheme
    4:56 `api_key` and `api_key_file` are both given
    4:82 `timeout` is zero
    5:28 a second writer `phoenix`
    5:49 the header `host` belongs to the protocol
    6:29 `langfuse` has no keys
    7:71 cannot read `absent`: no such file
    8:27 `http://m?a=b` has a query
    8:48 a certificate or a key without the other
    9:7 unknown writer `honeycomb`
    10:17 unknown key `endpoitn` in `scores.writers[6].mlflow`
    ");
    let text = "scores: { writers: [ langfuse: {\n endpoint: \"https://a.example\" } ] }";
    insta::assert_snapshot!(messages(text), @r#"
    error: `langfuse` has no keys
      --> spanscore.yaml:2:12
       |
     2 |  endpoint: "https://a.example" } ] }
       |            ^^^^^^^^^^^^^^^^^^^ give `public_key` and `secret_key` or `secret_key_file`
    "#);
}

#[test]
fn a_writer_of_a_flag_has_its_key_from_a_variable() {
    let by_file = "[{ phoenix: { endpoint: \"http://p\", api_key_file: key } }]";
    let flags = [("scores.writers", by_file)];
    let shown = Given {
        flags: &flags,
        ..Given::default()
    }
    .messages()
    .to_string();
    assert!(
        shown.contains("`api_key_file` is read in the configuration file only"),
        "{shown}"
    );
    assert!(config("scores: { writers: [] }").scores.writers.is_empty());
}
