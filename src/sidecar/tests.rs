//! How a sidecar waits for the last requests. Its behaviour over real ports is in
//! `tests/it/end_to_end`.

mod reloads;

use super::*;
use crate::receive::Intake as _;

fn intake() -> Intake {
    let config = Config::default();
    let settings = forward::Settings {
        destination: None,
        signals: Vec::new(),
        capacity: 0,
    };
    let (forward, _) =
        forward::start(settings, &Arc::default(), fastrand::Rng::with_seed(1)).unwrap();
    let rules = Rules::new(Vec::new(), &config.tools, config.explain, &[]);
    Intake {
        forward,
        scoring: None,
        rules: Arc::new(ArcSwap::from_pointee(rules)),
        started: now().instant,
        last_offer: AtomicU64::new(0),
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

#[tokio::test]
async fn a_request_puts_the_end_off_but_not_beyond_the_latest() {
    let (intake, begun, quiet) = (intake(), now().instant, Duration::from_millis(20));
    while now().instant < begun + quiet {
        tokio::task::yield_now().await;
    }
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
    // The last request is remembered to the millisecond.
    assert!(now().instant >= begun + 2 * quiet - Duration::from_millis(1));
    intake
        .fall_quiet(Duration::from_secs(3_600), now().instant, now().instant)
        .await;
}
