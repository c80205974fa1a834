//! Tests the journal of the real program. The program is killed repeatedly under load, and
//! everything that it acknowledged must arrive. The process is killed at random moments;
//! `src/journal/tests.rs` simulates power cuts. Does not test a machine that loses power.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustix::process::Signal;

use crate::support::backend::Backend;
use crate::support::eventually::eventually;
use crate::support::program::{RECORDING, Running, is_acknowledged, metric, run};
use crate::support::repetitions::number;
use crate::support::spans::request;

fn sidecar(folder: &Path, endpoint: &str) -> Running {
    sidecar_with(folder, endpoint, &[])
}

fn sidecar_with(folder: &Path, endpoint: &str, more: &[&str]) -> Running {
    let set = |key: &str, value: &str| ["--set".to_owned(), format!("{key}={value}")];
    let arguments: Vec<String> = [
        set("journal.directory", &folder.display().to_string()),
        set("forward.endpoint", endpoint),
        set("forward.retry.initial_interval", "20ms"),
        set("forward.retry.max_interval", "50ms"),
        set("forward.queue.max_size", "64KiB"),
        set("shutdown.quiet", "0"),
    ]
    .concat();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(more.iter().flat_map(|setting| ["--set", *setting]));
    Running::start(&arguments)
}

fn send_recording(otlp: &str) {
    for file in RECORDING {
        let body = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        assert!(is_acknowledged(otlp, &body), "{file}");
    }
}

fn request_named(name: &str) -> Vec<u8> {
    request(vec![Span {
        name: name.to_owned(),
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        ..Span::default()
    }])
}

async fn wait_until_sent(admin: &str, n_spans: f64) {
    eventually(&format!("{n_spans} spans are sent"), || {
        (metric(admin, "spanscore_exporter_sent_spans_total") >= n_spans).then_some(())
    })
    .await;
}

fn arrived_names(backend: &Backend) -> Vec<String> {
    let requests = backend.arrived().into_iter();
    let spans = requests.flat_map(|arrived| {
        let request = ExportTraceServiceRequest::decode(arrived.body).unwrap();
        request.resource_spans.into_iter().flat_map(|resource| {
            let scopes = resource.scope_spans.into_iter();
            scopes.flat_map(|scope| scope.spans.into_iter().map(|span| span.name))
        })
    });
    spans.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_acknowledged_arrives_although_the_process_is_killed_again_and_again() {
    const N_SENDERS: u64 = 4;
    let n_kills = number("SPANSCORE_TEST_KILLS", 6);
    let folder = tempfile::tempdir().unwrap();
    // In every third round, the sidecar runs and is killed while the backend is down.
    let mut backend = Some(Backend::start_apart().await);
    let address = backend.as_ref().unwrap().address.to_string();
    let endpoint = format!("http://{address}");
    let (mut acknowledged, mut arrived) = (BTreeSet::new(), Vec::new());
    let mut rng = fastrand::Rng::with_seed(5);
    let next = Arc::new(AtomicU64::new(0));
    for round in 0..n_kills {
        if round % 3 == 1
            && let Some(backend) = backend.take()
        {
            arrived.extend(arrived_names(&backend));
        } else if backend.is_none() {
            backend = Some(Backend::start_at(&address).await);
        }
        let mut sidecar = sidecar(folder.path(), &endpoint);
        let [otlp, _] = sidecar.addresses();
        let stopping = Arc::new(AtomicBool::new(false));
        let n_acknowledged = Arc::new(AtomicU64::new(0));
        let senders: Vec<_> = (0..N_SENDERS)
            .map(|_| {
                let (otlp, next) = (otlp.clone(), next.clone());
                let (stopping, n_acknowledged) = (stopping.clone(), n_acknowledged.clone());
                thread::spawn(move || {
                    let mut names = Vec::new();
                    while !stopping.load(Ordering::Relaxed) {
                        let name = format!("span {}", next.fetch_add(1, Ordering::Relaxed));
                        if is_acknowledged(&otlp, &request_named(&name)) {
                            n_acknowledged.fetch_add(1, Ordering::Relaxed);
                            names.push(name);
                        }
                    }
                    names
                })
            })
            .collect();
        let enough = rng.u64(1..60);
        eventually("some requests are acknowledged", || {
            (n_acknowledged.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
        sidecar.signal(Signal::KILL);
        stopping.store(true, Ordering::Relaxed);
        for sender in senders {
            acknowledged.extend(sender.join().unwrap());
        }
        sidecar.child.wait().unwrap();
    }

    let backend = match backend {
        Some(backend) => backend,
        None => Backend::start_at(&address).await,
    };
    let mut sidecar = sidecar(folder.path(), &endpoint);
    let [_, admin] = sidecar.addresses();
    eventually("nothing waits any more", || {
        (metric(&admin, "spanscore_exporter_queue_spans") == 0.0).then_some(())
    })
    .await;
    let books = ["journal_restored", "receiver_accepted", "exporter_sent"]
        .map(|name| metric(&admin, &format!("spanscore_{name}_spans_total")));
    assert_eq!(books[0] + books[1], books[2], "the books balance");
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
    arrived.extend(arrived_names(&backend));

    let received: BTreeSet<String> = arrived.iter().cloned().collect();
    let lost: Vec<&String> = acknowledged.difference(&received).collect();
    assert!(lost.is_empty(), "{} lost: {lost:?}", lost.len());
    // After a kill, the program sends two groups of requests again: those in flight, at most
    // `forward.max_concurrency`, and those whose responses were not recorded yet.
    let n_twice = arrived.len() - received.len();
    let most = (n_kills * 16) as usize;
    assert!(n_twice <= most, "{n_twice} of {} came twice", arrived.len());
    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
}

#[test]
fn a_journal_left_behind_is_shown_inspected_and_checked_for_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut first = sidecar(folder.path(), "http://127.0.0.1:1");
    let [otlp, _] = first.addresses();
    send_recording(&otlp);
    let (code, text, _) = run(&["journal", path]);
    let process = first.child.id();
    assert!(
        text.contains(&format!("process {process} is using the folder")),
        "{text}"
    );
    assert_eq!(code, 0, "{text}");
    first.signal(Signal::KILL);
    first.child.wait().unwrap();

    let (code, text, _) = run(&["journal", path]);
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with(&format!("{path}: 6 requests wait (")),
        "{text}"
    );
    assert!(lines[0].contains(" spans; "), "{text}");
    assert!(lines[1].starts_with("  0000000000000000.seg  "), "{text}");
    assert!(
        lines[1].ends_with(" bytes, 6 requests, 6 waiting"),
        "{text}"
    );
    assert_eq!(lines.len(), 2, "{text}");

    // The folder of the segments can be read like a recording of the sent requests.
    let requests = format!("{path}/requests");
    let judge = |from: &[&str]| {
        let command = [
            "replay",
            "--config",
            "examples/demo.yaml",
            "--format",
            "jsonl",
        ];
        let (_, lines, _) = run(&[&command[..], &["--exit-zero"], from].concat());
        lines
    };
    assert_eq!(judge(&[&requests]), judge(&RECORDING));

    let segment = folder.path().join("requests/0000000000000000.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[4_096 + 200] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let (code, text, _) = run(&["journal", path]);
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("damage: 0000000000000000.seg at byte 4096, "),
        "{text}"
    );
    assert!(text.contains("bytes: 1 request lost ("), "{text}");

    let (code, _, messages) = run(&["journal", "examples"]);
    assert_eq!(
        (code, messages.as_str()),
        (
            3,
            "error: examples: is not the folder of a journal (`journal.directory`)\n"
        )
    );
}

#[test]
fn a_folder_in_use_is_refused_with_the_process_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = sidecar(folder.path(), "http://127.0.0.1:1");
    first.addresses();
    let (code, messages) = sidecar(folder.path(), "http://127.0.0.1:1").failed();
    assert_eq!(code, 4, "{messages}");
    let expected = format!("process {} has locked `", first.child.id());
    assert!(messages.contains(&expected), "{messages}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_sent_again_after_a_kill_arrives_once() {
    let folder = tempfile::tempdir().unwrap();
    // This backend stops immediately, so nothing listens at its address.
    let address = Backend::start_apart().await.address.to_string();
    let endpoint = format!("http://{address}");
    let mut first = sidecar(folder.path(), &endpoint);
    let [otlp, _] = first.addresses();
    for name in ["a", "b"] {
        assert!(is_acknowledged(&otlp, &request_named(name)));
    }
    first.signal(Signal::KILL);
    first.child.wait().unwrap();

    let backend = Backend::start_at(&address).await;
    let mut second = sidecar(folder.path(), &endpoint);
    let [otlp, admin] = second.addresses();
    // As if the kill had lost the response to `b`, the sender sends `b` again.
    for name in ["b", "c"] {
        assert!(is_acknowledged(&otlp, &request_named(name)));
    }
    wait_until_sent(&admin, 3.0).await;
    assert_eq!(
        metric(&admin, "spanscore_journal_resent_requests_total"),
        1.0
    );
    assert_eq!(
        metric(&admin, "spanscore_receiver_accepted_spans_total"),
        1.0
    );
    second.signal(Signal::TERM);
    assert_eq!(second.ended().0, 0);
    let mut names = arrived_names(&backend);
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
}

/// Changes the format version in both copies of a segment's header.
fn set_version(segment: &Path, version: u32) {
    const HEAD: usize = 48;
    let mut bytes = std::fs::read(segment).unwrap();
    for head in [0, 2_048] {
        let head = &mut bytes[head..head + HEAD];
        head[8..12].copy_from_slice(&version.to_le_bytes());
        let crc = crc32fast::hash(&head[..HEAD - 4]);
        head[HEAD - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::write(segment, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_program_sets_a_newer_journal_aside_and_the_newer_one_delivers_it_later() {
    const SEGMENT: &str = "0000000000000000.seg";
    let folder = tempfile::tempdir().unwrap();
    let requests = folder.path().join("requests");
    // This backend stops immediately, so nothing listens at its address.
    let address = Backend::start_apart().await.address.to_string();
    let endpoint = format!("http://{address}");
    let mut newer = sidecar(folder.path(), &endpoint);
    let [otlp, _] = newer.addresses();
    assert!(is_acknowledged(&otlp, &request_named("of the newer")));
    newer.signal(Signal::KILL);
    newer.child.wait().unwrap();
    set_version(&requests.join(SEGMENT), 99);

    let mut older = sidecar(folder.path(), &endpoint);
    let [otlp, admin] = older.addresses();
    assert_eq!(metric(&admin, "spanscore_journal_too_new_total"), 1.0);
    assert!(is_acknowledged(&otlp, &request_named("of the older")));
    let backend = Backend::start_at(&address).await;
    wait_until_sent(&admin, 1.0).await;
    older.signal(Signal::TERM);
    let mut messages = String::new();
    older.log.read_to_string(&mut messages).unwrap();
    assert_eq!(older.ended().0, 0, "{messages}");
    assert_eq!(arrived_names(&backend), ["of the older"]);

    // The log that was set aside is unchanged, so its requests are delivered once its version is
    // supported again.
    let mut damaged = std::fs::read_dir(folder.path().join("damaged")).unwrap();
    let aside = damaged.next().unwrap().unwrap().path();
    let name = aside.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("requests-"), "{name}");
    set_version(&aside.join(SEGMENT), 3);
    std::fs::remove_dir_all(&requests).unwrap();
    std::fs::rename(&aside, &requests).unwrap();
    let mut newer = sidecar(folder.path(), &endpoint);
    let [_, admin] = newer.addresses();
    wait_until_sent(&admin, 1.0).await;
    newer.signal(Signal::TERM);
    assert_eq!(newer.ended().0, 0);
    assert_eq!(arrived_names(&backend), ["of the older", "of the newer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_above_a_smaller_cap_is_delivered_and_takes_requests_again() {
    let folder = tempfile::tempdir().unwrap();
    let address = Backend::start_apart().await.address.to_string();
    let endpoint = format!("http://{address}");
    let large = |n: u64| {
        let name = format!("{n} {}", "x".repeat(1_000_000));
        request_named(&name)
    };
    let mut first = sidecar(folder.path(), &endpoint);
    let [otlp, _] = first.addresses();
    for n in 0..12 {
        assert!(is_acknowledged(&otlp, &large(n)));
    }
    first.signal(Signal::KILL);
    first.child.wait().unwrap();

    let cap = [
        "journal.max_size=8MiB",
        "receivers.otlp.max_request_size=2MiB",
    ];
    let mut second = sidecar_with(folder.path(), &endpoint, &cap);
    let [otlp, admin] = second.addresses();
    assert!(!is_acknowledged(&otlp, &large(12)), "it is over its cap");
    let refused =
        "spanscore_receiver_refused_requests_total{signal=\"traces\",reason=\"journal_full\"}";
    assert_eq!(metric(&admin, refused), 1.0);
    let backend = Backend::start_at(&address).await;
    eventually("there is room again", || {
        is_acknowledged(&otlp, &large(12)).then_some(())
    })
    .await;
    wait_until_sent(&admin, 13.0).await;
    second.signal(Signal::TERM);
    assert_eq!(second.ended().0, 0);
    let names = arrived_names(&backend);
    let first_words = names.iter().map(|name| name.split(' ').next().unwrap());
    let numbers: BTreeSet<u64> = first_words.map(|word| word.parse().unwrap()).collect();
    assert_eq!(numbers, (0..13).collect());
}

/// Returns the exit code and the messages of `validate` for a configuration with this journal.
fn validate(journal: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("spanscore.yaml");
    std::fs::write(&config, format!("journal: {journal}\n")).unwrap();
    let (code, _, messages) = run(&["validate", config.to_str().unwrap()]);
    (code, messages)
}

#[test]
fn validate_warns_of_a_journal_that_one_request_fills_and_refuses_one_for_hardly_any_score() {
    let (code, messages) = validate("{ directory: journal, max_size: 4MiB }");
    assert_eq!(code, 0, "{messages}");
    let expected = "`journal.max_size` is less than twice `receivers.otlp.max_request_size`";
    assert!(messages.contains(expected), "{messages}");
    let (code, messages) = validate("{ directory: journal }");
    assert_eq!((code, messages.as_str()), (0, ""));
    let (code, messages) = validate("{ directory: journal, max_scores_size: 1MiB }");
    assert_eq!(code, 2, "{messages}");
    assert!(messages.contains("expected 16MiB or more"), "{messages}");
}

#[test]
fn validate_warns_of_a_journal_in_memory() {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect());
    if !mounts.any(|mount: Vec<&str>| mount[1..3] == ["/dev/shm", "tmpfs"]) {
        let line = b"\nSKIPPED validate_warns_of_a_journal_in_memory: /dev/shm is no tmpfs here\n";
        return std::io::stderr().write_all(line).unwrap();
    }
    // The folder may be missing.
    let (code, messages) = validate("{ directory: /dev/shm/no-such-folder/journal }");
    assert_eq!(code, 0, "{messages}");
    assert!(messages.contains("is on a tmpfs: "), "{messages}");
}
