//! Tests `scope: session` in the real program. Two turns arrive as separate traces. A listener is
//! notified of a violation when its turn closes, and of both verdicts when the session ends. With a
//! journal, this must work even if the program is killed between the turns.

use std::process::Child;

use serde_json::{Value, json};

use crate::alarms::{events, string};
use crate::support::backend::Backend;
use crate::support::eventually::eventually;
use crate::support::program::{Running, http, is_acknowledged, listening, metric, told};
use crate::support::spans::{SpanCall, request, spans_of_run};

const CONFIG: &str = "
assemble:
  settle: 50ms
  restart_guard: 0s
  session: { inactive: 2s, whole: true }
shutdown: { quiet: 0s }
";

const CRITERIA: &str = "
criteria:
  - name: authenticate first
    scope: session
    evaluate:
      constraints: { rules: [{ precedence: { a: \"^authenticate$\", b: \"^transfer$\" } }] }
  - name: no deletion
    scope: session
    evaluate: { tool_calls: { disallowed: [\"^delete$\"] } }
";

fn tap(admin: &str, more: &[&str]) -> Child {
    listening(&[&["--format=jsonl", "--address", admin], more].concat()).0
}

fn lines(tap: Child) -> Vec<Value> {
    let (code, out, _) = told(tap.wait_with_output().unwrap());
    assert_eq!(code, 0, "{out}");
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Sends a turn that begins a minute after the previous turn.
fn send(otlp: &str, turn: u64, tools: &[&str]) {
    let call = |name: &&str| SpanCall {
        name: (*name).to_owned(),
        ..SpanCall::default()
    };
    let calls: Vec<SpanCall> = tools.iter().map(call).collect();
    let mut spans = spans_of_run(turn, &[("session.id", "s")], &calls);
    for span in &mut spans {
        span.start_time_unix_nano += turn * 60_000_000_000;
        span.end_time_unix_nano += turn * 60_000_000_000;
    }
    assert!(is_acknowledged(otlp, &request(spans)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_after_a_kill_where_there_is_a_journal() {
    let backend = Backend::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("spanscore.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    // Write the state file that the program has after these criteria were registered through the
    // API.
    let criteria: Value = serde_saphyr::from_str(CRITERIA).unwrap();
    let criteria = criteria["criteria"].as_array().unwrap().iter();
    let registrations = criteria.map(|criterion| json!({ "criterion": criterion }));
    let registrations: Vec<Value> = registrations.collect();
    let state = json!({ "version": 1, "registrations": registrations });
    let state_file = folder.path().join("state.json");
    std::fs::write(&state_file, state.to_string()).unwrap();
    let start = || {
        let arguments = [
            format!("--config={}", config.display()),
            format!(
                "--set=journal.directory={}",
                folder.path().join("journal").display()
            ),
            format!("--set=forward.endpoint=http://{}", backend.address),
            format!("--set=admin.state_file={}", state_file.display()),
        ];
        Running::start(&arguments.each_ref().map(String::as_str))
    };
    let mut first = start();
    let [otlp, admin] = first.addresses();
    send(&otlp, 1, &["authenticate", "delete"]);
    let alarm = eventually("the alarm arrives", || {
        let arrived = events(&backend).into_iter();
        arrived
            .map(|(_, event)| string(&event.attributes, "spanscore.verdict.id"))
            .next()
    })
    .await;
    // An alarm whose mark was not yet written before a kill is raised again, with the same id.
    eventually("the request and the mark are synced", || {
        (metric(&admin, "spanscore_journal_sync_seconds_count") >= 2.0).then_some(())
    })
    .await;
    drop(first);

    let mut second = start();
    let [otlp, admin] = second.addresses();
    let verdicts = tap(&admin, &["--count=2"]);
    send(&otlp, 2, &["transfer"]);
    let verdicts = lines(verdicts);
    let labels = verdicts
        .iter()
        .map(|line| [&line["label"], &line["completeness"]]);
    let labels: Vec<_> = labels.map(|of| of.map(|it| it.as_str().unwrap())).collect();
    assert_eq!(labels, [["pass", "silent"], ["fail", "silent"]]);
    assert_eq!(verdicts[1]["verdict_id"], alarm);
    assert_eq!(verdicts[1]["revision"], 0);
    let raised = "spanscore_alarms_total{criterion=\"no deletion\"}";
    assert_eq!(metric(&admin, raised), 0.0);
    second.signal(rustix::process::Signal::TERM);
    assert_eq!(second.ended().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_judged_when_a_turn_has_closed_and_when_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("spanscore.yaml");
    std::fs::write(&config, CONFIG.to_owned() + CRITERIA).unwrap();
    let mut sidecar = Running::start(&[&format!("--config={}", config.display())]);
    let [otlp, admin] = sidecar.addresses();
    let (alarms, verdicts) = (
        tap(&admin, &["--alarms", "--count=1"]),
        tap(&admin, &["--count=2"]),
    );
    send(&otlp, 1, &["authenticate"]);
    send(&otlp, 2, &["transfer", "delete"]);
    let alarm = lines(alarms).remove(0);
    assert_eq!(
        (&alarm["criterion"], &alarm["completeness"], &alarm["final"]),
        (&"no deletion".into(), &"open".into(), &false.into())
    );
    eventually("the session is counted", || {
        (metric(&admin, "spanscore_sessions") == 1.0).then_some(())
    })
    .await;
    let verdicts = lines(verdicts);
    let shown: Vec<_> = verdicts
        .iter()
        .map(|line| {
            let keys = ["criterion", "scope", "session", "label", "completeness"];
            keys.map(|key| line[key].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        shown,
        [
            ["authenticate first", "session", "s", "pass", "silent"],
            ["no deletion", "session", "s", "fail", "silent"],
        ]
    );
    assert_eq!(verdicts[1]["verdict_id"], alarm["verdict_id"]);
    assert_eq!(verdicts[1]["final"], true);
    let status = http(&admin, "GET /v1/status", &[]);
    let sums = "\"sessions\":{\"stored\":1,\"judged\":{\"silent\":1}}";
    assert!(status.contains(sums), "{status}");
    sidecar.signal(rustix::process::Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
}
