//! Tests that a sidecar waits for the last requests, and reports the time of the last one.
//! `tests/it/end_to_end` tests its behaviour over real ports.

mod reloads;
mod rotated_headers;

use bytes::Bytes;
use otlp::span::PeerId;

use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::intake::{LastRequest, Onlookers};
use super::start::SILENCE;
use super::*;
use crate::config::Signal;
use crate::forward;
use crate::receive::{Received, RequestSink as _};
use crate::telemetry::MetricsPage;

fn intake() -> RequestIntake {
    let settings = forward::Settings {
        destination: None,
        signals: Vec::new(),
        capacity: 0.into(),
        journal: None,
    };
    let (forward, _) =
        forward::start(settings, &Arc::default(), fastrand::Rng::with_seed(1)).unwrap();
    let rules = Rules::new(Vec::new());
    RequestIntake {
        onlookers: Onlookers {
            recorder: None,
            page: None,
        },
        forward,
        scoring: None,
        rules: Arc::new(ArcSwap::from_pointee(rules)),
        last_request: LastRequest {
            started: now(),
            millis: Arc::default(),
        },
    }
}

#[tokio::test]
async fn the_quiet_period_starts_at_the_signal() {
    let quiet = Duration::from_millis(20);
    let begun = now().instant + Duration::from_millis(20);
    intake()
        .fall_quiet(quiet, begun, begun + Duration::from_secs(60))
        .await;
    assert!(now().instant >= begun + quiet);
}

#[tokio::test(start_paused = true)]
async fn silence_since_the_start_is_reported_and_a_request_ends_it() {
    let log = |last: u64| async move {
        let written = Arc::new(std::sync::Mutex::new(Vec::new()));
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || Written(writer.clone()))
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let last_request = LastRequest {
            started: now(),
            millis: Arc::new(AtomicU64::new(last)),
        };
        let addresses = Addresses {
            grpc: Some(([127, 0, 0, 1], 4317).into()),
            http: None,
            admin: ([127, 0, 0, 1], 13133).into(),
        };
        last_request.report_silence(SILENCE, addresses).await;
        String::from_utf8(written.lock().unwrap().clone()).unwrap()
    };
    let silent = log(0).await;
    assert!(
        silent.contains("no telemetry received since the start")
            && silent.contains("after_secs=60 grpc=127.0.0.1:4317"),
        "{silent}"
    );
    assert_eq!(log(5).await, "");
}

/// A writer that collects the log.
struct Written(Arc<std::sync::Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_last_request_is_a_metric() {
    let intake = intake();
    let metric = || {
        let mut page = MetricsPage::new(0);
        intake.last_request.write_metrics(&mut page);
        let text = page.finish();
        let line = text.lines().find_map(|line| {
            line.strip_prefix("spanscore_receiver_last_request_timestamp_seconds ")
        });
        line.unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(metric(), 0.0);
    intake.check_room(Signal::Traces, PeerId(1), 1).unwrap();
    let seconds = now().unix_nanos as f64 / 1e9;
    assert!((metric() - seconds).abs() < 5.0);
}

#[tokio::test]
async fn a_request_puts_the_end_off_but_not_beyond_the_latest() {
    let (intake, quiet) = (intake(), Duration::from_millis(20));
    // The stop began so long ago that the quiet time is over.
    let begun = now().instant - quiet;
    let received = Received {
        signal: Signal::Logs,
        body: Bytes::from_static(b"x"),
        n_items: 1,
        headers: Vec::new(),
        batch: Default::default(),
    };
    intake.offer(received).unwrap();
    intake
        .fall_quiet(quiet, begun, begun + Duration::from_secs(60))
        .await;
    // The time of the last request is rounded to milliseconds.
    assert!(now().instant >= begun + 2 * quiet - Duration::from_millis(1));
    intake
        .fall_quiet(Duration::from_secs(3_600), now().instant, now().instant)
        .await;
}
