//! Pure. How attempts ended, and a clock, in; how many may be made now, when the next one is due, and what the log should say out.
//! Knows one destination as a whole: while it is down a single probe goes out, not one attempt per queued request.
//! Does not know requests or sockets; randomness is an argument.

use std::time::{Duration, Instant};

use crate::config::Backoff;

/// The longest wait that a peer may ask for. Beyond it we ask again: a mistyped `Retry-After` must not silence us for ever.
const LONGEST_ASKED: Duration = Duration::from_secs(3_600);

/// Log lines about one destination's outages are at least this far apart.
const QUIET: Duration = Duration::from_secs(60);

/// The wait before attempt number `n_failures` + 1: exponential, capped, and with `jitter` (0..=1) between half and the whole of it,
/// so that a fleet of sidecars does not come back all at once. What the peer asked for is the least.
pub(crate) fn wait(backoff: &Backoff, n_failures: u32, asked: Option<Duration>, jitter: f64) -> Duration {
    let exponent = i32::try_from(n_failures.saturating_sub(1)).unwrap_or(i32::MAX);
    let secs = (backoff.initial.as_secs_f64() * backoff.multiplier.powi(exponent)).min(backoff.max.as_secs_f64());
    // An interval of zero would spin.
    let own = Duration::from_secs_f64((secs * (0.5 + jitter.clamp(0.0, 1.0) / 2.0)).max(0.001));
    own.max(asked.unwrap_or_default().min(LONGEST_ASKED))
}

/// Decides how many attempts a destination gets.
#[derive(Debug)]
pub(crate) struct Pacer {
    backoff: Backoff,
    max_in_flight: usize,
    /// When an attempt last ended with an answer that shows the peer alive.
    answered_at: Option<Instant>,
    state: State,
}

#[derive(Debug)]
enum State {
    Up,
    Down {
        n_failures: u32,
        retry_at: Instant,
        /// Until then the peer asked to be left alone.
        asked_until: Option<Instant>,
        /// A probe is out.
        probing: bool,
    },
}

/// One attempt, as the pacer remembers it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    at: Instant,
    is_probe: bool,
}

impl Pacer {
    pub(crate) fn new(backoff: Backoff, max_in_flight: usize) -> Self {
        Self { backoff, max_in_flight, answered_at: None, state: State::Up }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// How many further attempts may start now.
    pub(crate) fn room(&self, n_in_flight: usize, now: Instant) -> usize {
        match self.state {
            State::Up => self.max_in_flight.saturating_sub(n_in_flight),
            State::Down { retry_at, probing, .. } => usize::from(!probing && now >= retry_at),
        }
    }

    /// When there is room again without anything else happening.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Down { retry_at, probing: false, .. } => Some(retry_at),
            _ => None,
        }
    }

    /// An attempt starts; there was room for it.
    pub(crate) fn start(&mut self, now: Instant) -> Attempt {
        match &mut self.state {
            State::Up => Attempt { at: now, is_probe: false },
            State::Down { probing, .. } => {
                *probing = true;
                Attempt { at: now, is_probe: true }
            }
        }
    }

    /// An attempt ended with an answer, good or bad: the peer is there.
    pub(crate) fn answered(&mut self, attempt: Attempt, now: Instant) {
        self.answered_at = Some(now);
        if let State::Down { asked_until, .. } = self.state
            // An attempt that was on its way before the peer asked for a pause does not end the pause.
            && (attempt.is_probe || asked_until.is_none_or(|until| until <= now))
        {
            self.state = State::Up;
        }
    }

    /// An attempt ended in a way that asks for another one.
    pub(crate) fn failed(&mut self, attempt: Attempt, asked: Option<Duration>, now: Instant, jitter: f64) {
        let asked_until = asked.filter(|asked| !asked.is_zero()).map(|asked| now + asked.min(LONGEST_ASKED));
        match &mut self.state {
            // Others got through since this attempt began, so the trouble is with this request and not with the peer.
            State::Up if asked_until.is_none() && self.answered_at.is_some_and(|answered| answered > attempt.at) => {}
            State::Up => {
                let retry_at = now + wait(&self.backoff, 1, asked, jitter);
                self.state = State::Down { n_failures: 1, retry_at, asked_until, probing: false };
            }
            State::Down { n_failures, retry_at, asked_until: until, probing } if attempt.is_probe => {
                *n_failures = n_failures.saturating_add(1);
                *retry_at = now + wait(&self.backoff, *n_failures, asked, jitter);
                *until = asked_until;
                *probing = false;
            }
            // It left before the outage was known, and tells nothing new but how long the peer wants to be left alone.
            State::Down { retry_at, asked_until: until, .. } => {
                *until = (*until).max(asked_until);
                *retry_at = asked_until.map_or(*retry_at, |until| until.max(*retry_at));
            }
        }
    }

    /// We are stopping: try at once and begin the intervals anew, unless the peer asked for a pause.
    pub(crate) fn hurry(&mut self, now: Instant) {
        if let State::Down { n_failures, retry_at, asked_until, .. } = &mut self.state {
            *n_failures = 0;
            *retry_at = asked_until.unwrap_or(now).max(now);
        }
    }
}

/// Decides which lines of an outage are worth the log: one when it begins, one a minute, one when it ends. A destination that
/// goes up and down all the time gets one pair of lines a minute.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    is_told: bool,
    told_at: Option<Instant>,
}

/// A line for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// It began.
    Down,
    /// It has lasted so long.
    StillDown(Duration),
    /// It is over, after so long.
    Recovered(Duration),
}

impl Outage {
    /// The destination was seen up or down.
    pub(crate) fn observe(&mut self, is_up: bool, now: Instant) -> Option<Line> {
        let is_quiet = self.told_at.is_some_and(|told| now.duration_since(told) < QUIET);
        match (self.since, is_up) {
            (None, true) => None,
            (None, false) => {
                self.since = Some(now);
                self.is_told = !is_quiet;
                self.is_told.then(|| self.tell(Line::Down, now))
            }
            (Some(since), false) if !is_quiet => {
                let line = if self.is_told { Line::StillDown(now.duration_since(since)) } else { Line::Down };
                self.is_told = true;
                Some(self.tell(line, now))
            }
            (Some(_), false) => None,
            (Some(since), true) => {
                self.since = None;
                std::mem::take(&mut self.is_told).then(|| Line::Recovered(now.duration_since(since)))
            }
        }
    }

    fn tell(&mut self, line: Line, now: Instant) -> Line {
        self.told_at = Some(now);
        line
    }
}

/// Lets one of many like lines through a minute.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    told_at: Option<Instant>,
    n_held_back: u64,
}

impl Seldom {
    /// How many were held back since the last line, if it is time for one.
    pub(crate) fn ready(&mut self, now: Instant) -> Option<u64> {
        if self.told_at.is_some_and(|told| now.duration_since(told) < QUIET) {
            self.n_held_back += 1;
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.n_held_back))
    }
}
