//! Pure. What each open trace waits for, and which is due next. Knows slots and delays; knows
//! nothing of spans.

use std::time::Duration;

use super::Settings;
use super::lanes::{Lanes, Slot, Tick};

/// Whose end a settling trace has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quiet {
    /// A top span without a parent.
    Local,
    /// Only top spans whose parents are remote: other processes may still send theirs.
    Remote,
}

/// What has come due for a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// It has settled.
    Settled,
    /// Nothing came for too long.
    Inactive,
    /// A limit condemned it.
    Condemned,
}

/// The timers of all open traces.
#[derive(Debug)]
pub(super) struct Timers {
    /// Since the last new span. Lanes: settling, settling (remote), not settling, condemned.
    quiet: Lanes<4>,
    /// Since the settling began. Lanes: settling, settling (remote).
    settling: Lanes<2>,
    /// Since the trace was opened.
    age: Lanes<1>,
    quiet_delays: [Tick; 4],
    settling_delays: [Tick; 2],
    age_delay: Tick,
}

const IDLE: usize = 2;
const CONDEMNED: usize = 3;

/// As ticks, `Tick::MAX` (584 years) meaning never.
pub(super) fn ticks(duration: Duration) -> Tick {
    Tick::try_from(duration.as_nanos()).unwrap_or(Tick::MAX)
}

impl Timers {
    pub(super) fn new(settings: &Settings) -> Self {
        let [settle, settle_remote, max_settle] =
            [settings.settle, settings.settle_remote, settings.max_settle].map(ticks);
        Self {
            quiet: Lanes::new(),
            settling: Lanes::new(),
            age: Lanes::new(),
            quiet_delays: [settle, settle_remote, ticks(settings.inactive), 0],
            settling_delays: [settle.max(max_settle), settle_remote.max(max_settle)],
            age_delay: ticks(settings.expired),
        }
    }

    /// Settle sooner from now on. What waits has waited since it joined, so lines stay in order.
    pub(super) fn hurry(&mut self, settle: Tick) {
        for delay in self.quiet_delays[..2]
            .iter_mut()
            .chain(&mut self.settling_delays)
        {
            *delay = settle.min(*delay);
        }
    }

    /// A trace was opened, or opened again.
    pub(super) fn open(&mut self, slot: Slot, now: Tick) {
        self.age.join(0, slot, now);
    }

    /// A trace has news. A settling that goes on is put off, but its longest time runs on; one of
    /// another kind begins anew, since what it waited for has only now come.
    pub(super) fn news(
        &mut self,
        slot: Slot,
        before: Option<Quiet>,
        after: Option<Quiet>,
        now: Tick,
    ) {
        self.quiet
            .join(after.map_or(IDLE, |quiet| quiet as usize), slot, now);
        match after {
            Some(quiet) if before != after => self.settling.join(quiet as usize, slot, now),
            Some(_) => {}
            None => self.settling.leave(slot),
        }
    }

    /// A limit was reached: the trace is due now, and nothing can put that off.
    pub(super) fn condemn(&mut self, slot: Slot, now: Tick) {
        self.quiet.join(CONDEMNED, slot, now);
        self.settling.leave(slot);
        self.age.leave(slot);
    }

    /// A trace was closed.
    pub(super) fn close(&mut self, slot: Slot) {
        self.quiet.leave(slot);
        self.settling.leave(slot);
        self.age.leave(slot);
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Option<Tick> {
        let next = self
            .next_closing()
            .map(|(at, _, _)| at)
            .into_iter()
            .chain(self.next_expiry().map(|(at, _)| at))
            .min();
        next.filter(|&at| at != Tick::MAX)
    }

    /// The trace to close first, if one is due.
    pub(super) fn due(&self, now: Tick) -> Option<(Slot, Due)> {
        self.next_closing()
            .filter(|&(at, _, _)| at <= now)
            .map(|(_, slot, due)| (slot, due))
    }

    /// The next trace that has been open for too long. It is told once.
    pub(super) fn take_expired(&mut self, now: Tick) -> Option<Slot> {
        let (_, slot) = self.next_expiry().filter(|&(at, _)| at <= now)?;
        self.age.leave(slot);
        Some(slot)
    }

    /// Whom to close when there is no room: of the settling ones that which would settle first,
    /// else the longest idle.
    pub(super) fn victim(&self) -> Option<(Slot, Due)> {
        let settling = [Quiet::Local as usize, Quiet::Remote as usize]
            .into_iter()
            .filter_map(|lane| {
                let (slot, since) = self.quiet.first(lane)?;
                Some((since.saturating_add(self.quiet_delays[lane]), slot))
            });
        match settling.min() {
            Some((_, slot)) => Some((slot, Due::Settled)),
            None => self
                .quiet
                .first(IDLE)
                .map(|(slot, _)| (slot, Due::Inactive)),
        }
    }

    fn next_closing(&self) -> Option<(Tick, Slot, Due)> {
        const DUE: [Due; 4] = [Due::Settled, Due::Settled, Due::Inactive, Due::Condemned];
        let quiet = (0..4).filter_map(|lane| {
            let (slot, since) = self.quiet.first(lane)?;
            Some((
                since.saturating_add(self.quiet_delays[lane]),
                slot,
                DUE[lane],
            ))
        });
        let settling = (0..2).filter_map(|lane| {
            let (slot, since) = self.settling.first(lane)?;
            Some((
                since.saturating_add(self.settling_delays[lane]),
                slot,
                Due::Settled,
            ))
        });
        quiet
            .chain(settling)
            .filter(|&(at, _, _)| at != Tick::MAX)
            .min_by_key(|&(at, _, _)| at)
    }

    fn next_expiry(&self) -> Option<(Tick, Slot)> {
        let (slot, since) = self.age.first(0)?;
        Some((since.saturating_add(self.age_delay), slot)).filter(|&(at, _)| at != Tick::MAX)
    }
}
