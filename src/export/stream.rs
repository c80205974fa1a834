//! Streams evaluations, as lines, to all listeners.
//!
//! Scoring never waits for a listener: each listener has a separate bounded queue, which drops and
//! counts its oldest lines. Rendering a line can cost more than a judgement. So without listeners
//! only [`MAX_RECENT_A_SECOND`] lines per second are rendered, for listeners that later request
//! recent lines.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use bytes::Bytes;
use judge::evaluate::{Evaluation, Stage, Verdict};
use judge::extract::glob_matches;

use super::score_line;
use crate::sync::Mutex;
use crate::telemetry::{ListenerBehind, Telemetry};

pub(super) const MAX_LISTENERS: usize = 8;
/// Maximum bytes in the queue of one listener: about 400 lines.
pub(super) const MAX_QUEUED_BYTES: usize = 256 << 10;
pub(super) const MAX_RECENT: usize = 256;
/// Maximum bytes of the recent lines.
const MAX_RECENT_SIZE: usize = 256 << 10;
const MAX_RECENT_A_SECOND: usize = 100;

/// Selects evaluations: each non-empty list must match, and a list matches if any of its entries
/// does. Texts are globs, as in selectors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ScoreFilter {
    pub(super) criterion: Vec<String>,
    pub(super) label: Vec<Verdict>,
    pub(super) service: Vec<String>,
    pub(super) agent: Vec<String>,
    /// True to select alarms instead of verdicts.
    pub(super) alarms: bool,
}

#[derive(Debug)]
pub(super) struct ScoreStream {
    state: Mutex<State>,
    telemetry: Arc<Telemetry>,
}

/// The reason why a listener was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotHeard {
    /// There are already [`MAX_LISTENERS`].
    Full,
    Ended,
}

#[derive(Debug, Default)]
struct State {
    listeners: Vec<Arc<ListenerQueue>>,
    /// Recent verdicts, and recent alarms.
    recent: [Recent; 2],
    is_closed: bool,
}

#[derive(Debug)]
struct ListenerQueue {
    filter: ScoreFilter,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Lines<Bytes>,
    is_closed: bool,
    waker: Option<Waker>,
}

/// A listener's end of the stream. Dropping the listener ends the subscription.
#[derive(Debug)]
pub(super) struct ScoreListener {
    stream: Arc<ScoreStream>,
    listener: Arc<ListenerQueue>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextLine {
    /// The number of lines that were dropped at this position.
    Lost(u64),
    /// A line, without a line break.
    Line(Bytes),
    Later,
    End,
}

// === impl ScoreStream ===

impl ScoreStream {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> Self {
        Self {
            state: Mutex::default(),
            telemetry,
        }
    }

    /// Enqueues evaluations for every listener whose filter matches. Never waits.
    pub(super) fn push(&self, evaluations: &[Evaluation], now_unix_nanos: u64) {
        let mut state = self.state();
        let State {
            listeners, recent, ..
        } = &mut *state;
        for evaluation in evaluations {
            let facets = Facets::of(evaluation);
            let wanted: Vec<&Arc<ListenerQueue>> = listeners
                .iter()
                .filter(|listener| listener.filter.wants(facets))
                .collect();
            let recent = &mut recent[usize::from(facets.is_of_alarm)];
            let is_remembered = recent.may_take(now_unix_nanos / 1_000_000_000);
            if wanted.is_empty() && !is_remembered {
                recent.lines.lose(1);
                continue;
            }
            let text = Bytes::from(score_line::json_text(evaluation));
            for listener in wanted {
                let n_items = listener.push(text.clone());
                if n_items > 0 {
                    ListenerBehind { n_items }.emit(&self.telemetry);
                }
            }
            if is_remembered {
                recent.push(RecentLine {
                    text,
                    criterion: facets.criterion.to_owned(),
                    label: facets.label,
                    service: evaluation.trajectory.service.clone(),
                    agent: evaluation.trajectory.agent.clone(),
                    is_of_alarm: facets.is_of_alarm,
                })
            } else {
                recent.lines.lose(1)
            }
        }
    }

    /// Adds a listener, which first receives the last `n_last` recent lines that match its filter.
    /// After the end of the stream it receives only these lines.
    pub(super) fn listen(
        self: &Arc<Self>,
        filter: ScoreFilter,
        n_last: usize,
    ) -> Result<ScoreListener, NotHeard> {
        let mut state = self.state();
        if state.listeners.len() >= MAX_LISTENERS {
            return Err(NotHeard::Full);
        }
        if state.is_closed && n_last == 0 {
            return Err(NotHeard::Ended);
        }
        let mut waiting = Waiting {
            is_closed: state.is_closed,
            ..Waiting::default()
        };
        let wanted: Vec<_> = state.recent[usize::from(filter.alarms)]
            .lines
            .queue
            .iter()
            .filter(|(_, line)| filter.wants(line.facets()))
            .collect();
        for (at, (n_lost, line)) in wanted[wanted.len().saturating_sub(n_last)..]
            .iter()
            .enumerate()
        {
            // The dropped lines between two recent lines may have matched the filter; lines before
            // the first one were not requested.
            waiting.lines.lose(if at > 0 { *n_lost } else { 0 });
            waiting.lines.push(line.text.clone());
        }
        let listener = Arc::new(ListenerQueue {
            filter,
            waiting: Mutex::new(waiting),
        });
        state.listeners.push(listener.clone());
        drop(state);
        Ok(ScoreListener {
            stream: self.clone(),
            listener,
        })
    }

    /// Ends the stream: listeners receive the queued lines and then the end.
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

// === impl ScoreListener ===

impl ScoreListener {
    /// Returns the next item. After [`NextLine::Later`] the waker is called when there is an item.
    pub(super) fn next(&self, waker: &Waker) -> NextLine {
        let mut waiting = self.listener.waiting();
        match waiting.lines.next() {
            NextLine::Later if waiting.is_closed => NextLine::End,
            NextLine::Later => {
                waiting.waker = Some(waker.clone());
                NextLine::Later
            }
            next => next,
        }
    }
}

impl Drop for ScoreListener {
    fn drop(&mut self) {
        self.stream
            .state()
            .listeners
            .retain(|listener| !Arc::ptr_eq(listener, &self.listener));
    }
}

impl ListenerQueue {
    /// Enqueues a line, and returns the number of lines that were dropped because of the limit.
    fn push(&self, text: Bytes) -> u64 {
        let mut waiting = self.waiting();
        waiting.lines.push(text);
        let n_lost = waiting.lines.shrink(usize::MAX, MAX_QUEUED_BYTES);
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

#[derive(Debug, Default)]
struct Recent {
    lines: Lines<RecentLine>,
    /// The current second, and the number of evaluations in it.
    second: u64,
    n_in_second: usize,
}

#[derive(Debug)]
struct RecentLine {
    text: Bytes,
    criterion: String,
    label: Verdict,
    service: Arc<str>,
    agent: Option<Arc<str>>,
    is_of_alarm: bool,
}

impl Recent {
    fn may_take(&mut self, second: u64) -> bool {
        if self.second != second {
            (self.second, self.n_in_second) = (second, 0);
        }
        self.n_in_second += 1;
        self.n_in_second <= MAX_RECENT_A_SECOND
    }

    fn push(&mut self, line: RecentLine) {
        self.lines.push(line);
        self.lines.shrink(MAX_RECENT, MAX_RECENT_SIZE);
    }
}

impl RecentLine {
    fn facets(&self) -> Facets<'_> {
        Facets {
            criterion: &self.criterion,
            label: self.label,
            service: &self.service,
            agent: self.agent.as_deref().unwrap_or_default(),
            is_of_alarm: self.is_of_alarm,
        }
    }
}

// === ScoreFilter ===

/// The properties that filters match.
#[derive(Debug, Clone, Copy)]
struct Facets<'a> {
    criterion: &'a str,
    label: Verdict,
    service: &'a str,
    agent: &'a str,
    is_of_alarm: bool,
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
            is_of_alarm: evaluation.stage != Stage::Final,
        }
    }
}

impl ScoreFilter {
    fn wants(&self, facets: Facets<'_>) -> bool {
        let any = |globs: &[String], text: &str| {
            globs.is_empty() || globs.iter().any(|glob| glob_matches(glob, text))
        };
        self.alarms == facets.is_of_alarm
            && (self.label.is_empty() || self.label.contains(&facets.label))
            && any(&self.criterion, facets.criterion)
            && any(&self.service, facets.service)
            && any(&self.agent, facets.agent)
    }
}

// === Lines ===

/// Lines in order, each with the number of lines dropped before it.
#[derive(Debug)]
struct Lines<L> {
    queue: VecDeque<(u64, L)>,
    n_bytes: usize,
    /// Number of lines that were dropped after the last queued line.
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

    /// Drops the oldest lines until the queue is within its limits, and returns their number. Also
    /// drops a single line that exceeds the limit.
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
    fn next(&mut self) -> NextLine {
        let n_lost = self
            .queue
            .front_mut()
            .map_or(&mut self.n_lost, |(n_lost, _)| n_lost);
        if *n_lost > 0 {
            return NextLine::Lost(std::mem::take(n_lost));
        }
        match self.queue.pop_front() {
            Some((_, line)) => {
                self.n_bytes -= line.len();
                NextLine::Line(line)
            }
            None => NextLine::Later,
        }
    }
}

trait HasSize {
    fn size(&self) -> usize;
}

impl HasSize for Bytes {
    fn size(&self) -> usize {
        self.len()
    }
}

impl HasSize for RecentLine {
    fn size(&self) -> usize {
        self.text.len() + self.criterion.len()
    }
}
