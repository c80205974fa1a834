//! The timers of the open traces. They determine which trace is due next, and which is evicted
//! first.

use std::time::Duration;

use super::Settings;
use super::fifo_timers::{FifoTimers, Tick};
use super::shares::BudgetShare;
use super::slab::Slot;

/// The kind of top span that has ended in a settling trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quiet {
    /// A top span without a parent.
    Local,
    /// Only top spans with remote parents, so that other processes may still send spans.
    Remote,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The settle time is over. The caller checks that the trace is done.
    Settled,
    /// No span has arrived for `assemble.inactive`.
    Inactive,
    /// A limit, a shutdown or the end of the input closes the trace.
    Closing,
}

#[derive(Debug)]
pub(super) struct Timers {
    /// Timers that count from the last new span. The queues are for traces that settle, settle with
    /// a remote parent, do not settle, and close; `quiet_delays` has their delays in this order.
    quiet: FifoTimers,
    /// Inactivity timers of traces that are settling, or whose settle time ended although they were
    /// not done. They count from the last new span.
    idle: FifoTimers,
    /// Timers that count from the start of the settling. The queues are the first two of `quiet`;
    /// `settling_delays` has their delays.
    settling: FifoTimers,
    /// Timers that count from the opening of the trace.
    age: FifoTimers,
    /// Like `quiet`, but with separate queues for each share. Each share has the first three queues
    /// of `quiet`.
    by_share: FifoTimers,
    quiet_delays: [Tick; 4],
    settling_delays: [Tick; 2],
    age_delay: Tick,
}

const IDLE: usize = 2;
const CLOSING: usize = 3;

const QUEUES_OF_SHARE: usize = CLOSING;

/// Converts a duration to ticks; `Tick::MAX` (584 years) means never.
pub(crate) fn ticks(duration: Duration) -> Tick {
    Tick::try_from(duration.as_nanos()).unwrap_or(Tick::MAX)
}

impl Timers {
    pub(super) fn new(settings: &Settings) -> Self {
        let [settle, settle_remote, max_settle] =
            [settings.settle, settings.settle_remote, settings.max_settle].map(ticks);
        Self {
            quiet: FifoTimers::new(4),
            idle: FifoTimers::new(1),
            settling: FifoTimers::new(2),
            age: FifoTimers::new(1),
            by_share: FifoTimers::new(0),
            quiet_delays: [settle, settle_remote, ticks(settings.inactive), 0],
            settling_delays: [settle.max(max_settle), settle_remote.max(max_settle)],
            age_delay: ticks(settings.expired),
        }
    }

    /// Shortens the settle times. Waits keep their start, so the queues remain sorted.
    pub(super) fn shorten_settle(&mut self, settle: Tick) {
        for delay in self.quiet_delays[..2]
            .iter_mut()
            .chain(&mut self.settling_delays)
        {
            *delay = settle.min(*delay);
        }
    }

    pub(super) fn open(&mut self, slot: Slot, share: BudgetShare, quiet: Option<Quiet>, now: Tick) {
        self.by_share.grow((share.number() + 1) * QUEUES_OF_SHARE);
        self.age.start(0, slot, now);
        self.restart(slot, share, None, quiet, false, now);
    }

    /// Restarts the timers of a trace after a new span. A new span delays the settling, but not
    /// beyond `max_settle`. If a top span of another kind has just ended, the settling starts anew.
    pub(super) fn restart(
        &mut self,
        slot: Slot,
        share: BudgetShare,
        before: Option<Quiet>,
        after: Option<Quiet>,
        settled_in_vain: bool,
        now: Tick,
    ) {
        let queue = after.map_or(IDLE, |quiet| quiet as usize);
        self.quiet.start(queue, slot, now);
        let queue = if settled_in_vain { IDLE } else { queue };
        self.by_share
            .start(share.number() * QUEUES_OF_SHARE + queue, slot, now);
        match after {
            Some(quiet) => {
                self.idle.start(0, slot, now);
                if before != after {
                    self.settling.start(quiet as usize, slot, now);
                }
            }
            None => {
                self.idle.cancel(slot);
                self.settling.cancel(slot);
            }
        }
    }

    /// Stops the settling. The inactivity timer continues from its last span.
    pub(super) fn wait_for_spans(&mut self, slot: Slot, share: BudgetShare, now: Tick) {
        self.quiet.cancel(slot);
        self.settling.cancel(slot);
        self.by_share
            .start(share.number() * QUEUES_OF_SHARE + IDLE, slot, now);
    }

    pub(super) fn settle_only(&mut self, slot: Slot) {
        self.idle.cancel(slot);
    }

    /// Makes a trace due immediately because of a limit, a shutdown or the end of the input;
    /// further spans do not delay it.
    pub(super) fn close_now(&mut self, slot: Slot, now: Tick) {
        self.quiet.start(CLOSING, slot, now);
        self.idle.cancel(slot);
        self.settling.cancel(slot);
        self.age.cancel(slot);
        self.by_share.cancel(slot);
    }

    pub(super) fn cancel(&mut self, slot: Slot) {
        self.quiet.cancel(slot);
        self.idle.cancel(slot);
        self.settling.cancel(slot);
        self.age.cancel(slot);
        self.by_share.cancel(slot);
    }

    pub(super) fn next(&self) -> Option<Tick> {
        let next = self
            .next_closing()
            .map(|(at, _, _)| at)
            .into_iter()
            .chain(self.next_expiry().map(|(at, _)| at))
            .min();
        next.filter(|&at| at != Tick::MAX)
    }

    pub(super) fn due(&self, now: Tick) -> Option<(Slot, Due)> {
        self.next_closing()
            .filter(|&(at, _, _)| at <= now)
            .map(|(_, slot, due)| (slot, due))
    }

    pub(super) fn first_limited(&self) -> Option<Slot> {
        self.quiet.first(CLOSING).map(|(slot, _)| slot)
    }

    /// Returns the next trace that has been open for too long, each trace only once.
    pub(super) fn take_expired(&mut self, now: Tick) -> Option<Slot> {
        let (_, slot) = self.next_expiry().filter(|&(at, _)| at <= now)?;
        self.age.cancel(slot);
        Some(slot)
    }

    /// Returns the trace of a share to evict: the settling trace that would settle first, else the
    /// trace that has been idle for longest.
    pub(super) fn victim(&self, share: BudgetShare) -> Option<(Slot, Due)> {
        let first = |queue: usize| {
            self.by_share
                .first(share.number() * QUEUES_OF_SHARE + queue)
        };
        let settling = [Quiet::Local as usize, Quiet::Remote as usize]
            .into_iter()
            .filter_map(|queue| {
                let (slot, since) = first(queue)?;
                Some((since.saturating_add(self.quiet_delays[queue]), slot))
            });
        match settling.min() {
            Some((_, slot)) => Some((slot, Due::Settled)),
            None => first(IDLE).map(|(slot, _)| (slot, Due::Inactive)),
        }
    }

    fn next_closing(&self) -> Option<(Tick, Slot, Due)> {
        const DUE: [Due; 4] = [Due::Settled, Due::Settled, Due::Inactive, Due::Closing];
        let idle = self.idle.first(0).map(|(slot, since)| {
            let at = since.saturating_add(self.quiet_delays[IDLE]);
            (at, slot, Due::Inactive)
        });
        let quiet = (0..4).filter_map(|queue| {
            let (slot, since) = self.quiet.first(queue)?;
            Some((
                since.saturating_add(self.quiet_delays[queue]),
                slot,
                DUE[queue],
            ))
        });
        let settling = (0..2).filter_map(|queue| {
            let (slot, since) = self.settling.first(queue)?;
            Some((
                since.saturating_add(self.settling_delays[queue]),
                slot,
                Due::Settled,
            ))
        });
        quiet
            .chain(settling)
            .chain(idle)
            .filter(|&(at, _, _)| at != Tick::MAX)
            .min_by_key(|&(at, _, _)| at)
    }

    fn next_expiry(&self) -> Option<(Tick, Slot)> {
        let (slot, since) = self.age.first(0)?;
        Some((since.saturating_add(self.age_delay), slot)).filter(|&(at, _)| at != Tick::MAX)
    }
}
