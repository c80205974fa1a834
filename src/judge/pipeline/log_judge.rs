//! Judges a log, whose records arrive in order, each with its offset and its time of arrival. The
//! judgements and their times depend on the records, the rules and the settings, but on no clock.
//! Computes where the log's next reader, the successor, must begin, and which judgements it must
//! not report again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use otlp::span::{Batch, Now, TraceId};

use super::judged::{Judged, JudgementSink};
use super::{Pipeline, Rules, Taken};
use crate::assemble::{CloseReason, Settings, Sizes, Stats};

/// Limits on how far back a successor reads.
#[derive(Debug, Clone, Copy)]
pub struct LogLimits {
    /// A successor begins to read this long before the oldest open trace, so that late spans find
    /// their traces.
    pub overlap: Duration,
    /// Maximum age of an open trace that a successor reads from its first record.
    pub max_replay: Duration,
}

/// A moment of a log: all records below an offset were read, and everything due by a time was
/// judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogMoment {
    /// The log's time, in Unix nanoseconds, by which everything due was judged.
    pub unix_nanos: u64,
    pub offset: u64,
}

/// The state that a successor needs at a moment whose judgements have all been delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogMark {
    /// The offset at which reading begins.
    pub replay: u64,
    /// The first record of the oldest trace that was open at `judged`; the next record if no trace
    /// was open; `replay` if the trace is too old to be read again. If a successor sees a trace
    /// that begins earlier as open at `judged`, the trace was already reported, and the successor
    /// has read only the end of it.
    pub open: u64,
    pub judged: LogMoment,
}

/// The progress that a reader commits for its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogProgress {
    /// Defines where reading begins, and which judgements are not reported again.
    pub mark: LogMark,
    /// An upper bound of the due times of all reported judgements, in Unix nanoseconds.
    pub until_unix_nanos: u64,
}

/// The position at which a reader begins.
#[derive(Debug, Clone, Copy)]
pub struct LogStart {
    pub offset: u64,
    /// True if the log never had an earlier record.
    pub is_beginning: bool,
    pub inherited: Option<LogProgress>,
}

#[derive(Debug)]
pub struct LogJudge {
    settings: Settings,
    limits: LogLimits,
    start: LogStart,
    /// An arbitrary instant from which the log's time is counted.
    anchor: Instant,
    /// `None` until the first record or the first call of [`LogJudge::advance`].
    running: Option<Running>,
    next: u64,
}

#[derive(Debug)]
struct Running {
    pipeline: Pipeline,
    /// The log's time at the anchor, in Unix nanoseconds.
    anchored: u64,
    /// The log's time, in Unix nanoseconds.
    clock: u64,
    /// True once the log's time has passed the moment up to which the predecessor reported
    /// everything.
    is_past_judged: bool,
    /// Samples of arrival times and offsets of records: oldest first, at least one.
    samples: VecDeque<(u64, u64)>,
}

const SAMPLE_INTERVAL: u64 = 1_000_000_000;

impl LogJudge {
    /// Creates a judge that has read nothing. `anchor` is an arbitrary instant.
    pub fn new(settings: Settings, limits: LogLimits, start: LogStart, anchor: Instant) -> Self {
        Self {
            settings,
            limits,
            start,
            anchor,
            running: None,
            next: start.offset,
        }
    }

    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Returns the log's time in Unix nanoseconds; 0 until the first record or [`Self::advance`].
    pub fn clock(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.clock)
    }

    /// Returns the time of the next judgement in Unix nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        let running = self.running.as_ref()?;
        let at = running.pipeline.next_deadline()?;
        let since = at.saturating_duration_since(self.anchor).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        Some(running.anchored.saturating_add(since).max(running.clock))
    }

    /// Judges everything due at the next deadline, if the deadline is not after `unix_nanos`.
    /// Returns true if there was such a deadline.
    pub fn judge_next(
        &mut self,
        unix_nanos: u64,
        rules: &Rules,
        sink: &mut impl JudgementSink,
    ) -> bool {
        let Some(due) = self.next_due().filter(|due| *due <= unix_nanos) else {
            return false;
        };
        self.pass_judged(LogMoment {
            unix_nanos: due,
            offset: self.next,
        });
        let (mut gate, at) = (self.gate(due, sink), self.at(due));
        if let Some(running) = &mut self.running {
            running.clock = due;
            running.pipeline.advance_into(rules, at, &mut gate);
        }
        true
    }

    /// Inserts a record, and judges everything due by its arrival, before and after the insertion.
    /// The log's time never decreases. Offsets may be skipped. A record that was read before is
    /// ignored.
    pub fn take(
        &mut self,
        record: LogBatch,
        rules: &Rules,
        sink: &mut impl JudgementSink,
    ) -> Taken {
        let LogBatch {
            offset,
            unix_nanos,
            batch,
            torn,
        } = record;
        if offset < self.next {
            return Taken::default();
        }
        self.begin(unix_nanos, offset);
        let arrival = unix_nanos.max(self.clock());
        while self.judge_next(arrival, rules, sink) {}
        let judged = self.judged();
        if offset >= judged.offset {
            self.pass_judged(LogMoment {
                unix_nanos: u64::MAX,
                offset,
            });
        }
        self.next = offset + 1;
        let (mut gate, at) = (self.gate(arrival, sink), self.at(arrival));
        let Some(running) = &mut self.running else {
            return Taken::default();
        };
        running.clock = arrival;
        running.sample(arrival, offset, &self.limits);
        if !torn.is_empty() {
            running.pipeline.mark_unscored(&torn, at);
        }
        let taken = running
            .pipeline
            .take_record(rules, batch, offset, at, &mut gate);
        while self.judge_next(arrival, rules, sink) {}
        taken
    }

    /// Advances the log's time to `unix_nanos`, and judges everything due by that time. All records
    /// that arrived earlier must have been inserted.
    pub fn advance(&mut self, unix_nanos: u64, rules: &Rules, sink: &mut impl JudgementSink) {
        self.begin(unix_nanos, self.next);
        while self.judge_next(unix_nanos, rules, sink) {}
        if let Some(running) = &mut self.running {
            running.clock = running.clock.max(unix_nanos);
        }
    }

    /// Returns the state that a successor needs once all judgements so far are delivered.
    /// Everything due by the log's time must have been judged. `None` until the first record or
    /// [`Self::advance`].
    pub fn mark(&self) -> Option<LogMark> {
        let running = self.running.as_ref()?;
        let judged = LogMoment {
            unix_nanos: running.clock,
            offset: self.next,
        };
        let oldest = running.pipeline.oldest_open_record();
        let oldest = oldest.unwrap_or(self.next);
        let limits = &self.limits;
        let horizon = running.offset_at(running.clock.saturating_sub(nanos(limits.max_replay)));
        let (open, replay) = if oldest < horizon {
            // A trace that seems to begin at the horizon may be the rest of an open trace, so no
            // trace counts as reported.
            (horizon, horizon)
        } else {
            let overlap = running
                .time_of(oldest)
                .saturating_sub(nanos(limits.overlap));
            (oldest, running.offset_at(overlap).min(oldest))
        };
        Some(LogMark {
            replay,
            open,
            judged,
        })
    }

    /// Returns the progress to commit once all judgements up to `left` are delivered.
    /// `until_unix_nanos` is an upper bound of the due times of all reported judgements.
    pub fn progress(&self, left: Option<LogMark>, until_unix_nanos: u64) -> LogProgress {
        let inherited = self.start.inherited.unwrap_or(LogProgress {
            mark: LogMark {
                replay: self.start.offset,
                open: self.start.offset,
                judged: LogMoment::default(),
            },
            until_unix_nanos: 0,
        });
        let left = left.filter(|left| left.judged > inherited.mark.judged);
        LogProgress {
            mark: left.unwrap_or(inherited.mark),
            until_unix_nanos: until_unix_nanos.max(inherited.until_unix_nanos),
        }
    }

    pub fn resize(&mut self, sizes: Sizes) {
        self.settings.size_limit = sizes.trace;
        self.settings.max_open_size = sizes.open;
        self.settings.max_recent_size = sizes.recent;
        let at = self.at(self.clock());
        if let Some(running) = &mut self.running {
            running.pipeline.resize(sizes, at);
        }
    }

    pub fn stats(&self) -> Stats {
        let running = self.running.as_ref();
        running.map_or_else(Stats::default, |running| running.pipeline.stats())
    }

    fn judged(&self) -> LogMoment {
        let inherited = self.start.inherited.as_ref();
        inherited.map_or_else(LogMoment::default, |it| it.mark.judged)
    }

    /// Starts the pipeline unless it runs. Its trace history begins at this time, or at 0 if the
    /// log never had an earlier record.
    fn begin(&mut self, unix_nanos: u64, offset: u64) {
        if self.running.is_some() {
            return;
        }
        let now = Now {
            instant: self.anchor,
            unix_nanos,
        };
        let mut pipeline = Pipeline::new(self.settings.clone(), now);
        pipeline.cross_traces.without_history();
        if self.start.is_beginning {
            pipeline.restore_memory(0);
        }
        self.running = Some(Running {
            pipeline,
            anchored: unix_nanos,
            clock: unix_nanos,
            is_past_judged: self.start.inherited.is_none(),
            samples: VecDeque::from([(unix_nanos, offset)]),
        });
    }

    /// Drops the open traces that were not open at the predecessor's last moment: the predecessor
    /// reported them, and their beginning was not read. Called before anything later than that
    /// moment is processed.
    fn pass_judged(&mut self, moment: LogMoment) {
        let Some(inherited) = self.start.inherited else {
            return;
        };
        if moment <= inherited.mark.judged {
            return;
        }
        let at = self.at(self.clock());
        if let Some(running) = &mut self.running
            && !std::mem::replace(&mut running.is_past_judged, true)
        {
            running.pipeline.forget_open_below(inherited.mark.open, at);
        }
    }

    fn at(&self, unix_nanos: u64) -> Now {
        let running = self.running.as_ref();
        let anchored = running.map_or(unix_nanos, |running| running.anchored);
        Now {
            instant: self.anchor + Duration::from_nanos(unix_nanos.saturating_sub(anchored)),
            unix_nanos,
        }
    }

    fn gate<'a, S>(&self, due: u64, sink: &'a mut S) -> Gate<'a, S> {
        let moment = LogMoment {
            unix_nanos: due,
            offset: self.next,
        };
        let inherited = self.start.inherited.as_ref();
        Gate {
            sink,
            was_reported: inherited.is_some_and(|it| moment <= it.mark.judged),
            may_be_reported: inherited.is_some_and(|it| due <= it.until_unix_nanos),
        }
    }
}

#[derive(Debug, Default)]
pub struct LogBatch {
    pub offset: u64,
    /// The time of arrival in Unix nanoseconds.
    pub unix_nanos: u64,
    pub batch: Batch,
    /// Traces whose other spans may be in another log.
    pub torn: Vec<TraceId>,
}

impl Running {
    fn sample(&mut self, unix_nanos: u64, offset: u64, limits: &LogLimits) {
        let (last, _) = self.samples.back().copied().unwrap_or_default();
        if unix_nanos >= last + SAMPLE_INTERVAL {
            self.samples.push_back((unix_nanos, offset));
        }
        let needed = nanos(limits.max_replay).saturating_add(nanos(limits.overlap));
        let oldest = unix_nanos.saturating_sub(needed);
        while self.samples.get(1).is_some_and(|(at, _)| *at <= oldest) {
            self.samples.pop_front();
        }
    }

    /// Returns the offset of a record that arrived no later than this time, or else the offset of
    /// the oldest sample.
    fn offset_at(&self, unix_nanos: u64) -> u64 {
        let n_before = self.samples.partition_point(|(at, _)| *at <= unix_nanos);
        let sample = self.samples.get(n_before.saturating_sub(1));
        sample.map_or(0, |(_, offset)| *offset)
    }

    /// Returns a time no later than the arrival of the record with this offset, or else the time of
    /// the oldest sample.
    fn time_of(&self, offset: u64) -> u64 {
        let n_before = self.samples.partition_point(|(_, at)| *at <= offset);
        let sample = self.samples.get(n_before.saturating_sub(1));
        sample.map_or(0, |(unix_nanos, _)| *unix_nanos)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Drops judgements that the predecessor reported, and marks judgements that it may have reported.
struct Gate<'a, S> {
    sink: &'a mut S,
    was_reported: bool,
    may_be_reported: bool,
}

impl<S: JudgementSink> JudgementSink for Gate<'_, S> {
    fn take(&mut self, slice: &mut Judged) {
        if self.was_reported {
            // A trace that is evicted here may have remained open at a predecessor with more
            // memory, and then was not reported.
            slice.retain(|evaluation| evaluation.trajectory.completeness == CloseReason::Evicted);
        }
        if self.may_be_reported {
            for evaluation in slice.evaluations.iter_mut().chain(&mut slice.alarms) {
                evaluation.replayed = true;
            }
        }
        self.sink.take(slice);
    }

    fn beat(&mut self) {
        self.sink.beat();
    }
}
