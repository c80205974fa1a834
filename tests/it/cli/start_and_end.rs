//! How a sidecar starts with a faulty configuration, and its exit code at the end. Does not prove
//! what happens in between.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::program::{RECORDING, Running, http};

#[test]
fn what_could_not_be_delivered_changes_the_exit_code_only_where_asked() {
    let body = std::fs::read(RECORDING[0]).unwrap();
    let exit = |set: &[&str]| {
        let unreachable = ["--set", "forward.endpoint=http://127.0.0.1:1"];
        let hasty = [
            "--set",
            "shutdown.deadline=1s",
            "--set",
            "shutdown.quiet=1ms",
        ];
        let mut sidecar = Running::start(&[&unreachable[..], &hasty, set].concat());
        let [http_address, _] = sidecar.addresses();
        let answer = http(&http_address, "POST /v1/traces", &body);
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        sidecar.signal(Signal::TERM);
        sidecar.ended().0
    };
    assert_eq!(exit(&[]), 0);
    assert_eq!(exit(&["--set", "shutdown.exit_undelivered=true"]), 5);
}

/// One sound criterion among faulty ones, and a section that cannot be read.
const WRONG: &str = "\
receivers: { otlp: { max_in_flight: many } }
criteria:
  - name: sound
    evaluate: { tool_calls: { disallowed: [delete] } }
  - name: wrong
    evaluate: { tool_calls: { disalowed: [delete] } }
";

#[test]
fn a_start_with_mistakes_forwards_and_judges_what_is_sound_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spanscore.yaml");
    std::fs::write(&path, WRONG).unwrap();
    let config = ["--config", path.to_str().unwrap()];
    let downstream = ["--set", "forward.endpoint=http://127.0.0.1:1"];
    let forward = ["--set", "reload.at_start=forward"];
    let refused = |set: &[&str]| {
        let (code, err) = Running::start(&[&config[..], set].concat()).failed();
        assert!(
            err.contains("`disalowed`") && err.contains("max_in_flight"),
            "{err}"
        );
        code
    };
    assert_eq!(refused(&downstream), 2, "the default refuses");
    assert_eq!(
        refused(&forward),
        2,
        "telemetry would be acknowledged and lost"
    );

    let mut sidecar = Running::start(&[&config[..], &downstream, &forward].concat());
    let [_, admin] = sidecar.addresses();
    let refusal = loop {
        let line = sidecar.line();
        if line["problems"].is_string() {
            break line;
        }
    };
    assert_eq!(refusal["level"], "ERROR");
    assert!(
        refusal["problems"]
            .as_str()
            .unwrap()
            .contains("`disalowed`")
    );
    let status = http(&admin, "GET /v1/status", b"");
    let body: Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["reload"]["last"]["result"], "refused", "{body}");
    let criteria = http(&admin, "GET /v1/criteria", b"");
    assert!(
        criteria.contains("sound") && !criteria.contains("wrong"),
        "{criteria}"
    );
    let metrics = http(&admin, "GET /metrics", b"");
    assert!(
        metrics.contains("spanscore_config_reload_failed 1"),
        "{metrics}"
    );
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
}
