//! Pure. The buffer itself: which traces are open, when each is closed and why, and what happens to
//! a span that comes late. Knows the rules of DESIGN 4; leaves to its parts how spans are counted,
//! timed and remembered.

use std::hash::BuildHasher;
use std::time::Instant;

use hashbrown::{DefaultHashBuilder, HashMap};

use super::lanes::{Slab, Slot, Tick};
use super::missed::Missed;
use super::recent::RecentlyClosed;
use super::resources::Resources;
use super::spans::{News, Spans};
use super::timers::{Due, Timers, ticks};
use super::trace::Held;
use super::{CloseReason, Closed, Inserted, Mark, Memo, Settings, Stats};
use crate::span::{Now, Span, TraceId};

/// Spans in, closed traces out.
///
/// `now` must not run backwards. After [`insert`](Self::insert) and [`miss`](Self::miss) call
/// [`close_due`](Self::close_due): traces that a limit closed wait there, outside the budget of
/// open traces.
#[derive(Debug)]
pub struct TraceBuffer<M> {
    settings: Settings,
    /// What ticks count from.
    start: Now,
    /// The last moment and its tick: the spans of a request come in one.
    last_tick: (Instant, Tick),
    /// Keyed, so that nobody can choose trace ids that collide; no order of output depends on it.
    hasher: DefaultHashBuilder,
    index: HashMap<TraceId, Slot>,
    open: Slab<Box<Held<M>>>,
    timers: Timers,
    resources: Resources,
    /// Open traces that no limit has condemned, and their bytes: what the budget of open traces
    /// counts.
    n_open: usize,
    open_size: usize,
    recent: RecentlyClosed<M>,
    missed: Missed,
    /// Unix time before which a trace may have been part of what we do not remember.
    memory_unix_nanos: u64,
    n_arrived: u64,
}

impl<M: Memo> TraceBuffer<M> {
    /// An empty buffer, whose memory of traces begins now.
    pub fn new(settings: Settings, now: Now) -> Self {
        let hasher = DefaultHashBuilder::default();
        Self {
            start: now,
            last_tick: (now.instant, 0),
            index: HashMap::with_hasher(hasher.clone()),
            hasher,
            open: Slab::new(),
            timers: Timers::new(&settings),
            resources: Resources::default(),
            n_open: 0,
            open_size: 0,
            recent: RecentlyClosed::new(
                settings.max_recent_traces,
                settings.max_recent_size,
                ticks(settings.recent_ttl),
            ),
            missed: Missed::new(
                settings.max_open_traces,
                ticks(settings.recent_ttl),
                ticks(settings.inactive),
            ),
            memory_unix_nanos: now.unix_nanos,
            n_arrived: 0,
            settings,
        }
    }

    /// Take in a span. The same spans in any order, batching and repetition make the same trace.
    pub fn insert(&mut self, span: Span, mark: Mark, now: Now) -> Inserted {
        let tick = self.tick(now);
        let slot = match self.index.get(&span.trace_id) {
            Some(&slot) => slot,
            None => match self.open_for(&span, mark, now) {
                Ok(slot) => slot,
                Err(inserted) => return inserted,
            },
        };
        let Some(held) = self.open.get_mut(slot) else {
            return Inserted::TooLate;
        };
        if matches!(
            held.condemned,
            Some(CloseReason::SpanLimit | CloseReason::SizeLimit)
        ) {
            return Inserted::TooLate;
        }
        let size = held.spans.size();
        let common = self.resources.common(&span.resource);
        match held.spans.upsert(span, mark, common, &self.hasher) {
            News::New => {}
            News::Known => return Inserted::Known,
            News::TooMuch => return Inserted::TooLate,
        }
        let inserted = if held.reported {
            Inserted::Late
        } else {
            Inserted::Taken
        };
        if held.condemned.is_some() {
            return inserted;
        }
        self.open_size = self.open_size - size + held.spans.size();
        let quiet = held.spans.quiet();
        self.timers
            .news(slot, std::mem::replace(&mut held.quiet, quiet), quiet, tick);
        if held.spans.len() >= self.settings.span_limit {
            self.condemn(slot, CloseReason::SpanLimit, tick);
        } else if held.spans.size() >= self.settings.size_limit.min(Settings::MAX_SIZE_LIMIT) {
            self.condemn(slot, CloseReason::SizeLimit, tick);
        }
        self.evict(tick);
        inserted
    }

    /// Spans of these traces went by and were not taken: the traces are incomplete, also those not
    /// open yet. One that was closed is opened again, since what was said of it may be wrong.
    pub fn miss(&mut self, trace_ids: &[TraceId], now: Now) {
        let tick = self.tick(now);
        self.forget(now);
        for trace_id in trace_ids {
            if let Some(held) = self
                .index
                .get(trace_id)
                .and_then(|&slot| self.open.get_mut(slot))
            {
                held.missed = true;
                continue;
            }
            let Some(recent) = self.recent.find(self.hasher.hash_one(trace_id), trace_id) else {
                self.missed.insert(*trace_id, tick);
                continue;
            };
            if self.recent.held(recent).is_some_and(|held| !held.missed)
                && let Some(mut held) = self.recent.take(recent)
            {
                held.missed = true;
                self.open(held, tick);
            }
        }
        self.evict(tick);
    }

    /// There is news of this trace elsewhere: if it was closed and its facts are still there, it is
    /// open again, to settle.
    pub fn reopen(&mut self, trace_id: &TraceId, now: Now) {
        let tick = self.tick(now);
        if let Some(recent) = self.recent.find(self.hasher.hash_one(trace_id), trace_id)
            && self.recent.held(recent).is_some()
            && let Some(held) = self.recent.take(recent)
        {
            self.open(held, tick);
            self.evict(tick);
        }
    }

    /// So many spans went by that nobody knows whose: every open trace is incomplete, and for a
    /// while every one that is opened.
    pub fn miss_all(&mut self, now: Now) {
        let tick = self.tick(now);
        self.missed.overflow(tick);
        let slots: Vec<Slot> = self.open.slots().collect();
        for slot in slots {
            if let Some(held) = self.open.get_mut(slot) {
                held.missed = true;
            }
        }
    }

    /// Let traces whose root has ended settle sooner from now on: somebody is about to stop us.
    pub fn hurry(&mut self, settle: std::time::Duration) {
        self.timers.hurry(ticks(settle));
    }

    /// When `close_due` will have something to close, if nothing comes before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.start
            .instant
            .checked_add(std::time::Duration::from_nanos(self.timers.next()?))
    }

    /// Close every trace whose timer or limit has fired: by deadline, then in the order in which
    /// they began to wait. Last come those that have only expired, which stay open; a trace comes
    /// once at most.
    pub fn close_due(&mut self, now: Now) -> Vec<Closed<M>> {
        let tick = self.tick(now);
        self.forget(now);
        let mut closed = Vec::new();
        while let Some((slot, due)) = self.timers.due(tick) {
            let reason = match due {
                Due::Settled => CloseReason::RootEnded,
                Due::Inactive => CloseReason::Inactive,
                Due::Condemned => self
                    .open
                    .get(slot)
                    .and_then(|held| held.condemned)
                    .unwrap_or(CloseReason::Evicted),
            };
            closed.extend(self.close(slot, reason, tick));
        }
        while let Some(slot) = self.timers.take_expired(tick) {
            closed.extend(self.open.get_mut(slot).map(|held| Closed {
                trace: held.copy(CloseReason::Expired),
                memo: std::mem::take(&mut held.memo),
                first: !std::mem::replace(&mut held.reported, true),
                rest: None,
            }));
        }
        closed
    }

    /// Close all traces, by first arrival: those that could settle as such, those that a limit
    /// condemned for that, all others for the reason given (`Shutdown`, or `NoRoot` at the end of
    /// replay's input).
    pub fn close_all(&mut self, otherwise: CloseReason, now: Now) -> Vec<Closed<M>> {
        let tick = self.tick(now);
        let mut slots: Vec<(u64, Slot)> = self
            .open
            .slots()
            .filter_map(|slot| Some((self.open.get(slot)?.arrival, slot)))
            .collect();
        slots.sort_unstable();
        let mut closed = Vec::with_capacity(slots.len());
        for (_, slot) in slots {
            let Some(held) = self.open.get(slot) else {
                continue;
            };
            let settling = held.quiet.map(|_| CloseReason::RootEnded);
            let reason = held.condemned.or(settling).unwrap_or(otherwise);
            closed.extend(self.close(slot, reason, tick));
        }
        closed
    }

    /// Take a judged trace back, with what was reported of it, so that late spans find it.
    pub fn remember(&mut self, closed: Closed<M>, now: Now) {
        let tick = self.tick(now);
        let Closed {
            trace, memo, rest, ..
        } = closed;
        let Some(mut held) = rest else {
            // It had only expired. Should it have been closed since, what was reported last counts.
            if let Some(held) = self
                .index
                .get(&trace.trace_id)
                .and_then(|&slot| self.open.get_mut(slot))
            {
                let size = held.size();
                held.memo = memo;
                if held.condemned.is_none() {
                    self.open_size = self.open_size - size + held.size();
                }
            }
            return;
        };
        // More spans of a trace that has reached a limit would each close it anew: from now on they
        // are only counted.
        if matches!(
            trace.reason,
            CloseReason::SpanLimit | CloseReason::SizeLimit
        ) {
            return;
        }
        held.memo = memo;
        held.take_back(trace);
        self.recent
            .fill(self.hasher.hash_one(held.trace_id), held, tick);
    }

    /// How much is held.
    pub fn stats(&self) -> Stats {
        let (n_recent, n_recent_whole, recent_size) = self.recent.sizes();
        Stats {
            n_open: self.n_open,
            open_size: self.open_size,
            n_recent,
            n_recent_whole,
            recent_size,
            n_missed: self.missed.len(),
        }
    }

    /// A place for a span whose trace is not open: a new trace, or a remembered one that the span
    /// brings news to.
    fn open_for(&mut self, span: &Span, mark: Mark, now: Now) -> Result<Slot, Inserted> {
        let tick = self.tick(now);
        self.forget(now);
        let Some(recent) = self
            .recent
            .find(self.hasher.hash_one(span.trace_id), &span.trace_id)
        else {
            let held = Held {
                trace_id: span.trace_id,
                spans: Spans::default(),
                memo: M::default(),
                reported: false,
                missed: self.missed.take(&span.trace_id),
                memory_unix_nanos: self.memory_unix_nanos,
                arrival: self.n_arrived,
                quiet: None,
                condemned: None,
            };
            self.n_arrived += 1;
            return Ok(self.open(Box::new(held), tick));
        };
        match self.recent.held(recent) {
            Some(held) if !held.spans.is_news(span, mark, &self.hasher) => Err(Inserted::Known),
            Some(_) => {
                let held = self.recent.take(recent).ok_or(Inserted::TooLate)?;
                Ok(self.open(held, tick))
            }
            None => {
                self.recent.touch(recent, tick);
                Err(Inserted::TooLate)
            }
        }
    }

    fn open(&mut self, mut held: Box<Held<M>>, tick: Tick) -> Slot {
        held.quiet = held.spans.quiet();
        let (trace_id, size, quiet) = (held.trace_id, held.size(), held.quiet);
        let slot = self.open.insert(held);
        self.index.insert(trace_id, slot);
        self.n_open += 1;
        self.open_size += size;
        self.timers.open(slot, tick);
        self.timers.news(slot, None, quiet, tick);
        slot
    }

    fn close(&mut self, slot: Slot, reason: CloseReason, tick: Tick) -> Option<Closed<M>> {
        self.timers.close(slot);
        let mut held = self.open.remove(slot)?;
        self.index.remove(&held.trace_id);
        if held.condemned.is_none() {
            self.n_open -= 1;
            self.open_size -= held.size();
        }
        held.condemned = None;
        self.recent
            .insert(self.hasher.hash_one(held.trace_id), tick);
        let reason = held.reason(reason, &self.settings);
        let trace = held.lend(reason);
        let memo = std::mem::take(&mut held.memo);
        let first = !std::mem::replace(&mut held.reported, true);
        Some(Closed {
            trace,
            memo,
            first,
            rest: Some(held),
        })
    }

    /// Take a trace out of the budget. It stays until `close_due` hands it out, and takes what else
    /// comes until then unless its own limit is reached.
    fn condemn(&mut self, slot: Slot, reason: CloseReason, tick: Tick) {
        let Some(held) = self
            .open
            .get_mut(slot)
            .filter(|held| held.condemned.is_none())
        else {
            return;
        };
        held.condemned = Some(reason);
        self.n_open -= 1;
        self.open_size -= held.size();
        self.timers.condemn(slot, tick);
    }

    /// Make room: first what settles anyway is closed at once, then the longest idle.
    fn evict(&mut self, tick: Tick) {
        while (self.n_open > self.settings.max_open_traces
            || self.open_size > self.settings.max_open_size)
            && let Some((slot, due)) = self.timers.victim()
        {
            self.condemn(
                slot,
                if due == Due::Settled {
                    CloseReason::RootEnded
                } else {
                    CloseReason::Evicted
                },
                tick,
            );
        }
    }

    /// Forget what is too much or too old; our memory of traces then begins after it.
    fn forget(&mut self, now: Now) {
        let tick = self.tick(now);
        let forgotten = self.recent.forget(tick).max(self.missed.forget(tick));
        // Who wants no memory of closed traces does not want every trace to be called incomplete
        // for that.
        if let Some(forgotten) = forgotten.filter(|_| self.settings.max_recent_traces > 0) {
            self.memory_unix_nanos = self.memory_unix_nanos.max(
                now.unix_nanos
                    .saturating_sub(tick.saturating_sub(forgotten)),
            );
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
