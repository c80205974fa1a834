//! Counts verdicts by criterion and time: for each of the last sixty minutes, and for each quarter
//! of an hour of the last day.

use judge::evaluate::{Evaluation, Verdict};
use serde_json::{Value, json};

/// Maximum number of criteria that are counted: about 3 KiB each.
const MAX_CRITERIA: usize = 256;
const MINUTES: usize = 60;
const QUARTERS: usize = 96;

#[derive(Debug, Default)]
pub(super) struct History {
    of_criteria: Vec<Series>,
    /// Index of the series that is tried first: evaluations arrive in the order of the criteria.
    next: usize,
}

#[derive(Debug)]
struct Series {
    criterion: String,
    minutes: Ring<MINUTES>,
    quarters: Ring<QUARTERS>,
}

#[derive(Debug)]
struct Ring<const N: usize> {
    counts: Box<[Counts; N]>,
    latest: u64,
}

/// Numbers of verdicts: pass, fail, not evaluated, error.
type Counts = [u32; 4];

impl History {
    /// Counts only first judgements: a revision corrects a verdict, and is not another verdict.
    pub(super) fn note(&mut self, evaluations: &[Evaluation], unix_nanos: u64) {
        let minute = unix_nanos / 60_000_000_000;
        for evaluation in evaluations.iter().filter(|found| found.revision == 0) {
            let Some(series) = self.series_of(evaluation.criterion.name(), minute) else {
                continue;
            };
            let place = match evaluation.verdict {
                Verdict::Pass => 0,
                Verdict::Fail => 1,
                Verdict::NotEvaluated => 2,
                Verdict::Error => 3,
            };
            series.minutes.count(minute, place);
            series.quarters.count(minute / 15, place);
        }
    }

    fn series_of(&mut self, name: &str, minute: u64) -> Option<&mut Series> {
        let n_series = self.of_criteria.len();
        let found = (self.next..n_series)
            .chain(0..self.next)
            .find(|idx| self.of_criteria[*idx].criterion == name);
        if found.is_none() && n_series == MAX_CRITERIA {
            return None;
        }
        let idx = found.unwrap_or(n_series);
        if found.is_none() {
            self.of_criteria.push(Series::new(name.to_owned(), minute));
        }
        self.next = (idx + 1) % self.of_criteria.len();
        self.of_criteria.get_mut(idx)
    }

    /// Returns the counts of each criterion, oldest first. The criteria are sorted by name.
    pub(super) fn to_json(&self, unix_nanos: u64) -> Value {
        let minute = unix_nanos / 60_000_000_000;
        let mut by_name: Vec<&Series> = self.of_criteria.iter().collect();
        by_name.sort_unstable_by_key(|series| &series.criterion);
        let series = by_name.into_iter().map(|series| {
            json!({
                "criterion": series.criterion,
                "minutes": series.minutes.until(minute),
                "quarters": series.quarters.until(minute / 15),
            })
        });
        json!({
            "labels": ["pass", "fail", "not_evaluated", "error"],
            "minute": minute,
            "criteria": series.collect::<Vec<_>>(),
        })
    }
}

impl Series {
    fn new(criterion: String, minute: u64) -> Self {
        Self {
            criterion,
            minutes: Ring::new(minute),
            quarters: Ring::new(minute / 15),
        }
    }
}

impl<const N: usize> Ring<N> {
    fn new(latest: u64) -> Self {
        Self {
            counts: Box::new([Counts::default(); N]),
            latest,
        }
    }

    fn count(&mut self, time: u64, place: usize) {
        // If the clock jumps back a little, count for the latest time. A larger jump means that the
        // clock was wrong before, so start anew.
        if time + N as u64 <= self.latest {
            *self.counts = [Counts::default(); N];
            self.latest = time;
        }
        for passed in (self.latest + 1..=time).take(N) {
            self.counts[(passed % N as u64) as usize] = Counts::default();
        }
        if time > self.latest + N as u64 {
            *self.counts = [Counts::default(); N];
        }
        self.latest = self.latest.max(time);
        let counts = &mut self.counts[(self.latest % N as u64) as usize];
        counts[place] = counts[place].saturating_add(1);
    }

    fn until(&self, time: u64) -> Vec<Counts> {
        let first = (time + 1).saturating_sub(N as u64);
        (first..=time)
            .map(|time| {
                if time + (N as u64) > self.latest && time <= self.latest {
                    self.counts[(time % N as u64) as usize]
                } else {
                    Counts::default()
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_times_are_forgotten_and_a_clock_may_jump() {
        let mut ring = Ring::<4>::new(10);
        ring.count(10, 0);
        ring.count(12, 1);
        assert_eq!(ring.until(12), [[0; 4], [1, 0, 0, 0], [0; 4], [0, 1, 0, 0]]);
        ring.count(11, 1);
        assert_eq!(ring.until(12)[3], [0, 2, 0, 0], "time does not run back");
        ring.count(1_000_000, 2);
        assert_eq!(ring.until(1_000_000)[3], [0, 0, 1, 0]);
        assert_eq!(ring.until(1_000_000)[..3], [[0; 4]; 3]);
        assert_eq!(ring.until(1_000_009), [[0; 4]; 4]);
        ring.count(20, 3);
        assert_eq!(ring.until(20)[3], [0, 0, 0, 1], "the clock was corrected");
        assert_eq!(Ring::<4>::new(1).until(2).len(), 3);
    }
}
