//! Decides which segments a log removes: delivered segments that scoring does not need or that
//! exceed the share of scoring. A full log of scores also removes its oldest segments.

use super::{LostRecord, MAX_SPARES, NEEDED_SHARE, Store};
use crate::journal::format::Needed;
use crate::journal::segment::{FileFault, Segment, heads_of};

impl Store {
    /// Returns the bytes of records that can be appended, to the tail and by replacing delivered
    /// segments.
    pub(in crate::journal) fn free(&self) -> u64 {
        let tail = self.index.lock().last().cloned();
        let is_delivered = tail.is_some_and(|segment| self.is_delivered(&segment));
        let tail_room = if is_delivered { 0 } else { self.tail_room() };
        self.reclaimable() + tail_room
    }

    /// Returns the bytes that new segments can use.
    pub(super) fn reclaimable(&self) -> u64 {
        let index = self.index.lock();
        let waiting = index.iter().filter(|segment| !self.is_delivered(segment));
        let taken: u64 = waiting.map(|segment| segment.size).sum();
        self.settings.max_size.saturating_sub(taken)
    }

    /// Returns the undelivered segments, each as the number of its first record.
    pub(in crate::journal) fn waiting_segments(&self) -> Vec<u64> {
        let index = self.index.lock();
        let waiting = index.iter().filter(|segment| !self.is_delivered(segment));
        waiting.map(|segment| segment.head.first).collect()
    }

    /// Returns the number of the last segment's first record.
    pub(in crate::journal) fn last_segment(&self) -> u64 {
        let index = self.index.lock();
        index.last().map_or(0, |segment| segment.head.first)
    }

    /// Returns true if the cursor says that every record of the segment is delivered.
    fn is_delivered(&self, segment: &Segment) -> bool {
        let records = segment.head.first..segment.next;
        self.progress.written.covers(&records)
    }

    /// Writes the cursor if anything changed, and removes consumed segments that scoring does not
    /// need.
    pub(in crate::journal) fn settle(&mut self, unix_nanos: u64) -> Result<(), FileFault> {
        self.progress.write(unix_nanos)?;
        let delivered = self.delivered();
        // Retain segments that only scoring needs, newest first, within the share of scoring.
        let mut share = self.settings.max_size / NEEDED_SHARE;
        let mut released = Needed::default();
        let mut done = Vec::new();
        for (segment, next_oldest) in delivered.into_iter().rev() {
            let is_needed = self.settings.is_scored && segment.next > self.progress.needed.from;
            if is_needed && segment.size <= share {
                share -= segment.size;
                continue;
            }
            if is_needed {
                share = 0;
                released.from = released.from.max(segment.next);
                let since = next_oldest.unwrap_or(unix_nanos);
                released.since_unix_nanos = released.since_unix_nanos.max(since);
            }
            done.push(segment);
        }
        if done.is_empty() {
            return Ok(());
        }
        if released.from > 0 {
            self.progress.release(released);
            self.progress.write(unix_nanos)?;
        }
        // Make the cursor durable first: the next start treats a missing segment above the cursor
        // as damage.
        self.progress.sync()?;
        self.remove(done);
        Ok(())
    }

    /// Returns the finished, delivered segments, oldest first, each with the arrival of the next
    /// segment's first record.
    fn delivered(&self) -> Vec<(Segment, Option<u64>)> {
        let index = self.index.lock();
        let n_finished = index.len() - usize::from(self.tail.is_some()).min(index.len());
        let is_delivered = |(idx, segment): (usize, &Segment)| {
            let next_oldest = index.get(idx + 1).map(|next| next.oldest);
            (self.is_delivered(segment)).then(|| (segment.clone(), next_oldest))
        };
        let finished = index[..n_finished].iter().enumerate();
        finished.filter_map(is_delivered).collect()
    }

    /// Evicts the oldest delivered segment, even if scoring still needs it. Returns false if there
    /// is none. After a restart, open traces with spans in the segment are judged as incomplete.
    pub(super) fn release_oldest(&mut self, unix_nanos: u64) -> bool {
        let Some((oldest, next_oldest)) = self.delivered().into_iter().next() else {
            return false;
        };
        self.progress.release(Needed {
            from: oldest.next,
            since_unix_nanos: next_oldest.unwrap_or(unix_nanos),
        });
        // Ignore an error: the next start then reads an older cursor and may report this segment as
        // missing, but its records need no delivery.
        let _ = self.progress.write_durably(unix_nanos);
        self.remove(vec![oldest]);
        true
    }

    /// Evicts the oldest segment, whether or not its records are delivered.
    pub(super) fn drop_oldest(&mut self, unix_nanos: u64) -> bool {
        let oldest = self.index.lock().first().cloned();
        let Some(oldest) = oldest else {
            return false;
        };
        let heads = heads_of(&*self.storage, &oldest);
        let consumed = &self.progress.delivered;
        let waiting = heads.iter().map(|(_, head)| head);
        let waiting = waiting.filter(|head| !consumed.contains(head.sequence));
        self.lost.extend(waiting.map(|head| LostRecord {
            sequence: head.sequence,
            lane: head.signal,
            n_items: head.n_items,
        }));
        self.progress
            .consume_everywhere(oldest.head.first..oldest.next);
        // Write the cursor first: the next start treats a missing segment above the cursor as
        // damage.
        let _ = self.progress.write_durably(unix_nanos);
        self.remove(vec![oldest]);
        true
    }

    fn remove(&mut self, done: Vec<Segment>) {
        for segment in done {
            self.index.lock().retain(|other| other.name != segment.name);
            let is_usual = segment.size == self.settings.segment_size;
            if is_usual && self.spares.len() < MAX_SPARES {
                self.spares.push(segment.name);
            } else {
                let _ = self.storage.remove(&segment.name);
            }
        }
    }

    pub(in crate::journal) fn sync(&mut self) -> Result<(), FileFault> {
        if let Some(file) = self.tail.as_ref().filter(|_| self.is_unsynced)
            && let Err(error) = file.sync()
        {
            let name = self.index.lock().last().map(|segment| segment.name.clone());
            self.abandon_tail();
            return Err(FileFault::of(&name.unwrap_or_default())(error));
        }
        self.is_unsynced = false;
        self.progress.sync()
    }
}
