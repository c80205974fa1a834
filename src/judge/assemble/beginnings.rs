//! Start times of the histories of single peers or services. A peer or service gets its own start
//! time when one of its traces or sessions is forgotten early.

/// Maximum number of keys with a separate start time.
const MAX_BEGINNINGS: usize = 64;

/// The time of the latest forgotten trace or session of each key.
#[derive(Debug)]
pub(crate) struct Beginnings<K>(Vec<(K, u64)>);

impl<K> Default for Beginnings<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + Eq> Beginnings<K> {
    /// Moves the start of the key's history to this moment, or of all histories if the key is
    /// unknown or the table is full. Returns the moment if it applies to all.
    pub(crate) fn begin(&mut self, of: Option<K>, moment: u64) -> Option<u64> {
        let Some(of) = of else {
            return Some(moment);
        };
        if let Some((_, beginning)) = self.0.iter_mut().find(|(known, _)| *known == of) {
            *beginning = moment.max(*beginning);
        } else if self.0.len() < MAX_BEGINNINGS {
            self.0.push((of, moment));
        } else {
            return Some(moment);
        }
        None
    }

    /// Returns the separate start time of the key's history, if it has one.
    pub(crate) fn of(&self, of: K) -> Option<u64> {
        let found = self.0.iter().find(|(known, _)| *known == of);
        found.map(|&(_, beginning)| beginning)
    }

    /// Drops the start times that are too old, and returns the latest of them.
    pub(crate) fn expire(&mut self, is_recent: impl Fn(u64) -> bool) -> Option<u64> {
        let mut dropped = None;
        self.0.retain(|&(_, beginning)| {
            let is_kept = is_recent(beginning);
            if !is_kept {
                dropped = dropped.max(Some(beginning));
            }
            is_kept
        });
        dropped
    }
}
