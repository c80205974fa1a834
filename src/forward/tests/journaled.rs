//! Tests a forward plane with a journal: which requests remain after a restart, after an outage
//! that fills the memory, and when the journal is full. A restart is either orderly or drops all
//! tasks; `tests/it/durability.rs` kills the process.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::*;
use crate::eventually::eventually;
use crate::journal::{JournalFolder, LogSettings, LogThread, Outlet};

struct JournaledPlane {
    plane: Plane,
    thread: LogThread,
}

#[expect(clippy::disallowed_methods, reason = "a test's clock")]
fn clock() -> (Instant, u64) {
    (Instant::now(), 1_700_000_000_000_000_000)
}

impl JournaledPlane {
    fn open(folder: &Path, destination: Destination, capacity: usize) -> Self {
        Self::open_with(
            folder,
            destination,
            capacity,
            LogSettings::new(1 << 30, false, false),
        )
    }

    fn open_with(
        folder: &Path,
        destination: Destination,
        capacity: usize,
        log: LogSettings,
    ) -> Self {
        let telemetry = Arc::new(Telemetry::default());
        let rng = fastrand::Rng::with_seed(7);
        let (log, thread) = JournalFolder::lock(folder)
            .unwrap()
            .expect("nobody else has it")
            .open(log, clock, rng.clone(), &telemetry)
            .unwrap();
        let settings = Settings {
            destination: Some(destination),
            signals: Signal::ALL.to_vec(),
            capacity: capacity.into(),
            journal: Some(log),
        };
        let (handle, delivery) = start(settings, &telemetry, rng).unwrap();
        let plane = Plane {
            handle,
            delivery: delivery.unwrap(),
            telemetry,
        };
        Self { plane, thread }
    }

    async fn keep(&self, body: impl Into<Bytes>, n_items: u64) -> Result<(), QueueRefusal> {
        self.keep_with(body.into(), n_items, Vec::new()).await
    }

    async fn keep_with(
        &self,
        body: Bytes,
        n_items: u64,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Result<(), QueueRefusal> {
        let handle = &self.plane.handle;
        assert!(handle.is_journaled(Signal::Traces, false));
        let (answer, answered) = oneshot::channel();
        let outcome = Box::new(move |outcome| answer.send(outcome).unwrap());
        handle.append(
            outbound(Signal::Traces, PeerId(1), body, n_items, headers),
            1,
            outcome,
        );
        answered.await.unwrap().map(|_| ())
    }

    /// Delivers within `time`, closes the journal, and returns the accounts.
    async fn finish_within(self, time: Duration) -> ItemCounts {
        let (undelivered, books) = self.plane.finish_within(time).await;
        assert_eq!(
            undelivered,
            Undelivered::new(),
            "the journal keeps the rest"
        );
        tokio::task::spawn_blocking(|| self.thread.end())
            .await
            .unwrap();
        books
    }
}

const LONG: Duration = Duration::from_secs(60);

fn down() -> Destination {
    crate::transport::tests::peer::destination("127.0.0.1:1".parse().unwrap(), Protocol::Grpc)
}

#[tokio::test]
async fn what_was_not_delivered_is_sent_after_the_restart_with_its_headers() {
    let folder = tempfile::tempdir().unwrap();
    let kept = JournaledPlane::open(folder.path(), down(), 1 << 20);
    let tenant = (
        HeaderName::from_static("x-tenant"),
        HeaderValue::from_static("a"),
    );
    kept.keep_with(Bytes::from_static(b"first"), 2, vec![tenant])
        .await
        .unwrap();
    kept.keep(&b"second"[..], 3).await.unwrap();
    let left = kept.finish_within(Duration::ZERO).await;
    assert_eq!((left.accepted, left.sent, left.queued), (5, 0, 5));

    let peer = Peer::willing().await;
    let kept = JournaledPlane::open(folder.path(), peer.destination(Protocol::Grpc), 1 << 20);
    kept.keep(&b"third"[..], 1).await.unwrap();
    let then = kept.finish_within(LONG).await;
    assert_eq!(
        (then.restored, then.accepted, then.sent, then.queued),
        (5, 1, 6, 0)
    );
    let mut received = peer.received();
    received.sort_by_key(|received| received.body.clone());
    let bodies: Vec<_> = received.iter().map(|received| &received.body[..]).collect();
    assert_eq!(bodies, [&b"first"[..], b"second", b"third"]);
    assert_eq!(received[0].headers["x-tenant"], "a");
    assert!(!received[1].headers.contains_key("x-tenant"));

    // Nothing is sent twice.
    let kept = JournaledPlane::open(folder.path(), peer.destination(Protocol::Grpc), 1 << 20);
    let last = kept.finish_within(LONG).await;
    assert_eq!((last.restored, last.sent), (0, 0));
    assert_eq!(peer.received().len(), 3);
}

fn open_both(
    folder: &Path,
    first: Destination,
    second: &Destination,
) -> (JournaledPlane, Delivery) {
    let telemetry = Arc::new(Telemetry::default());
    let rng = fastrand::Rng::with_seed(7);
    let settings = LogSettings::new(1 << 30, false, false).for_outlets(true, true);
    let (log, thread) = JournalFolder::lock(folder)
        .unwrap()
        .expect("nobody else has it")
        .open(settings, clock, rng.clone(), &telemetry)
        .unwrap();
    let settings = Settings {
        destination: Some(first),
        signals: Signal::ALL.to_vec(),
        capacity: (1 << 20).into(),
        journal: Some(log.clone()),
    };
    let (handle, delivery) = start(settings, &telemetry, rng.clone()).unwrap();
    let accounting = handle.accounting_of_copies();
    let queue = Queue::new("kafka", 1 << 20, accounting, &telemetry);
    let queue = queue.journaled_in(&log, Outlet::Topic);
    let client = Client::new(second, &telemetry).unwrap();
    let second = Delivery::new(queue.clone(), client, Arc::clone(&telemetry), rng);
    let plane = Plane {
        handle: handle.also_into(queue),
        delivery: delivery.unwrap(),
        telemetry,
    };
    (JournaledPlane { plane, thread }, second)
}

#[tokio::test]
async fn each_of_two_destinations_gets_what_it_has_not_had_before_the_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = Peer::willing().await;
    let first_at = || first.destination(Protocol::Grpc);
    let (kept, second) = open_both(folder.path(), first_at(), &down());
    let running = tokio::spawn(second.run());
    kept.keep(&b"one"[..], 1).await.unwrap();
    kept.keep(&b"two"[..], 2).await.unwrap();
    // Only one of the two destinations accepts this signal.
    let (answer, answered) = oneshot::channel();
    let outcome = Box::new(move |outcome| answer.send(outcome).unwrap());
    let handle = &kept.plane.handle;
    handle.append(
        outbound(Signal::Logs, PeerId(1), (&b"log"[..]).into(), 1, Vec::new()),
        1,
        outcome,
    );
    answered.await.unwrap().unwrap();
    kept.plane
        .handle
        .close((tokio::time::Instant::now() + LONG).into_std());
    running.abort();
    let _ = running.await;
    let books = kept.finish_within(LONG).await;
    assert_eq!((books.accepted, books.sent, books.queued), (3, 3, 0));
    assert_eq!(first.received().len(), 3);

    let other = Peer::willing().await;
    let (kept, second) = open_both(
        folder.path(),
        first_at(),
        &other.destination(Protocol::Grpc),
    );
    let running = tokio::spawn(second.run());
    kept.keep(&b"three"[..], 4).await.unwrap();
    let page = kept
        .plane
        .telemetry
        .counter("spanscore_kafka_spans_total", &[("outcome", "restored")]);
    assert_eq!(page, 3);
    let books = kept.finish_within(LONG).await;
    assert_eq!((books.restored, books.accepted, books.sent), (0, 4, 4));
    assert_eq!(running.await.unwrap(), Undelivered::new());
    let mut bodies: Vec<_> = other
        .received()
        .into_iter()
        .map(|received| received.body)
        .collect();
    bodies.sort();
    assert_eq!(bodies, [&b"one"[..], b"three", b"two"]);
    assert_eq!(first.received().len(), 4, "nothing is sent twice");
}

#[tokio::test]
async fn a_backlog_far_larger_than_memory_is_delivered_oldest_first() {
    let folder = tempfile::tempdir().unwrap();
    let n_requests = 300_u64;
    let body = |n: u64| {
        let mut body = n.to_be_bytes().to_vec();
        body.resize(2_000, 7);
        body
    };
    let kept = JournaledPlane::open(folder.path(), down(), 10_000);
    for n in 0..n_requests {
        kept.keep(body(n), 1).await.unwrap();
    }
    let memory = kept.plane.telemetry.gauge(
        "spanscore_exporter_queue_size_bytes",
        &[("queue", "forward")],
    );
    assert!(memory <= 10_000, "{memory} bytes of 600,000 are in memory");
    kept.finish_within(Duration::ZERO).await;

    let peer = Peer::willing().await;
    let mut destination = peer.destination(Protocol::Grpc);
    destination.max_concurrency = 1;
    let kept = JournaledPlane::open(folder.path(), destination, 10_000);
    for n in n_requests..n_requests + 50 {
        kept.keep(body(n), 1).await.unwrap();
    }
    let books = kept.finish_within(LONG).await;
    assert_eq!(
        (books.restored, books.accepted, books.sent),
        (n_requests, 50, n_requests + 50)
    );
    let order: Vec<u64> = peer
        .received()
        .iter()
        .map(|received| u64::from_be_bytes(received.body[..8].try_into().unwrap()))
        .collect();
    assert_eq!(order, (0..n_requests + 50).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_full_journal_refuses_before_it_acknowledges_and_recovers_by_delivery() {
    let folder = tempfile::tempdir().unwrap();
    let is_down = Arc::new(Mutex::new(true));
    let peer = Peer::start({
        let is_down = Arc::clone(&is_down);
        move |_, _| if *is_down.lock().unwrap() { Reply::http(503) } else { Reply::taken() }
    })
    .await;
    let kept = JournaledPlane::open_with(
        folder.path(),
        peer.destination(Protocol::Grpc),
        1 << 20,
        LogSettings::new(8 << 20, false, false),
    );
    let body = Bytes::from(vec![7; 500_000]);
    let mut n_kept = 0;
    let refusal = loop {
        match kept.keep(body.clone(), 1).await {
            Ok(()) => n_kept += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, QueueRefusal::JournalFull);
    assert!((10..=16).contains(&n_kept), "{n_kept} of 500 kB in 8 MiB");
    // The next request is refused before its body is read.
    let room = kept
        .plane
        .handle
        .check_room(Signal::Traces, PeerId(1), 500_000);
    assert_eq!(room, Err(QueueRefusal::JournalFull));

    *is_down.lock().unwrap() = false;
    let JournaledPlane { plane, thread } = kept;
    let telemetry = plane.telemetry.clone();
    let handle = plane.handle.clone();
    let mut delivering = JoinSet::new();
    delivering.spawn(plane.delivery.run());
    eventually("there is room again", || {
        handle.check_room(Signal::Traces, PeerId(1), 500_000).ok()
    })
    .await;
    handle.close((tokio::time::Instant::now() + LONG).into_std());
    while delivering.join_next().await.is_some() {}
    tokio::task::spawn_blocking(|| thread.end()).await.unwrap();
    let books = &telemetry.item_counts()["traces"];
    assert_eq!(
        (books.sent, books.queued),
        (n_kept, 0),
        "the refused one is its sender's"
    );
}

#[tokio::test]
async fn a_journal_that_one_sender_fills_still_takes_the_requests_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let log = LogSettings::new(8 << 20, false, false);
    let kept = JournaledPlane::open_with(folder.path(), down(), 1 << 20, log);
    let body = Bytes::from(vec![7; 300_000]);
    let handle = &kept.plane.handle;
    let keep = async |peer, body: &Bytes| {
        let (answer, answered) = oneshot::channel();
        let outcome = Box::new(move |outcome| answer.send(outcome).unwrap());
        let body = body.clone();
        handle.append(
            outbound(Signal::Traces, PeerId(peer), body, 1, Vec::new()),
            1,
            outcome,
        );
        answered.await.unwrap().map(|_| ())
    };
    let mut n_kept = 0;
    while keep(1, &body).await.is_ok() {
        n_kept += 1;
    }
    assert!((15..=24).contains(&n_kept), "{n_kept} of 300 kB in 8 MiB");
    let small = Bytes::from(vec![7; 3_000]);
    for _ in 0..50 {
        handle.check_room(Signal::Traces, PeerId(2), 3_000).unwrap();
        keep(2, &small).await.unwrap();
        assert_eq!(keep(1, &body).await, Err(QueueRefusal::JournalFull));
    }
    let refused = handle.check_room(Signal::Traces, PeerId(1), 300_000);
    assert_eq!(refused, Err(QueueRefusal::JournalFull), "before it is read");

    // After a restart every record is still there. Old records are charged to no sender, and
    // senders share the rest as before.
    kept.finish_within(Duration::ZERO).await;
    let kept = JournaledPlane::open_with(folder.path(), down(), 1 << 20, log);
    let handle = &kept.plane.handle;
    handle.check_room(Signal::Traces, PeerId(2), 3_000).unwrap();
    assert_eq!(
        kept.finish_within(Duration::ZERO).await.restored,
        n_kept + 50
    );
}

#[tokio::test]
async fn a_split_request_is_kept_until_both_halves_are_done() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..20).map(|n| format!("span number {n}")).collect();
    let body = spans(&names);
    // The peer accepts the first half, then nothing.
    let peer = Peer::start(move |n, received| match (received.body.len() > 300, n) {
        (true, _) => Reply::http(413),
        (false, 1) => Reply::taken(),
        (false, _) => Reply::http(503),
    })
    .await;
    let kept = JournaledPlane::open(
        folder.path(),
        peer.destination(Protocol::HttpProtobuf),
        1 << 20,
    );
    kept.keep(body.clone(), 20).await.unwrap();
    let left = kept.finish_within(Duration::from_millis(300)).await;
    assert_eq!(left.accepted, left.sent + left.queued);
    assert!(left.sent > 0 && left.queued > 0, "{left:?}");

    let peer = Peer::willing().await;
    let kept = JournaledPlane::open(folder.path(), peer.destination(Protocol::Grpc), 1 << 20);
    let then = kept.finish_within(LONG).await;
    assert_eq!((then.restored, then.sent), (20, 20));
    assert_eq!(
        peer.received()[0].body,
        body,
        "the whole request comes again"
    );
}

#[tokio::test]
async fn a_final_refusal_is_not_repeated_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let peer = Peer::start(|_, _| Reply::grpc(Code::InvalidArgument)).await;
    let kept = JournaledPlane::open(folder.path(), peer.destination(Protocol::Grpc), 1 << 20);
    kept.keep(&b"bad"[..], 4).await.unwrap();
    let books = kept.finish_within(LONG).await;
    assert_eq!(books.dropped, BTreeMap::from([("invalid_argument", 4)]));
    let kept = JournaledPlane::open(folder.path(), peer.destination(Protocol::Grpc), 1 << 20);
    assert_eq!(kept.finish_within(LONG).await.restored, 0);
}

#[tokio::test]
async fn damage_is_counted_and_the_rest_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let kept = JournaledPlane::open(folder.path(), down(), 1 << 20);
    for n in 0..9_u8 {
        kept.keep(vec![n; 1_000], 3).await.unwrap();
    }
    kept.finish_within(Duration::ZERO).await;
    let segment = folder.path().join("requests/0000000000000000.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[4_096 + 4 * 1_064 + 500] ^= 1;
    std::fs::write(&segment, bytes).unwrap();

    let peer = Peer::willing().await;
    let kept = JournaledPlane::open(folder.path(), peer.destination(Protocol::Grpc), 1 << 20);
    let telemetry = kept.plane.telemetry.clone();
    let books = kept.finish_within(LONG).await;
    assert_eq!((books.restored, books.sent), (27, 24));
    assert_eq!(books.dropped, BTreeMap::from([("damaged", 3)]));
    assert_eq!(
        telemetry.counter("spanscore_journal_damaged_records_total", &[]),
        1
    );
    let n_copies = std::fs::read_dir(folder.path().join("damaged"))
        .unwrap()
        .count();
    assert_eq!(n_copies, 1, "its bytes are kept for a look");
}

#[tokio::test]
async fn a_folder_belongs_to_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let first = JournalFolder::lock(folder.path()).unwrap();
    assert!(first.is_some());
    assert!(JournalFolder::lock(folder.path()).unwrap().is_none());
    let error = JournalFolder::in_use(folder.path()).to_string();
    assert_eq!(
        error,
        format!(
            "cannot use `journal.directory`: process {} has locked `{}`; give each instance its \
             own folder",
            std::process::id(),
            folder.path().display()
        )
    );
    drop(first);
    assert!(JournalFolder::lock(folder.path()).unwrap().is_some());
}
