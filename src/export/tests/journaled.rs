//! Tests which scores in a journal remain after a restart while a backend is down, after an orderly
//! stop, and when the log is full. Every restart is orderly; `tests/it/restarts.rs` kills the
//! process.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;

use super::backends::{dropped, label, of_trace, queued, sent, to_phoenix};
use super::delivery::{PLENTY, config, export};
use super::fixture::{fail, pass};
use crate::config::Config;
use crate::eventually::eventually;
use crate::export::{ExportPlan, ExportTasks, Exporter, n_queued};
use crate::journal::{JournalFolder, JournalLog, LogSettings, LogThread};
use crate::sidecar;
use crate::telemetry::Telemetry;
use crate::transport::tests::peer::{Peer, Reply};

struct JournaledExport {
    exporter: Exporter,
    running: ExportTasks,
    thread: LogThread,
    telemetry: Arc<Telemetry>,
}

impl JournaledExport {
    fn start(folder: &Path, config: &Config, memory: usize, max_size: u64) -> Self {
        let telemetry: Arc<Telemetry> = Arc::default();
        let mut rng = fastrand::Rng::with_seed(7);
        let settings = LogSettings::of_scores(max_size, false);
        let opened = locked(folder).open(settings, clock, rng.fork(), &telemetry);
        let (log, thread) = opened.unwrap();
        let plan = ExportPlan {
            config,
            budget: memory.into(),
            print: None,
            marks: None,
            journal: Some(log),
            spans: None,
        };
        let (exporter, running) = Exporter::start(plan, &telemetry, &mut rng).unwrap();
        Self {
            exporter,
            running,
            thread,
            telemetry,
        }
    }

    /// Delivers for at most `within` and closes the log. Returns the numbers of scores that are
    /// lost (by shape) and that remain stored.
    async fn stop(self, within: Duration) -> (BTreeMap<&'static str, u64>, u64) {
        let deadline = tokio::time::Instant::now().into_std() + within;
        let left = self.running.drain(deadline).await;
        tokio::task::spawn_blocking(|| self.thread.end())
            .await
            .unwrap();
        (left, n_queued(&self.telemetry))
    }
}

fn clock() -> (Instant, u64) {
    let now = sidecar::now();
    (now.instant, now.unix_nanos)
}

fn locked(folder: &Path) -> Arc<JournalFolder> {
    let locked = JournalFolder::lock(folder).unwrap();
    locked.expect("nobody else has it")
}

/// Opens a log of requests for the judged spans.
pub(super) fn open_requests(folder: &Path, telemetry: &Arc<Telemetry>) -> (JournalLog, LogThread) {
    let settings = LogSettings::new(LARGE, false, false);
    let opened = locked(folder).open(settings, clock, fastrand::Rng::new(), telemetry);
    opened.unwrap()
}

const LONG: Duration = Duration::from_secs(30);
const LARGE: u64 = 64 << 20;

/// Returns the score spans that a peer received, repetitions included.
fn spans_at(peer: &Peer) -> Vec<Vec<u8>> {
    let requests = peer.received().into_iter();
    let requests = requests.map(|received| {
        let body = received.body;
        ExportTraceServiceRequest::decode(&body[..]).unwrap()
    });
    let groups = requests.flat_map(|request| request.resource_spans);
    let scopes = groups.flat_map(|group| group.scope_spans);
    let mut spans: Vec<Vec<u8>> = scopes
        .flat_map(|scope| scope.spans)
        .map(|span| span.encode_to_vec())
        .collect();
    spans.sort();
    spans
}

fn spans_to(address: std::net::SocketAddr) -> Config {
    let mut config = config();
    config.forward.retry.initial_interval.0 = Duration::from_millis(2);
    config.forward.retry.max_interval.0 = Duration::from_millis(20);
    config.scores.span.peer.endpoint = Some(format!("http://{address}"));
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_that_a_stop_leaves_behind_are_sent_at_the_next_start() {
    let evaluations: Vec<_> = (1..=40).map(|id| of_trace(fail(), id)).collect();
    let undisturbed = Peer::willing().await;
    let folder = tempfile::tempdir().unwrap();
    let kept = JournaledExport::start(folder.path(), &spans_to(undisturbed.address), PLENTY, LARGE);
    export(&kept.exporter, &evaluations);
    let telemetry = kept.telemetry.clone();
    assert_eq!(kept.stop(LONG).await, (BTreeMap::new(), 0));
    assert_eq!(sent(&telemetry, "score_spans"), 40, "an orderly stop waits");
    let expected = spans_at(&undisturbed);
    assert_eq!(expected.len(), 40);

    let away = Peer::start(|_, _| Reply::http(503)).await;
    let folder = tempfile::tempdir().unwrap();
    for evaluations in evaluations.chunks(10) {
        let kept = JournaledExport::start(folder.path(), &spans_to(away.address), PLENTY, LARGE);
        export(&kept.exporter, evaluations);
        let (left, _) = kept.stop(Duration::from_millis(20)).await;
        assert_eq!(left, BTreeMap::new(), "the journal keeps them");
    }
    let back = Peer::willing().await;
    let kept = JournaledExport::start(folder.path(), &spans_to(back.address), PLENTY, LARGE);
    let telemetry = kept.telemetry.clone();
    assert_eq!(kept.stop(LONG).await, (BTreeMap::new(), 0));
    assert_eq!(sent(&telemetry, "score_spans"), 40);
    assert_eq!(spans_at(&back), expected, "each once, to the byte");
    let kept = JournaledExport::start(folder.path(), &spans_to(back.address), PLENTY, LARGE);
    assert_eq!(queued(&kept.telemetry, "score_spans"), 0);
    kept.stop(LONG).await;
    assert_eq!(spans_at(&back), expected, "nothing was sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_only_a_cache_of_the_scores_that_wait() {
    let is_back = Arc::new(AtomicBool::new(false));
    let seen = is_back.clone();
    let peer =
        Peer::start(
            move |_, _| {
                if seen.load(Ordering::Relaxed) { Reply::taken() } else { Reply::http(503) }
            },
        )
        .await;
    let folder = tempfile::tempdir().unwrap();
    let mut config = spans_to(peer.address);
    config.scores.batch.max_evaluations = 1;
    let kept = JournaledExport::start(folder.path(), &config, 20_000, LARGE);
    for id in 1..=200 {
        export(&kept.exporter, &[of_trace(fail(), id)]);
        // How long this takes depends on the disk.
        eventually("the score is queued", || {
            assert_eq!(dropped(&kept.telemetry, "score_spans", "queue_full"), 0);
            (queued(&kept.telemetry, "score_spans") >= i64::from(id)).then_some(())
        })
        .await;
    }
    is_back.store(true, Ordering::Relaxed);
    let telemetry = kept.telemetry.clone();
    assert_eq!(kept.stop(LONG).await, (BTreeMap::new(), 0));
    assert_eq!(sent(&telemetry, "score_spans"), 200);
    let mut spans = spans_at(&peer);
    spans.dedup();
    assert_eq!(spans.len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_log_drops_the_oldest_scores_and_counts_them() {
    let away = Peer::start(|_, _| Reply::http(503)).await;
    let folder = tempfile::tempdir().unwrap();
    let config = spans_to(away.address);
    let kept = JournaledExport::start(folder.path(), &config, 200_000, 8 << 20);
    let mut n_exported = 0;
    while dropped(&kept.telemetry, "score_spans", "queue_full") == 0 {
        let evaluations: Vec<_> = (1..=200).map(|id| of_trace(fail(), id)).collect();
        export(&kept.exporter, &evaluations);
        n_exported += 200;
        // How long this takes depends on the disk.
        eventually("the scores are queued or dropped", || {
            let n_taken = queued(&kept.telemetry, "score_spans")
                + dropped(&kept.telemetry, "score_spans", "queue_full").cast_signed();
            (n_taken >= n_exported - 400).then_some(())
        })
        .await;
    }
    let telemetry = kept.telemetry.clone();
    let (left, n_kept) = kept.stop(Duration::from_millis(20)).await;
    assert_eq!(left, BTreeMap::new());
    let n_dropped = dropped(&telemetry, "score_spans", "queue_full");
    assert_eq!(n_dropped + n_kept, n_exported.cast_unsigned());
    let back = Peer::willing().await;
    let kept = JournaledExport::start(folder.path(), &spans_to(back.address), PLENTY, 8 << 20);
    assert_eq!(kept.stop(LONG).await, (BTreeMap::new(), 0));
    assert_eq!(spans_at(&back).len() as u64, n_kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backends_own_scores_keep_their_order_over_a_restart() {
    let away = Peer::start(|_, _| Reply::http(503)).await;
    let folder = tempfile::tempdir().unwrap();
    let kept = JournaledExport::start(folder.path(), &to_phoenix(away.address), PLENTY, LARGE);
    export(&kept.exporter, &[of_trace(fail(), 1), of_trace(pass(), 2)]);
    export(&kept.exporter, &[of_trace(pass(), 1)]);
    let (left, n_kept) = kept.stop(Duration::from_millis(20)).await;
    assert_eq!((left, n_kept), (BTreeMap::new(), 3));
    let kept = JournaledExport::start(folder.path(), &to_phoenix(away.address), PLENTY, LARGE);
    let telemetry = kept.telemetry.clone();
    let metrics = telemetry.metrics_text(0, &[]);
    assert!(
        !metrics.contains("damaged"),
        "nothing is damaged: {metrics}"
    );
    eventually("the three scores are read again", || {
        (n_queued(&telemetry) == 3).then_some(())
    })
    .await;
    let (left, n_kept) = kept.stop(Duration::from_millis(20)).await;
    assert_eq!((left, n_kept), (BTreeMap::new(), 3));

    let back = Peer::willing().await;
    let kept = JournaledExport::start(folder.path(), &to_phoenix(back.address), PLENTY, LARGE);
    let telemetry = kept.telemetry.clone();
    assert_eq!(kept.stop(LONG).await, (BTreeMap::new(), 0));
    assert_eq!(sent(&telemetry, "writer_phoenix"), 3);
    let labels: Vec<String> = back.received().iter().map(label).collect();
    let fail_at = labels.iter().position(|label| label == "fail").unwrap();
    assert_eq!(labels.len(), 3, "{labels:?}");
    assert!(
        labels[fail_at + 1..].contains(&"pass".to_owned()),
        "{labels:?}"
    );
}

/// Flips a bit in the body of the record with this number.
fn flip(folder: &Path, n: usize) {
    let segment = folder.join("scores/0000000000000000.seg");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(segment)
        .unwrap();
    let mut bytes = vec![0; 100_000];
    let n_read = file.read_at(&mut bytes, 4_096).unwrap();
    let is_head = |at: &usize| bytes[*at..n_read].starts_with(&[0xf1, b'S', b'J', b'r']);
    let head = (0..n_read).step_by(8).filter(is_head).nth(n).unwrap();
    let at = head + 300;
    file.write_at(&[bytes[at] ^ 1], 4_096 + at as u64).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_scores_of_a_backend_are_counted_as_dropped() {
    let (is_back, seen) = {
        let is_back = Arc::new(AtomicBool::new(false));
        (is_back.clone(), is_back)
    };
    let peer =
        Peer::start(
            move |_, _| {
                if seen.load(Ordering::Relaxed) { Reply::taken() } else { Reply::http(503) }
            },
        )
        .await;
    for is_restarted in [false, true] {
        is_back.store(false, Ordering::Relaxed);
        let mut config = to_phoenix(peer.address);
        config.scores.span.peer.endpoint = Some(format!("http://{}", peer.address));
        let folder = tempfile::tempdir().unwrap();
        let mut kept = JournaledExport::start(folder.path(), &config, 4_000, LARGE);
        for id in 1..=9 {
            export(&kept.exporter, &[of_trace(fail(), id)]);
            eventually("the score is kept", || {
                (queued(&kept.telemetry, "writer_phoenix") == i64::from(id)).then_some(())
            })
            .await;
        }
        // Only the first requests are in memory.
        flip(folder.path(), 7);
        if is_restarted {
            assert_eq!(
                kept.stop(Duration::from_millis(20)).await,
                (BTreeMap::new(), 18)
            );
            kept = JournaledExport::start(folder.path(), &config, PLENTY, LARGE);
        }
        is_back.store(true, Ordering::Relaxed);
        let telemetry = kept.telemetry.clone();
        assert_eq!(
            kept.stop(LONG).await,
            (BTreeMap::new(), 0),
            "{is_restarted}"
        );
        let of_phoenix = (
            sent(&telemetry, "writer_phoenix"),
            dropped(&telemetry, "writer_phoenix", "damaged"),
        );
        assert_eq!(of_phoenix, (8, 1), "{is_restarted}");
        assert_eq!(sent(&telemetry, "score_spans"), 9);
        let n_damaged = telemetry.counter("spanscore_journal_damaged_records_total", &[]);
        assert_eq!(n_damaged, 1);
    }
}
