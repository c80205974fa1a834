//! Who is alive: each long-running worker beats its pulse about once a second, and probes look at
//! how long ago that was. Every worker that beats stands in the answer of `/livez`. Reads no clock:
//! times are arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::Telemetry;

/// A worker without a beat for so long is stuck. Beats come each second, and a dead worker must
/// show within ten.
const STUCK_AFTER: Duration = Duration::from_secs(8);

/// How far the sidecar is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Not every port is bound yet.
    #[default]
    Starting,
    /// Taking requests.
    Serving,
    /// Told to stop: finishing what has begun.
    Draining,
}

impl Phase {
    /// The word of `/v1/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
        }
    }
}

/// What is wrong with a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Illness {
    /// It ended, in panic or otherwise, without being told to.
    Dead,
    /// No beat for so long.
    Stuck(Duration),
}

impl fmt::Display for Illness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead => f.write_str("has ended"),
            Self::Stuck(silent) => write!(f, "has been stuck for {} s", silent.as_secs()),
        }
    }
}

/// The pulse of one worker. Dropping it without [`Pulse::rest`], as a panic does, reports the
/// worker as dead.
#[derive(Debug)]
pub struct Pulse {
    id: u64,
    telemetry: Arc<Telemetry>,
}

impl Pulse {
    /// How often to beat.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    /// Still here.
    pub fn beat(&self, now: Instant) {
        if let Some(worker) = self.telemetry.health().workers.get_mut(&self.id) {
            worker.last_beat = now;
        }
    }

    /// The worker has done what it was told to and ends.
    pub fn rest(self) {
        self.telemetry.health().workers.remove(&self.id);
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // After `rest` there is no such worker any more.
        if let Some(worker) = self.telemetry.health().workers.get_mut(&self.id) {
            worker.dead = true;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Health {
    phase: Phase,
    workers: BTreeMap<u64, Worker>,
    next_id: u64,
}

#[derive(Debug)]
struct Worker {
    name: String,
    last_beat: Instant,
    dead: bool,
}

impl Telemetry {
    /// A new worker's pulse, which has just beaten. `name` is what `/livez` calls it.
    pub fn pulse(self: &Arc<Self>, name: impl Into<String>, now: Instant) -> Pulse {
        let mut health = self.health();
        let id = health.next_id;
        health.next_id += 1;
        health.workers.insert(
            id,
            Worker {
                name: name.into(),
                last_beat: now,
                dead: false,
            },
        );
        Pulse {
            id,
            telemetry: Arc::clone(self),
        }
    }

    /// Workers that are dead or stuck, in the order in which they began.
    pub fn ill(&self, now: Instant) -> Vec<(String, Illness)> {
        let illness = |worker: &Worker| {
            let silent = now.saturating_duration_since(worker.last_beat);
            match worker.dead {
                true => Some(Illness::Dead),
                false => (silent >= STUCK_AFTER).then_some(Illness::Stuck(silent)),
            }
        };
        self.health()
            .workers
            .values()
            .filter_map(|worker| Some((worker.name.clone(), illness(worker)?)))
            .collect()
    }

    /// Names of the workers that beat, in the order in which they began.
    pub fn workers(&self) -> Vec<String> {
        self.health()
            .workers
            .values()
            .map(|worker| worker.name.clone())
            .collect()
    }

    /// How far the sidecar is.
    pub fn phase(&self) -> Phase {
        self.health().phase
    }

    /// The sidecar got this far.
    pub fn enter(&self, phase: Phase) {
        self.health().phase = phase;
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_stuck_after_eight_silent_seconds_and_well_after_its_next_beat() {
        let telemetry = Arc::new(Telemetry::default());
        let start = tokio::time::Instant::now().into_std();
        let pulse = telemetry.pulse("pipeline", start);
        assert_eq!(telemetry.ill(start + Duration::from_millis(7_999)), []);
        let late = start + Duration::from_secs(9);
        assert_eq!(
            telemetry.ill(late),
            [(
                "pipeline".to_owned(),
                Illness::Stuck(Duration::from_secs(9))
            )]
        );
        pulse.beat(late);
        assert_eq!(telemetry.ill(late), []);
    }

    #[test]
    fn a_worker_that_panics_is_dead_at_once_and_one_that_rests_is_forgotten() {
        let telemetry = Arc::new(Telemetry::default());
        let now = tokio::time::Instant::now().into_std();
        let (dying, resting) = (
            telemetry.pulse("dying", now),
            telemetry.pulse("resting", now),
        );
        let panicked = std::thread::spawn(move || {
            let _pulse = dying;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        resting.rest();
        assert_eq!(telemetry.ill(now), [("dying".to_owned(), Illness::Dead)]);
        assert_eq!(telemetry.workers(), ["dying"]);
    }
}
