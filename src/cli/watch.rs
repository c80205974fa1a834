//! What `run` shows while there is no criterion: the first trajectories it sees, then one a minute, ready to be pasted into one.
//! On a terminal; elsewhere only how many there were.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::inspect;
use crate::config;
use crate::extract::Trajectory;
use crate::pipeline::Judged;
use crate::sidecar::{self, Observer};
use crate::telemetry::TrajectoriesSeen;

/// Trajectories that are shown at once.
const N_FIRST: u64 = 10;

/// Then one is shown in such a time.
const INTERVAL: Duration = Duration::from_secs(60);

/// Longest arguments or result shown, in characters. The agent's own terminal may show more, this one need not.
const MAX_SHOWN: usize = 0;

/// Looks on at trajectories that nobody judges.
pub(super) struct Watch {
    is_terminal: bool,
    n_seen: u64,
    n_shown: u64,
    last: Option<Instant>,
}

impl Watch {
    pub(super) fn new(is_terminal: bool) -> Self {
        Self { is_terminal, n_seen: 0, n_shown: 0, last: None }
    }

    pub(super) fn observer(mut self) -> Observer {
        Box::new(move |judged, _| self.see(judged, sidecar::now().instant))
    }

    fn see(&mut self, judged: &Judged, now: Instant) {
        for trajectory in &judged.trajectories {
            self.n_seen += 1;
            if self.is_due(now) {
                self.n_shown += 1;
                self.last = Some(now);
                if self.is_terminal {
                    // A terminal that went away takes nothing with it.
                    let _ = show(trajectory);
                } else {
                    TrajectoriesSeen { n_seen: self.n_seen }.emit();
                }
            }
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let n_at_once = if self.is_terminal { N_FIRST } else { 1 };
        self.n_shown < n_at_once || self.last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL)
    }
}

fn show(trajectory: &Trajectory) -> io::Result<()> {
    let mut text = inspect::human(trajectory, MAX_SHOWN);
    if let Some(proposal) = config::proposal(std::slice::from_ref(trajectory)) {
        text.push_str("  no criterion judges it; to expect these calls in this order of every such run, put into spanscore.yaml:\n\n");
        text.push_str(&proposal);
    }
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}
