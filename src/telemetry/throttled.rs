//! Limits how often similar lines are logged.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of kinds. Peers write some of the texts that serve as kinds.
const MAX_KINDS: usize = 64;

/// Allows one log line of each kind per minute.
#[derive(Debug, Default)]
pub struct Throttled<K: Ord = ()> {
    /// By kind: the time of the last line, and the number of lines suppressed since then.
    kinds: BTreeMap<K, (Instant, u64)>,
}

impl<K: Ord> Throttled<K> {
    /// Returns the number of lines of this kind that were suppressed since its last line; `None` if
    /// a line must be suppressed now.
    pub fn ready(&mut self, kind: K, now: Instant) -> Option<u64> {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < INTERVAL;
        if let Some((at, n_suppressed)) = self.kinds.get_mut(&kind) {
            if is_recent(*at) {
                *n_suppressed += 1;
                return None;
            }
            *at = now;
            return Some(std::mem::take(n_suppressed));
        }
        if self.kinds.len() >= MAX_KINDS {
            self.kinds.retain(|_, (at, _)| is_recent(*at));
        }
        (self.kinds.len() < MAX_KINDS).then(|| {
            self.kinds.insert(kind, (now, 0));
            0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an `Instant` cannot be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn similar_lines_are_suppressed_and_counted() {
        let (start, mut throttled) = (start(), Throttled::default());
        let lines: Vec<_> = (0..70)
            .filter_map(|sec| Some((sec, throttled.ready((), start + Duration::from_secs(sec))?)))
            .collect();
        assert_eq!(lines, [(0, 0), (60, 59)]);
    }

    #[test]
    fn kinds_are_independent_and_bounded() {
        let (start, mut throttled) = (start(), Throttled::default());
        let n_lines = (0..1_000)
            .filter_map(|kind| throttled.ready(kind, start))
            .count();
        assert_eq!(n_lines, MAX_KINDS);
        assert_eq!(throttled.ready(1_000, start + INTERVAL), Some(0));
    }
}
