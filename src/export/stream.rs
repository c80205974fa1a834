//! Streams evaluations, as lines, to all listeners.
//!
//! Scoring never waits for a listener: the latest lines are stored once, and each listener has a
//! position in them. Lines that are dropped before a listener has read them are counted. Rendering
//! a line can cost more than a judgement. So without listeners only [`MAX_RECENT_A_SECOND`] lines
//! per second are rendered, for listeners that later request recent lines.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use judge::evaluate::{Evaluation, JudgedBy, Stage, Verdict};
use judge::extract::glob_matches;

use super::score_line;
use crate::sync::Mutex;
use crate::telemetry::{ListenerBehind, Telemetry};

pub(super) const MAX_LISTENERS: usize = 8;
/// Maximum bytes of the stored verdicts, and of the stored alarms: about 1,600 lines.
pub(super) const MAX_STORED_BYTES: usize = 1 << 20;
/// Maximum recent lines that a listener can request.
pub(super) const MAX_RECENT: usize = 256;
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

#[derive(Debug, Default)]
struct State {
    listeners: Vec<Listener>,
    n_listeners_ever: u64,
    /// Verdicts, and alarms.
    lines: [Lines; 2],
    is_closed: bool,
}

#[derive(Debug)]
struct Listener {
    id: u64,
    filter: ScoreFilter,
    /// The number of the next line to read.
    next: u64,
    /// The number of the first line after the listener came.
    since: u64,
    /// Number of lines that match the filter and were dropped before they were read.
    n_lost: u64,
    waker: Option<Waker>,
}

/// A listener's end of the stream. Dropping the listener ends the subscription.
#[derive(Debug)]
pub(super) struct ScoreListener {
    stream: Arc<ScoreStream>,
    id: u64,
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

    /// Stores evaluations for every listener whose filter matches. Never waits.
    pub(super) fn push(&self, evaluations: &[Evaluation], now_unix_nanos: u64) {
        let mut state = self.state.lock();
        let State {
            listeners, lines, ..
        } = &mut *state;
        for evaluation in evaluations {
            let is_of_alarm = evaluation.stage != Stage::Final;
            let lines = &mut lines[usize::from(is_of_alarm)];
            let number = lines.n_lines;
            lines.n_lines += 1;
            let mut is_wanted = lines.is_recent(now_unix_nanos / 1_000_000_000);
            if !is_wanted && listeners.is_empty() {
                continue;
            }
            let facets = Facets::of(evaluation, is_of_alarm);
            for listener in listeners.iter_mut().filter(|it| it.filter.wants(&facets)) {
                is_wanted = true;
                if let Some(waker) = listener.waker.take() {
                    waker.wake();
                }
            }
            if !is_wanted {
                continue;
            }
            let text = Bytes::from(score_line::json_text(evaluation));
            lines.n_bytes += text.len();
            lines.stored.push_back(Line {
                number,
                text,
                facets,
            });
            while lines.n_bytes > MAX_STORED_BYTES
                && let Some(dropped) = lines.stored.pop_front()
            {
                lines.n_bytes -= dropped.text.len();
                let behind = listeners
                    .iter_mut()
                    .filter(|it| it.next <= dropped.number && it.filter.wants(&dropped.facets));
                for listener in behind {
                    listener.n_lost += 1;
                    listener.next = dropped.number + 1;
                    ListenerBehind { n_items: 1 }.emit(&self.telemetry);
                }
            }
        }
    }

    /// Adds a listener, which first receives the last `n_last` recent lines that match its filter.
    /// After the end of the stream it receives only these lines. Returns the reason if no listener
    /// can be added.
    pub(super) fn listen(
        self: &Arc<Self>,
        filter: ScoreFilter,
        n_last: usize,
    ) -> Result<ScoreListener, String> {
        let mut state = self.state.lock();
        if state.listeners.len() >= MAX_LISTENERS {
            return Err(format!(
                "all {MAX_LISTENERS} listeners are in use: stop one and retry"
            ));
        }
        if state.is_closed && n_last == 0 {
            return Err("the sidecar is stopping and judges nothing more".to_owned());
        }
        let lines = &state.lines[usize::from(filter.alarms)];
        let since = lines.n_lines;
        let recent = lines.stored.iter().rev();
        let recent = recent
            .filter(|line| filter.wants(&line.facets))
            .take(n_last);
        let next = recent.last().map_or(since, |line| line.number);
        state.n_listeners_ever += 1;
        let id = state.n_listeners_ever;
        state.listeners.push(Listener {
            id,
            filter,
            next,
            since,
            n_lost: 0,
            waker: None,
        });
        Ok(ScoreListener {
            stream: self.clone(),
            id,
        })
    }

    /// Ends the stream: listeners receive the stored lines and then the end.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let wakers = state.listeners.iter_mut();
        wakers
            .filter_map(|it| it.waker.take())
            .for_each(Waker::wake);
    }
}

// === impl ScoreListener ===

impl ScoreListener {
    /// Returns the next item. After [`NextLine::Later`] the waker is called when there may be one.
    pub(super) fn next(&self, waker: &Waker) -> NextLine {
        let mut state = self.stream.state.lock();
        let State {
            listeners,
            lines,
            is_closed,
            ..
        } = &mut *state;
        let Some(own) = listeners.iter_mut().find(|it| it.id == self.id) else {
            return NextLine::End;
        };
        let lines = &lines[usize::from(own.filter.alarms)];
        let unread = lines.stored.partition_point(|line| line.number < own.next);
        for line in lines.stored.range(unread..) {
            // Lines that were not rendered before the listener came may have matched its filter.
            own.n_lost += line.number.min(own.since).saturating_sub(own.next);
            own.next = line.number;
            if own.filter.wants(&line.facets) {
                if own.n_lost > 0 {
                    break;
                }
                own.next += 1;
                return NextLine::Line(line.text.clone());
            }
            own.next += 1;
        }
        if own.n_lost > 0 {
            return NextLine::Lost(std::mem::take(&mut own.n_lost));
        }
        if *is_closed {
            return NextLine::End;
        }
        own.waker = Some(waker.clone());
        NextLine::Later
    }
}

impl Drop for ScoreListener {
    fn drop(&mut self) {
        let mut state = self.stream.state.lock();
        state.listeners.retain(|it| it.id != self.id);
    }
}

// === Lines ===

/// The latest lines that were rendered, oldest first.
#[derive(Debug, Default)]
struct Lines {
    stored: VecDeque<Line>,
    n_bytes: usize,
    /// Number of lines ever, with those that were not rendered.
    n_lines: u64,
    /// The current second, and the number of evaluations in it.
    second: u64,
    n_in_second: usize,
}

#[derive(Debug)]
struct Line {
    number: u64,
    text: Bytes,
    facets: Facets,
}

impl Lines {
    /// Counts an evaluation. Returns true if it is rendered even without a listener.
    fn is_recent(&mut self, second: u64) -> bool {
        if self.second != second {
            (self.second, self.n_in_second) = (second, 0);
        }
        self.n_in_second += 1;
        self.n_in_second <= MAX_RECENT_A_SECOND
    }
}

// === ScoreFilter ===

/// The properties that filters match.
#[derive(Debug)]
struct Facets {
    criterion: JudgedBy,
    label: Verdict,
    service: Arc<str>,
    agent: Option<Arc<str>>,
    is_of_alarm: bool,
}

impl Facets {
    fn of(evaluation: &Evaluation, is_of_alarm: bool) -> Self {
        Self {
            criterion: evaluation.criterion.clone(),
            label: evaluation.verdict,
            service: evaluation.trajectory.service.clone(),
            agent: evaluation.trajectory.agent.clone(),
            is_of_alarm,
        }
    }
}

impl ScoreFilter {
    fn wants(&self, facets: &Facets) -> bool {
        let any = |globs: &[String], text: &str| {
            globs.is_empty() || globs.iter().any(|glob| glob_matches(glob, text))
        };
        self.alarms == facets.is_of_alarm
            && (self.label.is_empty() || self.label.contains(&facets.label))
            && any(&self.criterion, facets.criterion.name())
            && any(&self.service, &facets.service)
            && any(&self.agent, facets.agent.as_deref().unwrap_or_default())
    }
}
