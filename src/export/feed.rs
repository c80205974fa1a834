//! Evaluations in, their lines to whoever listens out. Knows queues and their bounds; does not know
//! what carries the lines.
//!
//! Scoring never waits for a listener: each has a queue of its own, which drops its oldest and
//! tells how many. While nobody listens, only so many lines a second are written down, for those
//! who ask for the last ones: writing them all would cost more than many a judgement.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use bytes::Bytes;
use serde_json::Value;

use super::score_line;
use crate::evaluate::{Evaluation, Verdict};
use crate::extract::glob_matches;
use crate::sync::Mutex;
use crate::telemetry::{ListenerBehind, Telemetry};

/// Most listeners at once.
pub(super) const MAX_LISTENERS: usize = 8;
/// Most bytes that wait for one listener: about 400 lines.
pub(super) const MAX_WAITING: usize = 256 << 10;
/// Most lines that are remembered, and most bytes of them.
pub(super) const MAX_RECENT: usize = 256;
const MAX_RECENT_SIZE: usize = 256 << 10;
/// Most lines that are written down in a second to be remembered.
const MAX_RECENT_A_SECOND: usize = 100;

/// Which evaluations one wants to see: all that is given must hold, and of one kind any of those
/// given. Texts are globs, as in selectors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) criterion: Vec<String>,
    pub(super) label: Vec<Verdict>,
    pub(super) service: Vec<String>,
    pub(super) agent: Vec<String>,
}

/// Takes evaluations, and lets listeners in.
#[derive(Debug)]
pub(super) struct Feed {
    state: Mutex<State>,
    telemetry: Arc<Telemetry>,
}

#[derive(Debug, Default)]
struct State {
    listeners: Vec<Arc<Listener>>,
    recent: Recent,
    is_closed: bool,
}

#[derive(Debug)]
struct Listener {
    filter: Filter,
    waiting: Mutex<Waiting>,
}

/// What waits for one who listens.
#[derive(Debug, Default)]
struct Waiting {
    lines: Lines<Bytes>,
    is_closed: bool,
    waker: Option<Waker>,
}

/// The end of the feed that a listener holds. Dropping it is leaving.
#[derive(Debug)]
pub(super) struct Listening {
    feed: Arc<Feed>,
    listener: Arc<Listener>,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// So many lines were lost here.
    Lost(u64),
    /// A line, without a line end.
    Line(Bytes),
    /// Nothing yet.
    Later,
    /// Nothing more.
    End,
}

// === impl Feed ===

impl Feed {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> Self {
        Self {
            state: Mutex::default(),
            telemetry,
        }
    }

    /// Takes evaluations; never waits.
    pub(super) fn push(&self, evaluations: &[Evaluation], now_unix_nanos: u64) {
        let mut state = self.state();
        let State {
            listeners, recent, ..
        } = &mut *state;
        for evaluation in evaluations {
            let facets = Facets::of(evaluation);
            let wanted: Vec<&Arc<Listener>> = listeners
                .iter()
                .filter(|listener| listener.filter.wants(facets))
                .collect();
            let is_remembered = recent.may_take(now_unix_nanos / 1_000_000_000);
            if wanted.is_empty() && !is_remembered {
                recent.lines.lose(1);
                continue;
            }
            let text = Bytes::from(Value::Object(score_line::json(evaluation)).to_string());
            for listener in wanted {
                let n_items = listener.push(text.clone());
                if n_items > 0 {
                    ListenerBehind { n_items }.emit(&self.telemetry);
                }
            }
            match is_remembered {
                true => recent.push(Remembered {
                    text,
                    criterion: facets.criterion.to_owned(),
                    label: facets.label,
                    service: evaluation.trajectory.service.clone(),
                    agent: evaluation.trajectory.agent.clone(),
                }),
                false => recent.lines.lose(1),
            }
        }
    }

    /// Lets a listener in, who first gets the last `n_last` remembered lines that it wants. Nothing
    /// if there are as many as may be.
    pub(super) fn listen(self: &Arc<Self>, filter: Filter, n_last: usize) -> Option<Listening> {
        let mut state = self.state();
        if state.listeners.len() >= MAX_LISTENERS {
            return None;
        }
        let mut waiting = Waiting {
            is_closed: state.is_closed,
            ..Waiting::default()
        };
        let wanted: Vec<_> = state
            .recent
            .lines
            .queue
            .iter()
            .filter(|(_, line)| filter.wants(line.facets()))
            .collect();
        for (at, (n_lost, line)) in wanted[wanted.len().saturating_sub(n_last)..]
            .iter()
            .enumerate()
        {
            // What was skipped in between might have been wanted; what came before the first was
            // not asked for.
            waiting.lines.lose(if at > 0 { *n_lost } else { 0 });
            waiting.lines.push(line.text.clone());
        }
        let listener = Arc::new(Listener {
            filter,
            waiting: Mutex::new(waiting),
        });
        state.listeners.push(listener.clone());
        drop(state);
        Some(Listening {
            feed: self.clone(),
            listener,
        })
    }

    /// Nothing more will come: listeners get what waits, and the end.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for listener in &state.listeners {
            let mut waiting = listener.waiting();
            waiting.is_closed = true;
            waiting.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

// === impl Listening ===

impl Listening {
    /// What comes next. Who is told [`Next::Later`] is woken when that changes.
    pub(super) fn next(&self, waker: &Waker) -> Next {
        let mut waiting = self.listener.waiting();
        match waiting.lines.next() {
            Next::Later if waiting.is_closed => Next::End,
            Next::Later => {
                waiting.waker = Some(waker.clone());
                Next::Later
            }
            next => next,
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.feed
            .state()
            .listeners
            .retain(|listener| !Arc::ptr_eq(listener, &self.listener));
    }
}

impl Listener {
    /// How many older lines had to go for this one.
    fn push(&self, text: Bytes) -> u64 {
        let mut waiting = self.waiting();
        waiting.lines.push(text);
        let n_lost = waiting.lines.shrink(usize::MAX, MAX_WAITING);
        waiting.wake();
        n_lost
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

impl Waiting {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

// === Recent ===

/// The last lines, as many as may be kept.
#[derive(Debug, Default)]
struct Recent {
    lines: Lines<Remembered>,
    /// The second at hand, and how many lines were written down in it.
    second: u64,
    n_in_second: usize,
}

#[derive(Debug)]
struct Remembered {
    text: Bytes,
    criterion: String,
    label: Verdict,
    service: Arc<str>,
    agent: Option<Arc<str>>,
}

impl Recent {
    fn may_take(&mut self, second: u64) -> bool {
        if self.second != second {
            (self.second, self.n_in_second) = (second, 0);
        }
        self.n_in_second += 1;
        self.n_in_second <= MAX_RECENT_A_SECOND
    }

    fn push(&mut self, line: Remembered) {
        self.lines.push(line);
        self.lines.shrink(MAX_RECENT, MAX_RECENT_SIZE);
    }
}

impl Remembered {
    fn facets(&self) -> Facets<'_> {
        Facets {
            criterion: &self.criterion,
            label: self.label,
            service: &self.service,
            agent: self.agent.as_deref().unwrap_or_default(),
        }
    }
}

// === Filter ===

/// What filters look at.
#[derive(Debug, Clone, Copy)]
struct Facets<'a> {
    criterion: &'a str,
    label: Verdict,
    service: &'a str,
    agent: &'a str,
}

impl<'a> Facets<'a> {
    fn of(evaluation: &'a Evaluation) -> Self {
        let Evaluation {
            criterion,
            trajectory,
            verdict,
            ..
        } = evaluation;
        let agent = trajectory.agent.as_deref().unwrap_or_default();
        Self {
            criterion: criterion.name(),
            label: *verdict,
            service: &trajectory.service,
            agent,
        }
    }
}

impl Filter {
    fn wants(&self, facets: Facets<'_>) -> bool {
        let any = |globs: &[String], text: &str| {
            globs.is_empty() || globs.iter().any(|glob| glob_matches(glob, text))
        };
        (self.label.is_empty() || self.label.contains(&facets.label))
            && any(&self.criterion, facets.criterion)
            && any(&self.service, facets.service)
            && any(&self.agent, facets.agent)
    }
}

// === Lines ===

/// Lines in order, and how many are missing before each.
#[derive(Debug)]
struct Lines<L> {
    queue: VecDeque<(u64, L)>,
    n_bytes: usize,
    /// Missing after the last.
    n_lost: u64,
}

impl<L> Default for Lines<L> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            n_bytes: 0,
            n_lost: 0,
        }
    }
}

impl<L: Sized + HasSize> Lines<L> {
    fn push(&mut self, line: L) {
        self.n_bytes += line.size();
        self.queue
            .push_back((std::mem::take(&mut self.n_lost), line));
    }

    fn lose(&mut self, n: u64) {
        self.n_lost += n;
    }

    /// Drops the oldest until the bounds hold: how many. A line that is larger than the bound by
    /// itself goes too.
    fn shrink(&mut self, max_lines: usize, max_bytes: usize) -> u64 {
        let mut n_dropped = 0;
        while self.queue.len() > max_lines || self.n_bytes > max_bytes {
            let Some((n_lost, line)) = self.queue.pop_front() else {
                break;
            };
            self.n_bytes -= line.size();
            n_dropped += 1;
            *self
                .queue
                .front_mut()
                .map_or(&mut self.n_lost, |(n_lost, _)| n_lost) += n_lost + 1;
        }
        n_dropped
    }
}

impl Lines<Bytes> {
    fn next(&mut self) -> Next {
        let n_lost = self
            .queue
            .front_mut()
            .map_or(&mut self.n_lost, |(n_lost, _)| n_lost);
        if *n_lost > 0 {
            return Next::Lost(std::mem::take(n_lost));
        }
        match self.queue.pop_front() {
            Some((_, line)) => {
                self.n_bytes -= line.len();
                Next::Line(line)
            }
            None => Next::Later,
        }
    }
}

/// Bytes that a line takes.
trait HasSize {
    fn size(&self) -> usize;
}

impl HasSize for Bytes {
    fn size(&self) -> usize {
        self.len()
    }
}

impl HasSize for Remembered {
    fn size(&self) -> usize {
        self.text.len() + self.criterion.len()
    }
}
