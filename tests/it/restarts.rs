//! Tests open traces of the real program across kills. Each trace is judged once and completely,
//! and its scores equal those of an undisturbed run. Only the process is killed;
//! `tests/judge/rebuilt_traces.rs` crashes a pipeline at any moment.

mod disks;
mod long_traces;

use std::collections::BTreeMap;
use std::path::Path;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::span::ScopeHash;
use prost::Message;
use rustix::process::Signal;

use crate::support::backend::Backend;
use crate::support::eventually::eventually;
use crate::support::program::{Running, http, is_acknowledged, metric, run};
use crate::support::repetitions::number;
use crate::support::spans::{SpanCall, request, spans_of_run};

const CRITERIA: &str = r#"
criteria:
  - name: no rm
    evaluate: { tool_calls: { disallowed: ["^rm$"] } }
  - name: looks first
    evaluate: { tool_call_order: { tool_calls_order: [look, write] } }
"#;

const N_CRITERIA: usize = 2;

/// Starts the program with short settle times, so that tests are fast.
fn start(folder: &Path, endpoint: &str, journal: Option<&Path>, more: &[&str]) -> Running {
    start_tampered(None, folder, endpoint, journal, more)
}

/// Like [`start`]; with `tampering`, under a `strace` that tampers with system calls.
fn start_tampered(
    tampering: Option<&str>,
    folder: &Path,
    endpoint: &str,
    journal: Option<&Path>,
    more: &[&str],
) -> Running {
    let config = folder.join("spanscore.yaml");
    std::fs::write(&config, CRITERIA).unwrap();
    let mut settings = vec![
        format!("forward.endpoint={endpoint}"),
        "forward.retry.initial_interval=20ms".to_owned(),
        "forward.retry.max_interval=50ms".to_owned(),
        "assemble.settle=100ms".to_owned(),
        "assemble.max_settle=1s".to_owned(),
        "scores.batch.max_delay=20ms".to_owned(),
        "scores.event.enabled=true".to_owned(),
        "scores.metrics.enabled=false".to_owned(),
        "shutdown.quiet=0".to_owned(),
    ];
    settings.extend(journal.map(|path| format!("journal.directory={}", path.display())));
    settings.extend(more.iter().map(|setting| (*setting).to_owned()));
    let mut arguments = vec!["--config", config.to_str().unwrap()];
    for setting in &settings {
        arguments.extend(["--set", setting]);
    }
    Running::start_tampered(tampering, &arguments)
}

/// Returns the spans of a run, the root first.
fn run_of(trace: u64) -> Vec<Span> {
    let names = ["look", "write", "rm"];
    let calls: Vec<SpanCall> = names[..2 + (trace % 2) as usize]
        .iter()
        .map(|name| SpanCall {
            name: (*name).to_owned(),
            ..SpanCall::default()
        })
        .collect();
    spans_of_run(trace, &[], &calls)
}

/// Moves runs to the present. A run that ended long ago would count as a recording, in which no
/// span can have been missed.
fn at_present(spans: &mut [Span], present: u64) {
    const RECORDED: u64 = 1_700_000_000_000_000_000;
    for span in spans {
        span.start_time_unix_nano += present - RECORDED;
        span.end_time_unix_nano += present - RECORDED;
    }
}

fn unix_nanos() -> u64 {
    spanscore::sidecar::now().unix_nanos
}

/// Sends a request, which must be acknowledged.
fn send(otlp: &str, spans: &[Span]) {
    assert!(is_acknowledged(otlp, &request(spans.to_vec())));
}

/// Returns every copy of the score spans that arrived, by trace and span id.
fn scores(backend: &Backend) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut scores: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for arrived in backend.arrived() {
        if arrived.signal != "traces" {
            continue;
        }
        let request = ExportTraceServiceRequest::decode(arrived.body).unwrap();
        let groups = request.resource_spans.into_iter();
        let scopes = groups
            .flat_map(|resource| resource.scope_spans)
            .filter(|scope| {
                let scope = scope.scope.as_ref();
                scope.is_some_and(|scope| scope.name.as_bytes() == ScopeHash::OWN_NAME.as_bytes())
            });
        for span in scopes.flat_map(|scope| scope.spans) {
            let id = [&span.trace_id[..], &span.span_id].concat();
            scores.entry(id).or_default().push(span.encode_to_vec());
        }
    }
    scores
}

fn completeness(score: &Span) -> &str {
    let mut attributes = score.attributes.iter();
    let found = attributes.find(|attribute| attribute.key == "spanscore.completeness");
    match found.unwrap().value.as_ref().unwrap().value.as_ref() {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    }
}

async fn wait_for_scores(backend: &Backend, n_scores: usize) {
    eventually(&format!("{n_scores} scores arrive"), || {
        (scores(backend).len() >= n_scores).then_some(())
    })
    .await;
}

/// Waits until `n_scores` scores of each shape are delivered, and the journal has recorded the
/// delivery, so that a kill repeats none. The journal records a delivery within 10 ms.
async fn wait_until_delivered(admin: &str, journal: &Path, n_scores: usize) {
    wait_for_both_shapes(admin, "spanscore_scores_sent_total", n_scores).await;
    eventually("the journal has recorded the delivery", || {
        let (code, text, err) = run(&["journal", journal.to_str().unwrap()]);
        assert_eq!(code, 0, "{err}");
        // A log without files has no line.
        let is_recorded = text.contains("/scores: nothing waits") || !text.contains("/scores: ");
        is_recorded.then_some(())
    })
    .await;
}

/// Waits until this metric counts `n_scores` score spans and `n_scores` score events.
async fn wait_for_both_shapes(admin: &str, name: &str, n_scores: usize) {
    let shapes = ["score_spans", "score_events"];
    let is_there = |shape: &str| {
        let name = format!("{name}{{shape=\"{shape}\"}}");
        metric(admin, &name) >= n_scores as f64
    };
    eventually(&format!("{name} counts {n_scores} of both shapes"), || {
        shapes.into_iter().all(is_there).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_that_are_open_at_a_kill_are_judged_once_and_in_full() {
    let n_kills = number("SPANSCORE_TEST_KILLS", 3);
    let n_traces = number("SPANSCORE_TEST_TRACES", 20);
    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::start().await;
    let endpoint = format!("http://{}", backend.address);
    let journal = folder.path().join("journal");
    // The number of threads changes at each start, so traces move between threads.
    let start_kept = |round: u64| {
        let threads = format!("scoring.threads={}", 1 + (round + 2) % 4);
        start(folder.path(), &endpoint, Some(&journal), &[&threads])
    };
    let mut sidecar = start_kept(0);
    let mut addresses = sidecar.addresses();

    // The sidecar's trace history begins before the runs.
    let present = unix_nanos();
    let runs_of = |round: u64| {
        let traces = round * n_traces + 1..=(round + 1) * n_traces;
        traces.map(|trace| {
            let mut spans = run_of(trace);
            at_present(&mut spans, present);
            spans
        })
    };
    let undisturbed = Backend::start().await;
    let mut other = start(
        folder.path(),
        &format!("http://{}", undisturbed.address),
        None,
        &["assemble.restart_guard=0"],
    );
    let [otlp, _] = other.addresses();
    for spans in (0..n_kills).flat_map(runs_of) {
        send(&otlp, &spans[1..]);
        send(&otlp, &spans[..1]);
    }
    let n_scores = N_CRITERIA * (n_kills * n_traces) as usize;
    wait_for_scores(&undisturbed, n_scores).await;
    other.signal(Signal::TERM);
    assert_eq!(other.ended().0, 0);
    let expected = scores(&undisturbed);
    assert!(expected.values().all(|seen| seen.len() == 1));

    for round in 0..n_kills {
        for spans in runs_of(round) {
            send(&addresses[0], &spans[1..]);
        }
        sidecar.signal(Signal::KILL);
        sidecar.child.wait().unwrap();
        sidecar = start_kept(round + 1);
        addresses = sidecar.addresses();
        // These are the roots of the runs that the kill interrupted.
        for spans in runs_of(round) {
            send(&addresses[0], &spans[..1]);
        }
        wait_for_scores(&backend, N_CRITERIA * ((round + 1) * n_traces) as usize).await;
        let n_new = N_CRITERIA * n_traces as usize;
        wait_until_delivered(&addresses[1], &journal, n_new).await;
    }
    wait_for_scores(&backend, n_scores).await;
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);

    let received = scores(&backend);
    for (id, seen) in &received {
        assert_eq!(seen.len(), 1, "a score came twice");
        let decoded = |seen: &Vec<Vec<u8>>| Span::decode(&seen[0][..]).unwrap();
        let (seen, expected) = (decoded(seen), decoded(&expected[id]));
        assert_eq!(seen, expected, "a score differs");
    }
    assert_eq!(received.len(), expected.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn open_traces_that_are_kept_at_a_stop_go_on_at_the_next_start() {
    let backend = Backend::start().await;
    let endpoint = format!("http://{}", backend.address);
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let keep = ["shutdown.open_traces=keep", "scoring.threads=3"];
    let mut first = start(folder.path(), &endpoint, Some(&journal), &keep);
    let [otlp, _] = first.addresses();
    let mut spans = run_of(1);
    at_present(&mut spans, unix_nanos());
    send(&otlp, &spans[1..]);
    first.signal(Signal::TERM);
    assert_eq!(first.ended().0, 0);
    assert!(
        scores(&backend).is_empty(),
        "nothing was judged at the stop"
    );

    let mut second = start(folder.path(), &endpoint, Some(&journal), &keep);
    let [otlp, _] = second.addresses();
    send(&otlp, &spans[..1]);
    wait_for_scores(&backend, N_CRITERIA).await;
    second.signal(Signal::TERM);
    assert_eq!(second.ended().0, 0);
    for seen in scores(&backend).values() {
        let score = Span::decode(&seen[0][..]).unwrap();
        assert_eq!(completeness(&score), "root_ended");
    }
}

/// Waits until `n_scores` scores of each shape are queued and written to disk. In the journal,
/// their judgements then precede every request that is sent later.
async fn wait_until_kept(admin: &str, n_scores: usize) {
    wait_for_both_shapes(admin, "spanscore_scores_queued", n_scores).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_whose_backend_is_away_over_kills_arrive_once_and_unchanged() {
    const N_KILLS: usize = 3;
    const N_TRACES: usize = 10;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let downstream = Backend::start().await;
    let endpoint = format!("http://{}", downstream.address);
    // This backend stops immediately, so nothing listens at its address.
    let address = Backend::start_apart().await.address.to_string();
    let scores_to = format!("scores.endpoint=http://{address}");
    let start_kept = || start(folder.path(), &endpoint, Some(&journal), &[&scores_to]);
    let mut sidecar = start_kept();
    let mut addresses = sidecar.addresses();

    let undisturbed = Backend::start().await;
    let mut other = start(
        folder.path(),
        &format!("http://{}", undisturbed.address),
        None,
        &["assemble.restart_guard=0"],
    );
    let [otlp, _] = other.addresses();
    let present = unix_nanos();
    let runs_of = |round: usize| {
        let traces = round * N_TRACES + 1..=(round + 1) * N_TRACES;
        traces.map(|trace| {
            let mut spans = run_of(trace as u64);
            at_present(&mut spans, present);
            spans
        })
    };
    let mut n_again = 0;
    for round in 0..N_KILLS {
        for spans in runs_of(round) {
            send(&otlp, &spans);
            send(&addresses[0], &spans);
        }
        wait_until_kept(&addresses[1], N_CRITERIA * N_TRACES * (round + 1)).await;
        // This trace stays open because the parent of its span never arrives.
        let filler = Span {
            trace_id: vec![200 + round as u8; 16],
            span_id: vec![1; 8],
            parent_span_id: vec![2; 8],
            ..Span::default()
        };
        send(&addresses[0], &[filler]);
        sidecar.signal(Signal::KILL);
        sidecar.child.wait().unwrap();
        let (_, text, _) = run(&["journal", journal.to_str().unwrap()]);
        assert!(text.contains("/scores: "), "{text}");
        sidecar = start_kept();
        addresses = sidecar.addresses();
        // A kill may precede the mark of a trace whose scores were just written. Such a trace is
        // open again, beside the fillers, and judged once more.
        let n_restored = || metric(&addresses[1], "spanscore_journal_restored_traces_total");
        n_again += eventually("the open traces are restored", || {
            (n_restored() as usize).checked_sub(round + 1)
        })
        .await;
    }
    let n_scores = N_CRITERIA * N_TRACES * N_KILLS;
    wait_for_scores(&undisturbed, n_scores).await;
    other.signal(Signal::TERM);
    assert_eq!(other.ended().0, 0);
    let expected = scores(&undisturbed);

    let backend = Backend::start_at(&address).await;
    wait_for_scores(&backend, n_scores).await;
    wait_until_delivered(&addresses[1], &journal, n_scores).await;
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
    let mut third = start_kept();
    third.addresses();
    third.signal(Signal::TERM);
    assert_eq!(third.ended().0, 0);
    let mut received = scores(&backend);
    // Skip the scores of the fillers, which are judged at shutdown.
    received.retain(|id, _| expected.contains_key(id));
    let mut n_twice = 0;
    for (id, expected) in &expected {
        for seen in &received[id] {
            assert_eq!(seen, &expected[0], "a score differs");
        }
        n_twice += received[id].len() - 1;
    }
    assert!(
        n_twice <= N_CRITERIA * n_again,
        "{n_twice} scores came twice, {n_again} traces were restored"
    );
}

/// A path at which nobody can create a folder, not even root.
const UNUSABLE: &str = "/proc/self";

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_its_disk_refuses_until_the_disk_is_back() {
    let backend = Backend::start().await;
    let endpoint = format!("http://{}", backend.address);
    let folder = tempfile::tempdir().unwrap();
    let [disk, mount] = ["disk", "mount"].map(|name| folder.path().join(name));
    std::fs::create_dir(&disk).unwrap();
    let mount_to = |target: &Path| {
        let new = folder.path().join("new");
        std::os::unix::fs::symlink(target, &new).unwrap();
        std::fs::rename(&new, &mount).unwrap();
    };
    mount_to(&disk);
    let journal = mount.join("journal");
    let mut first = start(folder.path(), &endpoint, Some(&journal), &[]);
    let [otlp, _] = first.addresses();
    let mut spans = run_of(1);
    at_present(&mut spans, unix_nanos());
    send(&otlp, &spans[1..]);
    first.signal(Signal::KILL);
    first.child.wait().unwrap();

    mount_to(Path::new(UNUSABLE));
    let mut second = start(folder.path(), &endpoint, Some(&journal), &[]);
    let [otlp, admin] = second.addresses();
    let root = request(spans[..1].to_vec());
    assert!(!is_acknowledged(&otlp, &root), "nothing could keep it");
    for path in ["/livez", "/readyz"] {
        let answer = http(&admin, &format!("GET {path}"), &[]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let state = "spanscore_journal_state{log=\"requests\",state=\"disk_error\"}";
    assert_eq!(metric(&admin, state), 1.0);
    let refused =
        "spanscore_receiver_refused_requests_total{signal=\"traces\",reason=\"disk_error\"}";
    assert_eq!(metric(&admin, refused), 1.0);

    mount_to(&disk);
    eventually("the disk is used again", || {
        is_acknowledged(&otlp, &root).then_some(())
    })
    .await;
    // The open trace was rebuilt before its root arrived.
    wait_for_scores(&backend, N_CRITERIA).await;
    assert_eq!(metric(&admin, state), 0.0);
    assert_eq!(
        metric(&admin, "spanscore_journal_restored_traces_total"),
        1.0
    );
    second.signal(Signal::TERM);
    assert_eq!(second.ended().0, 0);
    for seen in scores(&backend).values() {
        let score = Span::decode(&seen[0][..]).unwrap();
        assert_eq!(completeness(&score), "root_ended");
    }
}

#[test]
fn a_start_on_a_disk_that_stays_away_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Path::new(UNUSABLE).join("journal");
    let mut sidecar = start(folder.path(), "http://127.0.0.1:1", Some(&journal), &[]);
    sidecar.addresses();
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
}

#[test]
fn a_file_in_place_of_the_journal_is_a_wrong_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for journal in [&file, &file.join("journal")] {
        let sidecar = start(folder.path(), "http://127.0.0.1:1", Some(journal), &[]);
        let (code, messages) = sidecar.failed();
        assert_eq!(code, 4, "{messages}");
        assert!(
            messages.contains("cannot use `journal.directory`"),
            "{messages}"
        );
    }
}
