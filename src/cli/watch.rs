//! While there is no criterion, shows the first trajectories of `run`, then one per minute, each
//! with a proposed criterion. Without a terminal, only counts trajectories. Prints one note if
//! agents send spans and none of them is recognised.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use judge::extract::Trajectory;
use judge::pipeline::Judged;
use text::wrapped;

use super::inspect;
use crate::config;
use crate::sidecar::{self, Observer};
use crate::telemetry::{NothingRecognised, TrajectoriesSeen};

/// Number of trajectories that are shown without a delay. Later, one is shown per [`INTERVAL`].
const N_FIRST: u64 = 10;

/// Interval between later trajectories.
const INTERVAL: Duration = Duration::from_secs(60);

/// Shows trajectories that nothing judges.
pub(super) struct Watch {
    is_terminal: bool,
    width: Option<usize>,
    n_seen: u64,
    n_shown: u64,
    last: Option<Instant>,
    /// True after a trajectory was seen, or after the note about unrecognised spans was printed.
    is_quiet: bool,
}

impl Watch {
    pub(super) fn new(is_terminal: bool, width: Option<usize>) -> Self {
        Self {
            is_terminal,
            width,
            n_seen: 0,
            n_shown: 0,
            last: None,
            is_quiet: false,
        }
    }

    pub(super) fn observer(mut self) -> Observer {
        Box::new(move |judged, rules| {
            self.notice_unrecognised(judged);
            if rules.criteria.is_empty() {
                self.see(judged, sidecar::now().instant);
            }
        })
    }

    /// Prints a note once if agents seem to send spans and none is recognised. After a first
    /// trajectory, a trace without one is normal.
    fn notice_unrecognised(&mut self, judged: &Judged) {
        self.is_quiet |= !judged.trajectories.is_empty();
        if self.is_quiet {
            return;
        }
        if let Some(unrecognised) = &judged.unrecognised {
            self.is_quiet = true;
            NothingRecognised {
                service: &unrecognised.service,
                n_models: unrecognised.n_models,
                span_name: unrecognised.span_name.as_deref().unwrap_or_default(),
            }
            .emit();
        }
    }

    fn see(&mut self, judged: &Judged, now: Instant) {
        // A run may have its own expectation, or match an example case.
        let is_judged = |trajectory: &Trajectory| {
            judged
                .evaluations
                .iter()
                .any(|evaluation| evaluation.trajectory.arrival == trajectory.arrival)
        };
        for trajectory in &judged.trajectories {
            if !is_judged(trajectory) && self.take(now) {
                if self.is_terminal {
                    // A closed terminal must not stop the sidecar.
                    let _ = show(trajectory, self.width);
                } else {
                    TrajectoriesSeen {
                        n_seen: self.n_seen,
                    }
                    .emit();
                }
            }
        }
    }

    /// Counts a trajectory; returns true if it should be shown.
    fn take(&mut self, now: Instant) -> bool {
        self.n_seen += 1;
        let n_at_once = if self.is_terminal { N_FIRST } else { 1 };
        let is_due = self.n_shown < n_at_once
            || self
                .last
                .is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        if is_due {
            self.n_shown += 1;
            self.last = Some(now);
        }
        is_due
    }
}

fn show(trajectory: &Trajectory, width: Option<usize>) -> io::Result<()> {
    // Show names only: they are enough for a criterion. Values are private, and other people may
    // read a sidecar's terminal output as a log.
    let mut text = inspect::human(trajectory, inspect::Shown::Nothing);
    let proposal = config::proposal(std::slice::from_ref(trajectory));
    if proposal.is_some() {
        text.push_str(
            "  no criterion judges this run; to require these calls in this order, add to \
             spanscore.yaml:\n\n",
        );
    }
    let mut text = wrapped(&text, width).into_owned();
    // The proposal is meant for pasting, so it is not wrapped.
    text.push_str(proposal.as_deref().unwrap_or_default());
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n_shown(watch: &mut Watch, n: usize, now: Instant) -> usize {
        let mut n_shown = 0;
        for _ in 0..n {
            n_shown += usize::from(watch.take(now));
        }
        n_shown
    }

    #[test]
    fn a_terminal_gets_the_first_ten_and_then_one_a_minute() {
        let mut watch = Watch::new(true, None);
        let start = tokio::time::Instant::now().into_std();
        assert_eq!(n_shown(&mut watch, 7, start), 7);
        assert_eq!(n_shown(&mut watch, 7, start), 3);
        assert_eq!(n_shown(&mut watch, 7, start + Duration::from_secs(59)), 0);
        assert_eq!(n_shown(&mut watch, 7, start + Duration::from_secs(60)), 1);
        assert_eq!(n_shown(&mut watch, 7, start + Duration::from_secs(119)), 0);
        assert_eq!(
            n_shown(&mut watch, 7, start + Duration::from_secs(500)),
            1,
            "minutes without a trajectory are not made up for"
        );
    }

    #[test]
    fn a_log_gets_one_line_at_once_and_then_one_a_minute() {
        let mut watch = Watch::new(false, None);
        let start = tokio::time::Instant::now().into_std();
        assert_eq!(n_shown(&mut watch, 20, start), 1);
        assert_eq!(n_shown(&mut watch, 20, start + Duration::from_secs(60)), 1);
        assert_eq!(watch.n_seen, 40);
    }
}
