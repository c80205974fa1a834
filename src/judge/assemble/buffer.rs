//! Decides which traces are open, when and why a trace is closed, and what happens to late spans,
//! by the rules of docs/design.md#when-is-a-trace-done.

mod marking;
mod rebuilding;
mod watching;

pub use watching::{ChangedTrace, OpenCopy};

use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use foldhash::fast::{FixedState, SeedableRandomState};
use hashbrown::HashMap;
use otlp::span::{Now, PeerId, Span, TraceId};

use super::buffered_trace::BufferedTrace;
use super::fifo_timers::Tick;
use super::recent::RecentlyClosed;
use super::resources::SharedResources;
use super::shares::{BudgetShare, Shares, TraceSender};
use super::slab::{Slab, Slot};
use super::timers::{Due, Timers, ticks};
use super::trace_spans::{TraceSpans, Upserted};
use super::unscored::UnscoredTraces;
use super::{CloseReason, Closed, Inserted, Memo, Settings, Sizes, Stats};

/// Assembles spans into traces and returns each trace when it is done.
///
/// `now` must not decrease. Call [`close_due`](Self::close_due) after [`insert`](Self::insert) and
/// [`mark_unscored`](Self::mark_unscored): until then, traces that are being closed remain in the
/// buffer without counting against the budget of open traces. During large insertions, call
/// [`close_limited`](Self::close_limited) before [`closing_size`](Self::closing_size) grows large.
#[derive(Debug)]
pub struct TraceBuffer<M> {
    settings: Settings,
    /// The time of tick 0.
    start: Now,
    /// The last instant and its tick, cached because all spans of a request have the same instant.
    last_tick: (Instant, Tick),
    /// Randomly keyed, so that no sender can choose trace ids that collide. Output order does not
    /// depend on it.
    hasher: SeedableRandomState,
    index: HashMap<TraceId, Slot, SeedableRandomState>,
    open: Slab<Box<BufferedTrace<M>>>,
    timers: Timers,
    resources: SharedResources,
    /// The number and bytes of the open traces that count against the budget, by sender. Traces
    /// that are being closed do not count.
    shares: Shares,
    service_hasher: FixedState,
    /// A start or a change of the replicas may have split traces that were opened before this tick.
    split_until: Tick,
    /// Total bytes of the traces that are being closed.
    closing_size: usize,
    recent: RecentlyClosed<M>,
    unscored: UnscoredTraces,
    /// The start of the trace history (Unix time): an earlier trace may have been forgotten.
    memory_unix_nanos: u64,
    n_arrived: u64,
    /// The journal record of the spans that are being inserted.
    record: u64,
    /// True while spans are inserted under rules with alarms.
    watches: bool,
    /// True if every span counts as one that can raise an alarm.
    watches_all: bool,
    /// The open traces that have changed, each once; empty without alarms.
    changed: Vec<ChangedTrace>,
}

impl<M: Memo> TraceBuffer<M> {
    pub fn new(settings: Settings, now: Now) -> Self {
        let settings = settings.of_partition();
        let hasher = SeedableRandomState::random();
        Self {
            start: now,
            last_tick: (now.instant, 0),
            index: HashMap::with_hasher(hasher.clone()),
            hasher,
            open: Slab::new(),
            timers: Timers::new(&settings),
            resources: SharedResources::default(),
            shares: Shares::default(),
            service_hasher: FixedState::with_seed(settings.sender_key),
            split_until: ticks(settings.warm_up),
            closing_size: 0,
            recent: RecentlyClosed::new(
                settings.max_recent_traces,
                settings.max_recent_size,
                ticks(settings.recent_ttl),
            ),
            unscored: UnscoredTraces::new(
                settings.max_open_traces,
                ticks(settings.recent_ttl),
                ticks(settings.inactive),
            ),
            memory_unix_nanos: now.unix_nanos.saturating_add(ticks(settings.warm_up)),
            n_arrived: 0,
            record: 0,
            watches: false,
            watches_all: false,
            changed: Vec::new(),
            settings,
        }
    }

    /// Hashes alike in each run, so that the filters have the same false positives.
    #[cfg(test)]
    pub(super) fn with_fixed_hashes(settings: Settings, now: Now) -> Self {
        let hasher = SeedableRandomState::fixed();
        Self {
            index: HashMap::with_hasher(hasher.clone()),
            hasher,
            ..Self::new(settings, now)
        }
    }

    /// Inserts a span or log record from a peer. Unless a limit closes the trace, the order,
    /// batching and repetition of spans do not change it. Records are never top spans, so a trace
    /// that has only records does not settle.
    #[inline]
    pub fn insert(&mut self, span: Span, peer: PeerId, now: Now) -> Inserted {
        let trace_id = span.trace_id;
        let tick = self.tick(now);
        let slot = match self.index.get(&trace_id) {
            Some(&slot) => slot,
            None => match self.open_for(&span, peer, now) {
                Ok(slot) => slot,
                Err(inserted) => return inserted,
            },
        };
        let Some(trace) = self.open.get_mut(slot) else {
            return Inserted::TooLate;
        };
        if matches!(
            trace.closing,
            Some(CloseReason::SpanLimit | CloseReason::SizeLimit)
        ) {
            return Inserted::TooLate;
        }
        trace.has_several_senders |= trace.sender.peer != peer;
        let size_before = trace.spans.size();
        let resource = self.resources.share(&span.resource);
        match trace.spans.upsert(&span, resource, &self.hasher) {
            Upserted::New => {}
            Upserted::Known => return Inserted::Known,
            Upserted::NoRoom => return Inserted::TooLate,
        }
        let inserted = if trace.reported { Inserted::Late } else { Inserted::Taken };
        let size = trace.spans.size();
        if trace.closing.is_some() {
            self.closing_size = self.closing_size - size_before + size;
            return inserted;
        }
        trace.is_watched |= span.is_watched || self.watches_all;
        // Any further span can make a violation certain, because it can be an outer run, a parent
        // or a root.
        if self.watches && trace.is_watched && !std::mem::replace(&mut trace.has_changed, true) {
            self.changed.push(ChangedTrace {
                trace_id,
                unix_nanos: now.unix_nanos,
            });
        }
        let share = trace.share;
        self.shares.resize(share, size_before, size);
        let quiet = trace.spans.may_be_quiet();
        let quiet_before = std::mem::replace(&mut trace.quiet, quiet);
        let in_vain = trace.settled_in_vain;
        self.timers
            .restart(slot, share, quiet_before, quiet, in_vain, tick);
        if trace.spans.len() >= self.settings.span_limit {
            self.start_closing(slot, CloseReason::SpanLimit, tick);
        } else if size >= self.settings.size_limit {
            self.start_closing(slot, CloseReason::SizeLimit, tick);
        }
        self.evict(tick);
        inserted
    }

    /// Reopens a closed trace, because another trace changes it. The trace then settles again.
    /// Returns true if this is impossible, because the spans were dropped when the memory for
    /// closed traces was full.
    pub fn reopen(&mut self, trace_id: &TraceId, now: Now) -> bool {
        let tick = self.tick(now);
        let Some(recent) = self.recent.find(self.hasher.hash_one(trace_id), trace_id) else {
            return false;
        };
        if self.recent.get(recent).is_none() {
            return self.recent.is_forgotten(recent);
        }
        if let Some(trace) = self.recent.take(recent) {
            self.open(trace, tick);
            self.evict(tick);
        }
        false
    }

    /// Restarts the trace history, because replicas were added or removed at some time after
    /// `since`. A trace that was opened later may have begun at another replica. Traces that were
    /// opened earlier are not affected.
    pub fn begin_memory(&mut self, since: Now, now: Now) {
        let warm = now.unix_nanos.saturating_add(ticks(self.settings.warm_up));
        self.memory_unix_nanos = self.memory_unix_nanos.max(warm);
        self.split_until = self.tick(now).saturating_add(ticks(self.settings.warm_up));
        let since = ticks(since.instant.saturating_duration_since(self.start.instant));
        let opened_since = self.open.values_mut().filter(|trace| trace.opened >= since);
        opened_since.for_each(|trace| trace.memory_unix_nanos = self.memory_unix_nanos);
    }

    pub fn shorten_settle(&mut self, settle: Duration) {
        self.timers.shorten_settle(ticks(settle));
    }

    /// Applies new size limits. Open traces beyond their budget become due immediately, and
    /// remembered traces beyond theirs lose their spans.
    pub fn resize(&mut self, sizes: Sizes, now: Now) {
        self.settings.resize(sizes);
        self.recent.resize(self.settings.max_recent_size);
        let tick = self.tick(now);
        self.evict(tick);
    }

    /// Returns the time at which `close_due` may have a trace to close, if no span arrives earlier.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.start
            .instant
            .checked_add(Duration::from_nanos(self.timers.next()?))
    }

    /// Closes the traces that are due, until they reach `max_size` bytes, ordered by deadline. Also
    /// returns traces that have only expired, and remain open. Call it until the result is empty;
    /// at one time, each trace is returned at most once.
    pub fn close_due(&mut self, now: Now, max_size: usize) -> Vec<Closed<M>> {
        let tick = self.tick(now);
        self.forget(now);
        let (mut closed, mut size) = (Vec::new(), 0);
        while size < max_size
            && let Some((slot, due)) = self.timers.due(tick)
        {
            let is_quiet = due != Due::Closing && self.is_quiet(slot);
            let reason = match due {
                Due::Settled if is_quiet => CloseReason::RootEnded,
                Due::Settled => {
                    self.wait_for_spans(slot, tick);
                    continue;
                }
                Due::Inactive if is_quiet => {
                    self.timers.settle_only(slot);
                    continue;
                }
                Due::Inactive => CloseReason::Inactive,
                Due::Closing => self.limit_of(slot),
            };
            size += self.open.get(slot).map_or(0, |trace| trace.size());
            closed.extend(self.close(slot, reason, tick));
        }
        while size < max_size
            && let Some(slot) = self.timers.take_expired(tick)
        {
            closed.extend(self.open.get_mut(slot).map(|trace| {
                let size_before = trace.size();
                size += size_before;
                let expired = trace.expired(&self.hasher);
                self.shares.resize(trace.share, size_before, trace.size());
                expired
            }));
        }
        closed
    }

    pub fn close_limited(&mut self, now: Now, max_size: usize) -> Vec<Closed<M>> {
        let tick = self.tick(now);
        self.forget(now);
        let (mut closed, mut size) = (Vec::new(), 0);
        while size < max_size
            && let Some(slot) = self.timers.first_limited()
        {
            size += self.open.get(slot).map_or(0, |trace| trace.size());
            closed.extend(self.close(slot, self.limit_of(slot), tick));
        }
        closed
    }

    /// Bytes of the traces that are being closed and were not returned yet.
    pub fn closing_size(&self) -> usize {
        self.closing_size
    }

    /// Makes all traces due, in the order of first arrival. A trace that is done closes as
    /// `RootEnded`, a trace that reached a limit, for that limit, and any other trace as
    /// `otherwise` (`Shutdown`, or `NoRoot` at the end of replay's input).
    pub fn make_all_due(&mut self, otherwise: CloseReason, now: Now) {
        let tick = self.tick(now);
        let open = self.open.iter();
        let mut slots: Vec<(u64, Slot)> = open.map(|(slot, trace)| (trace.arrival, slot)).collect();
        slots.sort_unstable();
        for (_, slot) in slots {
            let Some(trace) = self.open.get(slot) else {
                continue;
            };
            match trace.closing {
                // Restart the wait, so that this trace also closes in the order of arrival.
                Some(_) => self.timers.close_now(slot, tick),
                None if self.is_quiet(slot) => {
                    self.start_closing(slot, CloseReason::RootEnded, tick);
                }
                None => self.start_closing(slot, otherwise, tick),
            }
        }
    }

    /// Stores a judged trace with the memo of its report, so that late spans find the trace.
    pub fn remember(&mut self, closed: Closed<M>, now: Now) {
        let tick = self.tick(now);
        let Closed {
            trace, memo, rest, ..
        } = closed;
        let Some(mut buffered) = rest else {
            // The trace has only expired, so its memo belongs to the open trace. If that trace is
            // no longer open, it has a newer report, and this memo is dropped.
            if let Some(open) = self
                .index
                .get(&trace.trace_id)
                .and_then(|&slot| self.open.get_mut(slot))
            {
                let size_before = open.size();
                open.memo = memo;
                match open.closing {
                    Some(_) => {
                        self.closing_size = self.closing_size - size_before + open.size();
                    }
                    None => self.shares.resize(open.share, size_before, open.size()),
                }
            }
            return;
        };
        // Further spans of a trace that has reached a limit would close it again, so they are only
        // counted.
        if matches!(
            trace.reason,
            CloseReason::SpanLimit | CloseReason::SizeLimit
        ) {
            return;
        }
        buffered.memo = memo;
        buffered.spans = trace.spans;
        buffered.spans.shrink();
        self.recent
            .fill(self.hasher.hash_one(buffered.trace_id), buffered, tick);
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            n_open: self.shares.n_traces(),
            open_size: self.shares.size(),
            n_unscored: self.unscored.len(),
            ..Stats::default()
        };
        self.recent.add_to(&mut stats);
        stats
    }

    /// Opens a new trace for a span, or reopens a remembered trace that the span changes.
    fn open_for(&mut self, span: &Span, peer: PeerId, now: Now) -> Result<Slot, Inserted> {
        let trace_id = span.trace_id;
        let tick = self.tick(now);
        self.forget(now);
        let hash = self.hasher.hash_one(trace_id);
        let Some(recent) = self.recent.find(hash, &trace_id) else {
            let partition = self.settings.partition;
            let trace = BufferedTrace {
                trace_id,
                sender: TraceSender {
                    peer,
                    service: self.service_hasher.hash_one(&*span.resource.service) as u32,
                },
                has_several_senders: false,
                share: BudgetShare::default(),
                spans: TraceSpans::default(),
                memo: M::default(),
                reported: false,
                unscored: self.unscored.take(&trace_id) | self.recent.was_forgotten(hash),
                memory_unix_nanos: self.memory_of(peer, now),
                opened: tick,
                arrival: self.n_arrived * partition.n_partitions() as u64
                    + partition.index() as u64,
                first_record: self.record,
                quiet: None,
                settled_in_vain: false,
                is_watched: false,
                has_changed: false,
                judged_kib: 0,
                closing: None,
            };
            self.n_arrived += 1;
            return Ok(self.open(Box::new(trace), tick));
        };
        match self.recent.get(recent) {
            Some(trace) if !trace.spans.is_new(span, &self.hasher) => Err(Inserted::Known),
            Some(_) => {
                let trace = self.recent.take(recent).ok_or(Inserted::TooLate)?;
                Ok(self.open(trace, tick))
            }
            None => {
                self.recent.touch(recent, tick);
                Err(if self.recent.is_forgotten(recent) {
                    Inserted::Forgotten
                } else {
                    Inserted::TooLate
                })
            }
        }
    }

    fn open(&mut self, mut trace: Box<BufferedTrace<M>>, tick: Tick) -> Slot {
        let quiet = trace.spans.may_be_quiet();
        (trace.quiet, trace.settled_in_vain) = (quiet, false);
        trace.share = self.shares.open(trace.sender, trace.size());
        let (trace_id, share) = (trace.trace_id, trace.share);
        let slot = self.open.insert(trace);
        self.index.insert(trace_id, slot);
        self.timers.open(slot, share, quiet, tick);
        slot
    }

    fn close(&mut self, slot: Slot, reason: CloseReason, tick: Tick) -> Option<Closed<M>> {
        self.timers.cancel(slot);
        let mut buffered = self.open.remove(slot)?;
        self.index.remove(&buffered.trace_id);
        match buffered.closing.take() {
            Some(_) => self.closing_size -= buffered.size(),
            None => self.shares.close(buffered.share, buffered.size()),
        }
        let hash = self.hasher.hash_one(buffered.trace_id);
        self.recent.insert(hash, buffered.peer(), tick);
        let first = !std::mem::replace(&mut buffered.reported, true);
        let mut trace = buffered.lend(reason, &self.hasher);
        trace.reason = buffered.seen_reason(&trace, &self.settings);
        // A missing parent proves that the trace is torn (split between replicas) only if the trace
        // is inactive, because parents of an open run arrive last.
        let is_inactive = reason == CloseReason::Inactive;
        let torn_service = is_inactive.then(|| trace.spans.torn_service(&trace.shape));
        let memo = std::mem::take(&mut buffered.memo);
        Some(Closed {
            trace,
            memo,
            first,
            peer: buffered.peer(),
            torn_service: torn_service.flatten(),
            may_be_split: buffered.opened < self.split_until,
            first_record: buffered.first_record,
            rest: Some(buffered),
        })
    }

    /// Removes a trace from the budget. The trace remains in the buffer until it is returned, and
    /// accepts spans unless it has reached its own limit.
    fn start_closing(&mut self, slot: Slot, reason: CloseReason, tick: Tick) {
        let Some(trace) = self
            .open
            .get_mut(slot)
            .filter(|trace| trace.closing.is_none())
        else {
            return;
        };
        trace.closing = Some(reason);
        let size = trace.size();
        self.shares.close(trace.share, size);
        self.closing_size += size;
        self.timers.close_now(slot, tick);
    }

    /// Returns true if a settling trace is done (see `TraceShape::is_quiet`).
    fn is_quiet(&self, slot: Slot) -> bool {
        let trace = self.open.get(slot);
        let trace = trace.filter(|trace| trace.quiet.is_some());
        trace.is_some_and(|trace| trace.spans.is_quiet(&self.hasher))
    }

    fn wait_for_spans(&mut self, slot: Slot, tick: Tick) {
        if let Some(trace) = self.open.get_mut(slot) {
            (trace.quiet, trace.settled_in_vain) = (None, true);
            self.timers.wait_for_spans(slot, trace.share, tick);
        }
    }

    fn limit_of(&self, slot: Slot) -> CloseReason {
        self.open
            .get(slot)
            .and_then(|trace| trace.closing)
            .unwrap_or(CloseReason::Evicted)
    }

    /// Evicts traces of the heaviest service of the heaviest peer until the budget suffices: first
    /// settling traces, then the traces that have been idle longest.
    fn evict(&mut self, tick: Tick) {
        let (max_traces, max_size) = (self.settings.max_open_traces, self.settings.max_open_size);
        while let Some(share) = self.shares.share_to_evict(max_traces, max_size)
            && let Some((slot, due)) = self.timers.victim(share)
        {
            let is_quiet = self.is_quiet(slot);
            if due == Due::Settled && !is_quiet {
                self.wait_for_spans(slot, tick);
                continue;
            }
            let reason = if is_quiet { CloseReason::RootEnded } else { CloseReason::Evicted };
            self.start_closing(slot, reason, tick);
        }
    }

    /// Forgets closed traces that are too old or beyond a limit; the trace history then starts
    /// after them, except after those whose hashes are remembered.
    fn forget(&mut self, now: Now) {
        let tick = self.tick(now);
        let forgotten = self.recent.forget(tick).max(self.unscored.forget(tick));
        // With a limit of 0 closed traces, the history would start now, and every trace would be
        // incomplete.
        if let Some(forgotten) = forgotten.filter(|_| self.settings.max_recent_traces > 0) {
            self.memory_unix_nanos = self.memory_unix_nanos.max(unix_nanos(forgotten, tick, now));
        }
    }

    /// Returns the start of the history of a peer's traces (Unix time).
    fn memory_of(&mut self, peer: PeerId, now: Now) -> u64 {
        let tick = self.tick(now);
        match self.recent.beginning_of(peer) {
            Some(forgotten) => self.memory_unix_nanos.max(unix_nanos(forgotten, tick, now)),
            None => self.memory_unix_nanos,
        }
    }

    fn tick(&mut self, now: Now) -> Tick {
        if self.last_tick.0 != now.instant {
            self.last_tick = (
                now.instant,
                ticks(now.instant.saturating_duration_since(self.start.instant)),
            );
        }
        self.last_tick.1
    }
}

fn unix_nanos(tick: Tick, now_tick: Tick, now: Now) -> u64 {
    now.unix_nanos.saturating_sub(now_tick.saturating_sub(tick))
}
