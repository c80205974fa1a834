//! A judged partition: its queued records, its log judge, and its commits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use judge::pipeline::{LogBatch, LogJudge, LogMark, LogStart};
use otlp::span::{Batch, Now, TraceId};
use otlp::{json, scan};

use super::TopicJudges;
use super::set_aside::set_aside;
use super::status::PartitionStatus;
use crate::config::{KafkaPartitioner, KafkaStart};
use crate::kafka::{CommittedOffset, ReadRecord, decode_progress, encode_progress, partition_of};
use crate::sidecar::judgements::JudgeSink;
use crate::sidecar::now;
use crate::telemetry::{
    ProgressUnknown, SpansLate, SpansMisplaced, SpansWithoutIds, TimestampInFuture,
};

const MILLI: u64 = 1_000_000;

/// Maximum lead of a record's timestamp over our clock. A record to which its writer gave a later
/// timestamp counts as arriving now.
const MAX_AHEAD: Duration = Duration::from_secs(5);

/// Age of records in nanoseconds from which the judge counts as behind.
const BEHIND: u64 = 10_000 * MILLI;

/// Maximum time in nanoseconds that one commit allows judgements to run ahead of the log's time.
const ALLOWANCE: u64 = 5_000 * MILLI;

/// Replaces [`ALLOWANCE`] while the judge is behind, and so reads the log faster than it was
/// written.
const ALLOWANCE_BEHIND: u64 = 60_000 * MILLI;

/// Delay before a record that could not be set aside is sent again.
const SET_ASIDE_RETRY: Duration = Duration::from_secs(1);

/// An assigned partition, as the brokers describe it.
pub(super) struct FoundPartition {
    pub(super) number: i32,
    /// The group's commit for this partition.
    pub(super) committed: Option<CommittedOffset>,
    /// True if the partition was added after the group began to read the topic.
    pub(super) is_added: bool,
    /// The first offset, and one more than the last offset.
    pub(super) ends: (u64, u64),
}

pub(super) struct JudgedPartition {
    pub(super) number: i32,
    pub(super) judge: LogJudge,
    pub(super) inbox: VecDeque<ReadRecord>,
    /// Minimum offset to commit: the offset that the previous owner had reached.
    floor: u64,
    /// The last mark whose judgements have all been delivered or dropped.
    left: Option<LogMark>,
    /// Later marks, each with a ticket number. The mark's judgements are delivered once all scores
    /// with lower ticket numbers are delivered.
    leaving: VecDeque<(u64, LogMark)>,
    last_mark: Option<LogMark>,
    /// Unix time in nanoseconds up to which the last commit allows judgements.
    allowed_until: u64,
    /// The time up to which the next commit must allow judgements (Unix nanoseconds). `None` unless
    /// judging waits for that commit.
    pub(super) wants_until: Option<u64>,
    /// One more than the offset of the last record, as its leader last reported it.
    pub(super) end: u64,
    /// Unix time in nanoseconds up to which all records are in `inbox` or judged.
    pub(super) known_until: u64,
    /// True if the brokers did not answer the last query for the end of the log.
    pub(super) is_unanswered: bool,
    /// Time of the next query to the leader.
    pub(super) query_at: Instant,
    /// The last commit that the brokers accepted.
    committed: Option<CommittedOffset>,
    /// The commit in flight, and the time up to which it allows judging.
    sent: Option<(CommittedOffset, u64)>,
    /// Time of the next attempt to set the first record of `inbox` aside, after a failure.
    set_aside_at: Instant,
    /// The topic's number of partitions when the group began to read this partition. Partitions
    /// with this number or a higher one were added later.
    n_at_start: Option<i32>,
}

impl JudgedPartition {
    /// Starts at the group's progress, or without progress as `kafka.read.start` requests. Starts
    /// at the oldest record if the log has already deleted the record to start at.
    pub(super) fn new(found: FoundPartition, shared: &TopicJudges) -> Self {
        let time = now();
        let (number, end) = (found.number, found.ends.1);
        let (start, floor, n_at_start) = start_of(found, shared);
        let allowed_until = start.inherited.map_or(0, |it| it.until_unix_nanos);
        Self {
            number,
            judge: LogJudge::new(shared.settings.clone(), shared.limits, start, time.instant),
            inbox: VecDeque::new(),
            floor,
            left: None,
            leaving: VecDeque::new(),
            last_mark: None,
            allowed_until,
            wants_until: None,
            end,
            known_until: time.unix_nanos,
            is_unanswered: false,
            query_at: time.instant,
            committed: None,
            sent: None,
            set_aside_at: time.instant,
            n_at_start,
        }
    }

    /// Judges the queued records until none is left, or until a record must wait for space, for a
    /// commit or for the set-aside topic.
    pub(super) fn work(&mut self, sink: &mut JudgeSink, shared: &TopicJudges) {
        self.wants_until = None;
        if now().instant < self.set_aside_at {
            return;
        }
        while let Some(record) = self.inbox.front() {
            let arrival = arrival_of(record, shared);
            if !self.judge_by(arrival, sink, shared) {
                return;
            }
            let Some(record) = self.inbox.pop_front() else {
                return;
            };
            let Some((batch, torn)) = self.read(&record, sink, shared) else {
                self.inbox.push_front(record);
                return;
            };
            let n_spans = batch.n_without_ids;
            SpansWithoutIds { n_spans }.emit(&shared.telemetry);
            self.known_until = arrival;
            let record = LogBatch {
                offset: record.offset,
                unix_nanos: arrival,
                batch,
                torn,
            };
            let rules = Arc::clone(&sink.rules);
            let intake = self.judge.take(record, &rules, sink);
            SpansLate {
                n_taken: intake.n_late,
                n_refused: intake.n_too_late,
                n_forgotten: intake.n_forgotten,
            }
            .emit(&shared.telemetry);
        }
    }

    /// Judges everything that is due at `unix_nanos`. Returns true if all of it was judged and
    /// there is space for more.
    fn judge_by(&mut self, unix_nanos: u64, sink: &mut JudgeSink, shared: &TopicJudges) -> bool {
        let by = unix_nanos.max(self.judge.clock());
        if by > self.allowed_until {
            self.wants_until = Some(by);
            return false;
        }
        let rules = Arc::clone(&sink.rules);
        while self.judge.next_due().is_some_and(|due| due <= by) {
            if !shared.exporter.has_room() {
                return false;
            }
            self.judge.judge_next(by, &rules, sink);
        }
        shared.exporter.has_room()
    }

    /// Processes the leader's answer to a query at time `asked`: the log ends at `end`.
    pub(super) fn note_end(
        &mut self,
        end: u64,
        asked: u64,
        sink: &mut JudgeSink,
        shared: &TopicJudges,
    ) {
        self.end = end;
        self.is_unanswered = false;
        let is_at_end = self.inbox.is_empty() && end == self.judge.next_offset();
        if is_at_end {
            self.known_until = self.known_until.max(asked);
        }
        if is_at_end && self.is_due(asked) && self.judge_by(asked, sink, shared) {
            let rules = Arc::clone(&sink.rules);
            self.judge.advance(asked, &rules, sink);
        }
    }

    /// Returns true if a judgement is due by this time and no record is queued.
    pub(super) fn is_due(&self, unix_nanos: u64) -> bool {
        self.inbox.is_empty() && self.judge.next_due().is_some_and(|due| due <= unix_nanos)
    }

    /// Returns true if all records before the last reported end of the log were read.
    pub(super) fn may_be_at_end(&self) -> bool {
        self.judge.next_offset() >= self.end
    }

    /// Adds a mark, to be committed when everything judged so far is delivered. Returns false if
    /// the mark would equal the last one, or if a judgement is due.
    pub(super) fn mark(&mut self) -> bool {
        let clock = self.judge.clock();
        let is_due = self.judge.next_due().is_some_and(|due| due <= clock);
        let new = self.judge.mark().filter(|_| !is_due);
        let Some(mark) = new.filter(|mark| self.last_mark != Some(*mark)) else {
            return false;
        };
        self.last_mark = new;
        self.leaving.push_back((u64::MAX, mark));
        true
    }

    /// Records that the scores of the marks so far have ticket numbers below `below`.
    pub(super) fn leaves(&mut self, below: u64) {
        for (wanted, _) in &mut self.leaving {
            *wanted = below.min(*wanted);
        }
    }

    /// Records that all scores with ticket numbers below `low` are delivered or dropped.
    pub(super) fn delivered(&mut self, low: u64) {
        while let Some((_, mark)) = self.leaving.pop_front_if(|(below, _)| *below <= low) {
            self.left = Some(mark);
        }
    }

    /// Returns the commit to send; `None` if it would equal the last one.
    pub(super) fn next_commit(&mut self, is_last: bool, time: Now) -> Option<CommittedOffset> {
        let clock = self.judge.clock();
        let left = self.left;
        let until = if !is_last {
            let at = clock.max(self.wants_until.unwrap_or(0));
            let is_behind = at.saturating_add(BEHIND) < time.unix_nanos;
            at.saturating_add(if is_behind { ALLOWANCE_BEHIND } else { ALLOWANCE })
        } else if left.is_some_and(|left| left.judged.unix_nanos >= clock) {
            // All scores are delivered or dropped, and no further scores will be made.
            clock
        } else {
            self.allowed_until
        };
        let progress = self.judge.progress(left, until);
        let committed = CommittedOffset {
            offset: self.floor.max(self.judge.next_offset()),
            metadata: encode_progress(&progress, self.n_at_start),
        };
        self.sent = Some((committed.clone(), progress.until_unix_nanos));
        Some(committed).filter(|new| self.committed.as_ref() != Some(new))
    }

    /// Processes the outcome of the commit in flight.
    pub(super) fn commit_ended(&mut self, is_taken: bool) {
        if let Some((commit, until)) = self.sent.take().filter(|_| is_taken) {
            self.allowed_until = self.allowed_until.max(until);
            self.committed = Some(commit);
        }
    }

    pub(super) fn status(&self, time: Now) -> PartitionStatus {
        let next = self.judge.next_offset();
        let waiting = self.inbox.front().and_then(|record| record.unix_millis);
        // A record that was not read yet has arrived after `known_until`.
        let unanswered = self.is_unanswered.then_some(self.known_until / MILLI);
        let since = waiting.or(unanswered);
        let behind = since.map_or(0, |millis| (time.unix_nanos / MILLI).saturating_sub(millis));
        let end = self
            .inbox
            .back()
            .map_or(self.end, |last| self.end.max(last.offset + 1));
        PartitionStatus {
            n_behind: end.saturating_sub(next),
            behind_millis: behind,
            stats: self.judge.stats(),
            n_replay: self
                .last_mark
                .map_or(0, |mark| next.saturating_sub(mark.replay)),
        }
    }

    /// Returns the spans of a record, and the record's traces that belong in another partition.
    /// Both are empty for an unreadable record. `None` if the record could not be set aside.
    fn read(
        &mut self,
        record: &ReadRecord,
        sink: &mut JudgeSink,
        shared: &TopicJudges,
    ) -> Option<(Batch, Vec<TraceId>)> {
        match batch_of(&record.value, sink) {
            Ok(batch) => {
                let torn = self.misplaced(&batch, record.offset, shared);
                Some((batch, torn))
            }
            // The previous owner has already set aside the unreadable records below `floor`.
            Err(why) if record.offset >= self.floor && !set_aside(record, &why, shared) => {
                self.set_aside_at = now().instant + SET_ASIDE_RETRY;
                None
            }
            Err(_) => Some((Batch::default(), Vec::new())),
        }
    }

    fn misplaced(&self, batch: &Batch, offset: u64, shared: &TopicJudges) -> Vec<TraceId> {
        let n_partitions = shared.n_partitions();
        let partitioner = shared.config.write.partitioner;
        let is_elsewhere = |trace_id: &TraceId, partitioner| {
            n_partitions > 0 && partition_of(*trace_id, partitioner, n_partitions) != self.number
        };
        let mut ids: Vec<TraceId> = batch.spans.iter().map(|span| span.trace_id).collect();
        ids.dedup();
        ids.retain(|trace_id| is_elsewhere(trace_id, partitioner));
        let Some(first) = ids.first() else {
            return ids;
        };
        let other = match partitioner {
            KafkaPartitioner::SaramaCompat => (KafkaPartitioner::Murmur2, "murmur2"),
            KafkaPartitioner::Murmur2 => (KafkaPartitioner::SaramaCompat, "sarama_compat"),
        };
        SpansMisplaced {
            topic: &shared.config.read.topic,
            partition: self.number,
            offset,
            n_traces: ids.len(),
            would_fit: (!is_elsewhere(first, other.0)).then_some(other.1),
            is_logged: shared.may_log("misplaced"),
        }
        .emit(&shared.telemetry);
        ids
    }
}

/// Returns the position to start at, the offset that the previous owner had reached, and the number
/// of partitions when the group began to read this partition.
fn start_of(found: FoundPartition, shared: &TopicJudges) -> (LogStart, u64, Option<i32>) {
    let (low, high) = found.ends;
    let (from, floor, inherited, n_at_start) = match found.committed {
        None => {
            let is_latest = shared.config.read.start == KafkaStart::Latest && !found.is_added;
            let offset = if is_latest { high } else { low };
            (offset, offset, None, Some(shared.n_partitions()))
        }
        Some(CommittedOffset { offset, metadata }) => match decode_progress(&metadata) {
            Ok((progress, of)) => (progress.mark.replay.max(low), offset, Some(progress), of),
            Err(why) => {
                let partition = found.number;
                ProgressUnknown {
                    partition,
                    offset,
                    why,
                }
                .emit();
                (offset.max(low), offset.max(low), None, None)
            }
        },
    };
    let start = LogStart {
        offset: from,
        is_beginning: from == 0,
        inherited,
    };
    (start, floor, n_at_start)
}

/// Returns the time of a record's arrival in Unix nanoseconds.
fn arrival_of(record: &ReadRecord, shared: &TopicJudges) -> u64 {
    let time = now().unix_nanos;
    let Some(millis) = record.unix_millis else {
        return time / MILLI * MILLI;
    };
    let stamped = millis.saturating_mul(MILLI);
    let latest = time.saturating_add(MAX_AHEAD.as_nanos() as u64);
    if !record.is_log_append && stamped > latest {
        if shared.may_log("stamp") {
            let topic = &shared.config.read.topic;
            TimestampInFuture { topic }.emit();
        }
        return time / MILLI * MILLI;
    }
    stamped
}

fn batch_of(value: &[u8], sink: &JudgeSink) -> Result<Batch, String> {
    let rules = &*sink.rules;
    let scanned = match value.first() {
        Some(b'{') => {
            let body = json::traces(value).map_err(|error| error.to_string())?;
            scan::scan(&body, Some(rules))
        }
        _ => scan::scan(value, Some(rules)),
    };
    let scanned = scanned.map_err(|error| error.to_string())?;
    Ok(scanned.batch)
}
