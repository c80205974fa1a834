//! When a memory begins for single peers or services, where theirs had to give way before its time.

/// Beginnings of their own, at most.
const MAX_BEGINNINGS: usize = 64;

/// For each of some keys, the last moment of what was forgotten of it.
#[derive(Debug)]
pub(super) struct Beginnings<K>(Vec<(K, u64)>);

impl<K> Default for Beginnings<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + Eq> Beginnings<K> {
    /// Begins the memory for this key, or for all where it is unknown, after this moment. Returns
    /// the moment if it concerns all.
    pub(super) fn begin(&mut self, of: Option<K>, moment: u64) -> Option<u64> {
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

    /// The beginning of the key's own memory.
    pub(super) fn of(&self, of: K) -> Option<u64> {
        let found = self.0.iter().find(|(known, _)| *known == of);
        found.map(|&(_, beginning)| beginning)
    }

    /// Drops the beginnings that are too old, and returns the last of them.
    pub(super) fn expire(&mut self, is_recent: impl Fn(u64) -> bool) -> Option<u64> {
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
