//! Decides how long a group waits for more records. Senders that were answered together usually
//! send their next requests together, and a short wait for all these requests saves the sync of a
//! second group.

use std::time::Duration;

const MAX_PAUSE: Duration = Duration::from_millis(1);

/// Minimum wait; a shorter wait is not worth a sleep.
const MIN_PAUSE: Duration = Duration::from_micros(50);

/// Size in bytes from which a group does not wait, because writing its bytes takes longer than a
/// sync.
const MAX_BYTES: usize = 64 << 10;

/// Predicts the next group from the last one.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// The expected number of senders: the number of records that were in the last group or waited
    /// when it was durable.
    n_senders: usize,
    /// The time that the last group took to become durable.
    took: Duration,
}

impl Gathering {
    pub(super) fn synced(&mut self, n_senders: usize, took: Duration) {
        *self = Self { n_senders, took };
    }

    /// Returns how long to wait for more records while `n_waiting` records of `n_bytes` in total
    /// are waiting: at most half of a sync. `None` if waiting does not pay, for example because all
    /// expected senders have sent.
    pub(super) fn pause(&self, n_waiting: usize, n_bytes: usize) -> Option<Duration> {
        let pause = (self.took / 2).min(MAX_PAUSE);
        let may_gain = n_bytes < MAX_BYTES && n_waiting < self.n_senders;
        (n_waiting > 0 && may_gain && pause >= MIN_PAUSE).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_waits_for_the_senders_of_the_last_one_and_never_for_a_lone_one() {
        let mut gathering = Gathering::default();
        assert_eq!(gathering.pause(1, 4_800), None, "nothing is known yet");
        let sync = Duration::from_micros(600);
        gathering.synced(4, sync);
        assert_eq!(gathering.pause(0, 4_800), None, "nobody waits");
        assert_eq!(gathering.pause(1, 4_800), Some(sync / 2));
        assert_eq!(gathering.pause(3, 4_800), Some(sync / 2));
        assert_eq!(gathering.pause(4, 4_800), None, "all are there");
        let large = gathering.pause(1, MAX_BYTES);
        assert_eq!(large, None, "its own bytes take longest");
        gathering.synced(1, sync);
        assert_eq!(gathering.pause(1, 4_800), None, "the others have gone");
        gathering.synced(4, Duration::from_secs(1));
        assert_eq!(
            gathering.pause(1, 4_800),
            Some(MAX_PAUSE),
            "a disk that hangs"
        );
        gathering.synced(4, Duration::from_micros(20));
        assert_eq!(gathering.pause(1, 4_800), None, "as good as no sync");
    }
}
