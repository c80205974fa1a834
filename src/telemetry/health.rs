//! The heartbeats of long-running workers, about one per second, and their age for probes. `/livez`
//! lists every worker. Times are arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::Telemetry;

/// Time without a heartbeat after which a worker counts as stuck. Workers send a heartbeat every
/// second, and a stuck worker must be noticed within ten.
const STUCK_AFTER: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// A port is not bound yet, or the process has not joined its Kafka group.
    #[default]
    Starting,
    Serving,
    /// Preparing a stop, or stopping.
    Draining,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhealthy {
    /// The worker ended unexpectedly, by a panic or otherwise.
    Dead,
    /// The worker has sent no heartbeat for this long.
    Stuck(Duration),
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead => f.write_str("has ended"),
            Self::Stuck(silent) => write!(f, "has been stuck for {} s", silent.as_secs()),
        }
    }
}

/// The heartbeat of one worker. Dropping it without [`Heartbeat::finish`], as a panic does,
/// reports the worker as dead.
#[derive(Debug)]
pub struct Heartbeat {
    id: u64,
    telemetry: Arc<Telemetry>,
}

impl Heartbeat {
    pub const INTERVAL: Duration = Duration::from_secs(1);

    pub fn beat(&self, now: Instant) {
        if let Some(worker) = self.telemetry.health().workers.get_mut(&self.id) {
            worker.last_beat = now;
        }
    }

    /// Records an intended end of the worker.
    pub fn finish(self) {
        self.telemetry.health().workers.remove(&self.id);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // `finish` has already removed the worker from the list.
        if let Some(worker) = self.telemetry.health().workers.get_mut(&self.id) {
            worker.dead = true;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct HealthState {
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
    /// Registers a worker with a first heartbeat. `name` is its name in `/livez`.
    pub fn heartbeat(self: &Arc<Self>, name: impl Into<String>, now: Instant) -> Heartbeat {
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
        Heartbeat {
            id,
            telemetry: Arc::clone(self),
        }
    }

    pub fn unhealthy(&self, now: Instant) -> Vec<(String, Unhealthy)> {
        let unhealthy = |worker: &Worker| {
            let silent = now.saturating_duration_since(worker.last_beat);
            if worker.dead {
                Some(Unhealthy::Dead)
            } else {
                (silent >= STUCK_AFTER).then_some(Unhealthy::Stuck(silent))
            }
        };
        self.health()
            .workers
            .values()
            .filter_map(|worker| Some((worker.name.clone(), unhealthy(worker)?)))
            .collect()
    }

    pub fn workers(&self) -> Vec<String> {
        self.health()
            .workers
            .values()
            .map(|worker| worker.name.clone())
            .collect()
    }

    pub fn phase(&self) -> Phase {
        self.health().phase
    }

    pub fn enter(&self, phase: Phase) {
        self.health().phase = phase;
    }

    fn health(&self) -> MutexGuard<'_, HealthState> {
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
        let heartbeat = telemetry.heartbeat("pipeline", start);
        assert_eq!(
            telemetry.unhealthy(start + Duration::from_millis(7_999)),
            []
        );
        let late = start + Duration::from_secs(9);
        assert_eq!(
            telemetry.unhealthy(late),
            [(
                "pipeline".to_owned(),
                Unhealthy::Stuck(Duration::from_secs(9))
            )]
        );
        heartbeat.beat(late);
        assert_eq!(telemetry.unhealthy(late), []);
    }

    #[test]
    fn a_worker_that_panics_is_dead_at_once_and_one_that_finishes_is_forgotten() {
        let telemetry = Arc::new(Telemetry::default());
        let now = tokio::time::Instant::now().into_std();
        let (dying, ending) = (
            telemetry.heartbeat("dying", now),
            telemetry.heartbeat("ending", now),
        );
        let panicked = std::thread::spawn(move || {
            let _heartbeat = dying;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        ending.finish();
        assert_eq!(
            telemetry.unhealthy(now),
            [("dying".to_owned(), Unhealthy::Dead)]
        );
        assert_eq!(telemetry.workers(), ["dying"]);
    }
}
