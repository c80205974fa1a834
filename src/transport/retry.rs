//! Decides how many attempts a destination gets, when the next attempt is due, and which outages
//! are logged. A destination that is down gets a single probe, not one attempt for each queued
//! request.

use std::time::{Duration, Instant};

use crate::config::Backoff;
use crate::telemetry::Throttled;

/// Maximum delay that a peer may request. Neither a mistyped nor a hostile `Retry-After` may pause
/// delivery until the queue overflows.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// Returns the delay before attempt number `n_failures` + 1. The delay grows exponentially up to a
/// maximum. `jitter` (0..=1) multiplies it by 0.5 to 1, so that a fleet of sidecars does not retry
/// simultaneously. The result is at least the delay that the peer requested, up to
/// [`LONGEST_ASKED`].
pub(crate) fn wait(
    backoff: &Backoff,
    n_failures: u32,
    asked: Option<Duration>,
    jitter: f64,
) -> Duration {
    let exponent = i32::try_from(n_failures.saturating_sub(1)).unwrap_or(i32::MAX);
    let secs = (backoff.initial.as_secs_f64() * backoff.multiplier.powi(exponent))
        .min(backoff.max.as_secs_f64());
    // An interval of zero would make the loop spin.
    let own = Duration::from_secs_f64((secs * (0.5 + jitter.clamp(0.0, 1.0) / 2.0)).max(0.001));
    own.max(asked.unwrap_or_default().min(LONGEST_ASKED))
}

#[derive(Debug)]
pub(crate) struct Pacer {
    backoff: Backoff,
    max_in_flight: usize,
    /// Time at which an attempt last ended with an answer.
    answered_at: Option<Instant>,
    /// The outage; `None` if the destination is up.
    down: Option<Down>,
}

#[derive(Debug)]
struct Down {
    n_failures: u32,
    retry_at: Instant,
    /// The end of the pause that the peer requested.
    paused_until: Option<Instant>,
    probing: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    at: Instant,
    is_probe: bool,
}

impl Pacer {
    pub(crate) fn new(backoff: Backoff, max_in_flight: usize) -> Self {
        Self {
            backoff,
            max_in_flight,
            answered_at: None,
            down: None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// Returns the number of attempts that can start now.
    pub(crate) fn n_free_slots(&self, n_in_flight: usize, now: Instant) -> usize {
        match &self.down {
            None => self.max_in_flight.saturating_sub(n_in_flight),
            Some(down) => usize::from(!down.probing && now >= down.retry_at),
        }
    }

    /// Returns the time of the next probe; `None` while one is in flight or the destination is up.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let down = self.down.as_ref().filter(|down| !down.probing);
        down.map(|down| down.retry_at)
    }

    /// Starts an attempt in a free slot.
    pub(crate) fn start(&mut self, now: Instant) -> Attempt {
        if let Some(down) = &mut self.down {
            down.probing = true;
        }
        Attempt {
            at: now,
            is_probe: !self.is_up(),
        }
    }

    /// Records an answer: a success or a refusal proves that the peer is alive.
    pub(crate) fn answered(&mut self, attempt: Attempt, now: Instant) {
        self.answered_at = Some(now);
        // Only the probe ends a pause that the peer requested and that has not passed.
        let is_paused = |down: &mut Down| down.paused_until.is_some_and(|until| until > now);
        self.down
            .take_if(|down| attempt.is_probe || !is_paused(down));
    }

    /// Records a failed attempt that will be retried.
    pub(crate) fn failed(
        &mut self,
        attempt: Attempt,
        asked: Option<Duration>,
        now: Instant,
        jitter: f64,
    ) {
        let paused_until = asked
            .filter(|asked| !asked.is_zero())
            .map(|asked| now + asked.min(LONGEST_ASKED));
        let has_answered = self.answered_at.is_some_and(|at| at > attempt.at);
        match &mut self.down {
            // Other requests were answered since this attempt began, so the request and not the
            // peer is the cause of the failure.
            None if paused_until.is_none() && has_answered => {}
            // This attempt began before the outage was detected. Only the pause that the peer
            // requested is new.
            Some(down) if !attempt.is_probe => {
                down.paused_until = down.paused_until.max(paused_until);
                down.retry_at = down.retry_at.max(paused_until.unwrap_or(down.retry_at));
            }
            down => {
                let n_failures = down.as_ref().map_or(0, |down| down.n_failures);
                let n_failures = n_failures.saturating_add(1);
                *down = Some(Down {
                    n_failures,
                    retry_at: now + wait(&self.backoff, n_failures, asked, jitter),
                    paused_until,
                    probing: false,
                });
            }
        }
    }

    /// Makes the next probe due immediately and resets the backoff, because the sidecar stops. Does
    /// not shorten a pause that the peer requested.
    pub(crate) fn begin_drain(&mut self, now: Instant) {
        if let Some(down) = &mut self.down {
            down.n_failures = 0;
            down.retry_at = down.paused_until.unwrap_or(now).max(now);
        }
    }
}

/// Decides which events of an outage are logged: the start, one reminder a minute, and the end. A
/// flapping destination gets one pair of lines a minute.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    is_logged: bool,
    lines: Throttled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutageEvent {
    Down,
    /// The outage has lasted this long.
    StillDown(Duration),
    /// The outage ended after this long.
    Recovered(Duration),
}

impl Outage {
    /// Records the state of the destination, and returns the event to log.
    pub(crate) fn observe(&mut self, is_up: bool, now: Instant) -> Option<OutageEvent> {
        match (self.since, is_up) {
            (None, true) => None,
            (None, false) => {
                self.since = Some(now);
                self.is_logged = self.lines.ready((), now).is_some();
                self.is_logged.then_some(OutageEvent::Down)
            }
            (Some(since), false) => {
                self.lines.ready((), now)?;
                Some(if std::mem::replace(&mut self.is_logged, true) {
                    OutageEvent::StillDown(now.duration_since(since))
                } else {
                    OutageEvent::Down
                })
            }
            (Some(since), true) => {
                self.since = None;
                std::mem::take(&mut self.is_logged)
                    .then(|| OutageEvent::Recovered(now.duration_since(since)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    fn backoff() -> Backoff {
        Backoff {
            initial: SEC,
            multiplier: 1.5,
            max: 30 * SEC,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "an `Instant` cannot be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn waits_grow_by_half_up_to_the_cap_and_jitter_takes_up_to_half_off() {
        let secs = |n_failures, jitter| wait(&backoff(), n_failures, None, jitter).as_secs_f64();
        assert_eq!([1, 2, 3, 4].map(|n| secs(n, 1.0)), [1.0, 1.5, 2.25, 3.375]);
        assert_eq!(
            [secs(9, 1.0), secs(10, 1.0), secs(u32::MAX, 1.0)],
            [25.628_906_25, 30.0, 30.0]
        );
        assert_eq!([secs(1, 0.0), secs(100, 0.0)], [0.5, 15.0]);
    }

    #[test]
    fn the_wait_a_peer_asks_for_is_the_least_but_no_more_than_five_minutes() {
        let asked = |asked| wait(&backoff(), 1, Some(asked), 1.0);
        assert_eq!(
            [asked(5 * SEC), asked(Duration::ZERO), asked(Duration::MAX)],
            [5 * SEC, SEC, 300 * SEC]
        );
    }

    #[test]
    fn an_interval_of_zero_does_not_spin() {
        let zero = Backoff {
            initial: Duration::ZERO,
            multiplier: 1.0,
            max: Duration::ZERO,
        };
        assert_eq!(wait(&zero, 5, None, 1.0), Duration::from_millis(1));
    }

    #[test]
    fn a_destination_that_is_down_gets_one_probe_at_a_time() {
        let t0 = start();
        let mut pacer = Pacer::new(backoff(), 8);
        assert_eq!(pacer.n_free_slots(3, t0), 5);
        let attempts = [pacer.start(t0), pacer.start(t0), pacer.start(t0)];
        pacer.failed(attempts[0], None, t0, 1.0);
        assert_eq!(
            (pacer.n_free_slots(2, t0), pacer.wake_at()),
            (0, Some(t0 + SEC))
        );
        // Requests that were sent before the outage was detected give no new information.
        pacer.failed(attempts[1], None, t0 + SEC / 2, 1.0);
        assert_eq!(pacer.wake_at(), Some(t0 + SEC));

        let now = t0 + SEC;
        assert_eq!(pacer.n_free_slots(1, now), 1);
        let probe = pacer.start(now);
        assert_eq!(
            (pacer.n_free_slots(2, now + 100 * SEC), pacer.wake_at()),
            (0, None)
        );
        pacer.failed(attempts[2], None, now, 1.0);
        assert_eq!(pacer.wake_at(), None, "the probe is still out");
        pacer.failed(probe, None, now, 1.0);
        assert_eq!(pacer.wake_at(), Some(now + SEC * 3 / 2));

        let now = now + 2 * SEC;
        let probe = pacer.start(now);
        pacer.answered(probe, now);
        assert_eq!((pacer.is_up(), pacer.n_free_slots(0, now)), (true, 8));
        // The next outage starts with the first interval.
        let attempt = pacer.start(now);
        pacer.failed(attempt, None, now + SEC, 1.0);
        assert_eq!(pacer.wake_at(), Some(now + 2 * SEC));
    }

    #[test]
    fn one_request_that_fails_while_others_get_through_does_not_stop_them() {
        let t0 = start();
        let mut pacer = Pacer::new(backoff(), 8);
        let (cursed, good) = (pacer.start(t0), pacer.start(t0));
        pacer.answered(good, t0 + SEC);
        pacer.failed(cursed, None, t0 + 2 * SEC, 1.0);
        assert!(pacer.is_up());
    }

    #[test]
    fn a_pause_the_peer_asked_for_is_kept_by_all() {
        let t0 = start();
        let mut pacer = Pacer::new(backoff(), 8);
        let (throttled, good, late) = (pacer.start(t0), pacer.start(t0), pacer.start(t0));
        pacer.answered(good, t0 + SEC);
        pacer.failed(throttled, Some(7 * SEC), t0 + 2 * SEC, 1.0);
        assert_eq!(pacer.wake_at(), Some(t0 + 9 * SEC));
        // Neither an answer to a request in flight nor a shutdown shortens the wait.
        pacer.answered(late, t0 + 3 * SEC);
        pacer.begin_drain(t0 + 3 * SEC);
        assert_eq!(
            (pacer.n_free_slots(0, t0 + 3 * SEC), pacer.wake_at()),
            (0, Some(t0 + 9 * SEC))
        );
    }

    #[test]
    fn stopping_tries_at_once() {
        let t0 = start();
        let mut pacer = Pacer::new(backoff(), 8);
        let attempt = pacer.start(t0);
        pacer.failed(attempt, None, t0, 1.0);
        pacer.begin_drain(t0);
        assert_eq!(pacer.n_free_slots(0, t0), 1);
    }

    #[test]
    fn an_outage_is_logged_when_it_begins_once_a_minute_and_when_it_ends() {
        let t0 = start();
        let mut outage = Outage::default();
        let lines: Vec<_> = (0..180)
            .filter_map(|sec| Some((sec, outage.observe(sec == 0 || sec >= 150, t0 + sec * SEC)?)))
            .collect();
        let expected = [
            (1, OutageEvent::Down),
            (61, OutageEvent::StillDown(60 * SEC)),
            (121, OutageEvent::StillDown(120 * SEC)),
            (150, OutageEvent::Recovered(149 * SEC)),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_flapping_destination_gets_one_pair_of_lines_a_minute() {
        let t0 = start();
        let mut outage = Outage::default();
        let lines: Vec<_> = (0..120)
            .filter_map(|sec| Some((sec, outage.observe(sec % 2 == 1, t0 + sec * SEC)?)))
            .collect();
        assert_eq!(
            lines,
            [
                (0, OutageEvent::Down),
                (1, OutageEvent::Recovered(SEC)),
                (60, OutageEvent::Down),
                (61, OutageEvent::Recovered(SEC))
            ]
        );
    }
}
