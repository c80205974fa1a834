//! A member of the consumer group, on a separate thread. It polls, judges its partitions, commits,
//! and hands revoked partitions over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{mem, thread};

use judge::pipeline::JudgementSink;

use super::TopicJudges;
use super::partition::{FoundPartition, JudgedPartition};
use crate::config::KafkaProtocol;
use crate::kafka::{CommittedOffset, Polled, ReaderChange, TopicReader, decode_progress};
use crate::sidecar::judgements::JudgeSink;
use crate::sidecar::now;
use crate::telemetry::{CommitEnded, PartitionsMoved, Phase};

/// Interval at which marks are created, commits are sent, and memory is divided.
const TICK: Duration = Duration::from_secs(1);

/// Maximum wait for a record.
const MAX_POLL: Duration = Duration::from_millis(50);

/// Maximum number of records that are polled in a row.
const RECORDS_AT_ONCE: usize = 256;

/// Assumed maximum lag of a leader's clock behind ours, in nanoseconds.
const LEADERS_CLOCK: u64 = 500_000_000;

/// Interval between queries to a leader for the end of its log, while a judgement is due.
const QUERY_DUE: Duration = Duration::from_millis(200);

/// Interval between queries to a leader for the end of its log, while no judgement is due.
const QUERY_IDLE: Duration = Duration::from_secs(5);

/// Time after which polling continues, even if further leaders are to be queried.
const MAX_QUERY_TIME: Duration = Duration::from_millis(50);

/// Delay before a failed query is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// Maximum time for delivering scores before revoked partitions are handed over.
const HANDOVER: Duration = Duration::from_secs(5);

/// Interval at which a hand-over checks whether all scores are delivered.
const LEFT_POLL: Duration = Duration::from_millis(20);

pub(super) struct Member {
    /// The number of this thread.
    index: usize,
    protocol: KafkaProtocol,
    /// True while the reader is connected to a broker.
    is_connected: Arc<AtomicBool>,
    reader: TopicReader,
    sink: JudgeSink,
    shared: Arc<TopicJudges>,
    held: BTreeMap<i32, JudgedPartition>,
    /// Assigned partitions that the member has not begun to read, one list for each assignment.
    to_begin: Vec<Vec<i32>>,
    /// Time of the next attempt after a failure.
    retry_at: Instant,
    commit_at: Instant,
    /// True while a commit is in flight; a member has at most one.
    is_committing: bool,
    paused: Vec<i32>,
    has_joined: bool,
}

impl Member {
    /// # Errors
    /// Returns an error if the client library rejects a setting.
    pub(super) fn new(
        index: usize,
        sink: JudgeSink,
        shared: Arc<TopicJudges>,
    ) -> Result<Self, String> {
        let protocol = shared.config.read.protocol;
        let is_connected = shared.telemetry.kafka_client("judge");
        Ok(Self {
            index,
            protocol,
            reader: shared.reader(index, protocol, &is_connected)?,
            is_connected,
            sink,
            shared,
            held: BTreeMap::new(),
            to_begin: Vec::new(),
            retry_at: now().instant,
            commit_at: now().instant,
            is_committing: false,
            paused: Vec::new(),
            has_joined: false,
        })
    }

    /// Judges until a stop begins.
    pub(super) fn run(mut self) {
        if self.wait_for_topic() {
            let mut tick_at = now().instant;
            while !self.shared.is_stopping() {
                self.sink.beat();
                self.sink.rules = self.shared.rules.load_full();
                self.poll();
                for change in self.reader.changes() {
                    self.follow(change);
                }
                // With the protocol `consumer`, the client library does not report an empty
                // assignment.
                if self.protocol != KafkaProtocol::Classic && self.reader.has_found_group() {
                    self.note_joined();
                }
                self.begin_assigned();
                for partition in self.held.values_mut() {
                    self.sink.beat();
                    partition.work(&mut self.sink, &self.shared);
                }
                self.query_leaders();
                if now().instant >= tick_at {
                    tick_at = now().instant + TICK;
                    self.tick();
                }
                self.commit_if_due();
                self.pause_or_resume();
            }
        }
        let all: Vec<i32> = self.held.keys().copied().collect();
        self.hand_over(&all);
        let Self { reader, sink, .. } = self;
        reader.leave();
        sink.heartbeat.finish();
    }

    /// Waits until the topic exists, and subscribes to it. Returns false if a stop begins first.
    fn wait_for_topic(&mut self) -> bool {
        while !self.shared.is_stopping() {
            self.sink.beat();
            match self.reader.join() {
                Ok(n_partitions) => {
                    self.shared.found_partitions(n_partitions);
                    return true;
                }
                Err(why) => self.shared.failed(&why),
            }
            thread::park_timeout(RETRY);
        }
        false
    }

    fn poll(&mut self) {
        let is_waiting = self.held.values().any(|it| !it.inbox.is_empty());
        let mut timeout = if is_waiting { MAX_POLL / 5 } else { MAX_POLL };
        for _ in 0..RECORDS_AT_ONCE {
            match self.reader.poll(timeout) {
                Polled::Record(record) => {
                    if let Some(partition) = self.held.get_mut(&record.partition) {
                        partition.inbox.push_back(record);
                    }
                }
                Polled::Failed(why) => self.shared.failed(&why),
                Polled::Ended {
                    why,
                    is_unsupported,
                } => return self.join_anew(&why, is_unsupported),
                Polled::Nothing => return,
            }
            timeout = Duration::ZERO;
        }
    }

    /// Joins the group again after the library has ended the membership. Other members may already
    /// own the partitions.
    fn join_anew(&mut self, why: &str, is_unsupported: bool) {
        if is_unsupported && self.protocol == KafkaProtocol::Auto {
            self.protocol = KafkaProtocol::Classic;
        } else {
            self.shared.failed(why);
            thread::park_timeout(RETRY);
        }
        let all: Vec<i32> = self.held.keys().copied().collect();
        self.lose(&all);
        self.to_begin.clear();
        self.paused.clear();
        self.is_committing = false;
        match (self.shared).reader(self.index, self.protocol, &self.is_connected) {
            Ok(reader) => {
                mem::replace(&mut self.reader, reader).leave();
                self.wait_for_topic();
            }
            Err(why) => self.shared.failed(&why),
        }
    }

    /// Marks this member as joined. The process is ready once all members have joined.
    fn note_joined(&mut self) {
        if !mem::replace(&mut self.has_joined, true)
            && self.shared.n_joining.fetch_sub(1, Ordering::AcqRel) == 1
            && self.shared.telemetry.phase() == Phase::Starting
        {
            self.shared.telemetry.enter(Phase::Serving);
        }
    }

    fn follow(&mut self, change: ReaderChange) {
        match change {
            ReaderChange::Assigned(partitions) => {
                self.note_joined();
                self.to_begin.push(partitions);
            }
            ReaderChange::Revoked {
                partitions,
                is_lost,
            } => {
                for assigned in &mut self.to_begin {
                    assigned.retain(|number| !partitions.contains(number));
                }
                self.to_begin.retain(|assigned| !assigned.is_empty());
                if is_lost {
                    // The new owners continue from the last commit.
                    self.lose(&partitions);
                } else {
                    self.hand_over(&partitions);
                }
                if let Err(why) = self.reader.release(&partitions) {
                    self.shared.failed(&why);
                }
            }
            ReaderChange::Committed(is_taken) => {
                self.is_committing = false;
                CommitEnded { is_taken }.emit(&self.shared.telemetry);
                for partition in self.held.values_mut() {
                    partition.commit_ended(is_taken);
                }
            }
        }
    }

    /// Begins to read the assigned partitions, once the brokers have returned their offsets.
    fn begin_assigned(&mut self) {
        if self.to_begin.is_empty() || now().instant < self.retry_at {
            return;
        }
        for partitions in mem::take(&mut self.to_begin) {
            match self.begin(&partitions) {
                Ok(()) if partitions.is_empty() => {}
                Ok(()) => self.moved("taken", &partitions),
                Err(why) => {
                    self.shared.failed(&why);
                    self.retry_at = now().instant + RETRY;
                    self.to_begin.push(partitions);
                }
            }
        }
    }

    fn begin(&mut self, partitions: &[i32]) -> Result<(), String> {
        let n_partitions = self.reader.n_partitions()?;
        self.shared.found_partitions(n_partitions);
        let starts = self.reader.starts(partitions)?;
        let ends = starts.into_iter().zip(self.reader.ends(partitions)?);
        self.sink.beat();
        let n_known = partitions.iter().map(|number| number + 1).max();
        let all: Vec<i32> = (0..n_partitions.max(n_known.unwrap_or(0))).collect();
        let is_empty = partitions.is_empty();
        let mut committed = if is_empty { BTreeMap::new() } else { self.reader.committed(&all)? };
        let decoded = committed.values();
        let decoded = decoded.filter_map(|it| decode_progress(&it.metadata).ok());
        let n_at_start = decoded.filter_map(|(_, of)| of).min();
        let (mut begun, mut begins) = (Vec::new(), Vec::new());
        self.sink.beat();
        for (number, ends) in partitions.iter().zip(ends) {
            let found = FoundPartition {
                number: *number,
                committed: committed.remove(number),
                is_added: n_at_start.is_some_and(|n| *number >= n),
                ends,
            };
            let partition = JudgedPartition::new(found, &self.shared);
            begins.push((*number, partition.judge.next_offset()));
            begun.push(partition);
        }
        self.reader.begin(&begins)?;
        let mut lost = self.shared.status.lost.lock();
        lost.retain(|_, (index, _)| *index != self.index);
        drop(lost);
        let mut statuses = self.shared.status.partitions.lock();
        for partition in begun {
            statuses.insert(partition.number, partition.status(now()));
            self.held.insert(partition.number, partition);
        }
        Ok(())
    }

    /// Queries leaders for the ends of their logs, usually every `QUERY_IDLE`. If no record is
    /// queued and a judgement is due, only the answer advances the log's time, so the leader is
    /// queried every `QUERY_DUE`. A query may block for as long as the library polls. After
    /// `MAX_QUERY_TIME`, the remaining queries wait for the next call, so the partitions that have
    /// waited longest are queried first.
    fn query_leaders(&mut self) {
        let begun = now();
        let by = begun.unix_nanos.saturating_sub(LEADERS_CLOCK);
        let due = self.held.values().filter_map(|partition| {
            let wait = if partition.may_be_at_end() && partition.is_due(by) {
                Duration::ZERO
            } else {
                QUERY_IDLE - QUERY_DUE
            };
            let at = partition.query_at + wait;
            (begun.instant >= at).then_some((at, partition.number))
        });
        let mut due: Vec<(Instant, i32)> = due.collect();
        due.sort_unstable();
        for (_, number) in due {
            let time = now();
            if time.instant.saturating_duration_since(begun.instant) > MAX_QUERY_TIME {
                return;
            }
            self.sink.beat();
            let ends = self.reader.ends(&[number]);
            let Some(partition) = self.held.get_mut(&number) else {
                continue;
            };
            match ends {
                Ok(ends) => {
                    partition.query_at = now().instant + QUERY_DUE;
                    let asked = time.unix_nanos.saturating_sub(LEADERS_CLOCK) / 1_000_000;
                    partition.note_end(ends[0], asked * 1_000_000, &mut self.sink, &self.shared);
                }
                Err(why) => {
                    partition.query_at = now().instant + RETRY;
                    self.shared.failed(&why);
                    // The next query may be sent much later, so the end of each log is unknown
                    // until then.
                    for partition in self.held.values_mut() {
                        partition.is_unanswered = true;
                    }
                }
            }
        }
    }

    /// Marks how far each partition is judged, and makes the exporter send the scores.
    fn tick(&mut self) {
        let sizes = self.shared.sizes();
        let mut is_marked = false;
        for partition in self.held.values_mut() {
            partition.judge.resize(sizes);
            is_marked |= partition.mark();
        }
        if is_marked {
            let below = self.shared.exporter.flush();
            self.held.values_mut().for_each(|it| it.leaves(below));
        }
        let time = now();
        let mut statuses = self.shared.status.partitions.lock();
        for (number, partition) in &self.held {
            statuses.insert(*number, partition.status(time));
        }
        drop(statuses);
        self.shared.report_use();
    }

    fn commit_if_due(&mut self) {
        // Every commit is answered, because the client library waits for the brokers only for a
        // limited time.
        if self.is_committing {
            return;
        }
        let time = now();
        let is_wanted = self.held.values().any(|it| it.wants_until.is_some());
        let is_urgent = is_wanted && time.instant >= self.retry_at;
        if time.instant < self.commit_at && !is_urgent {
            return;
        }
        self.commit_at = time.instant + TICK;
        let low = self.shared.exporter.low();
        let mut sent = Vec::new();
        for (number, partition) in &mut self.held {
            partition.delivered(low);
            let commit = partition.next_commit(false, time);
            sent.extend(commit.map(|commit| (*number, commit)));
        }
        if sent.is_empty() {
            return;
        }
        match self.reader.commit(&sent, false) {
            Ok(()) => self.is_committing = true,
            Err(why) => {
                self.retry_at = time.instant + RETRY;
                self.shared.failed(&why);
            }
        }
    }

    /// Pauses fetching for partitions with queued records, which wait for space in the queue of
    /// scores, for a commit or for the set-aside topic. Resumes all other partitions.
    fn pause_or_resume(&mut self) {
        let waiting = self.held.values().filter(|it| !it.inbox.is_empty());
        let waiting: Vec<i32> = waiting.map(|it| it.number).collect();
        if waiting == self.paused {
            return;
        }
        let is_held = |number: &&i32| self.held.contains_key(*number);
        let before = mem::replace(&mut self.paused, waiting);
        let resumed = before.iter().filter(|it| !self.paused.contains(it));
        let resumed: Vec<i32> = resumed.filter(is_held).copied().collect();
        let paused = self.paused.iter().filter(|it| !before.contains(it));
        let paused: Vec<i32> = paused.copied().collect();
        for (partitions, is_paused) in [(paused, true), (resumed, false)] {
            if !partitions.is_empty()
                && let Err(why) = self.reader.pause(&partitions, is_paused)
            {
                self.shared.failed(&why);
            }
        }
    }

    /// Delivers the scores of revoked partitions and commits. The new owner rebuilds their open
    /// traces.
    fn hand_over(&mut self, partitions: &[i32]) {
        let mut given = self.take(partitions);
        if given.is_empty() {
            return;
        }
        let exporter = &self.shared.exporter;
        let below = exporter.flush();
        for partition in &mut given {
            partition.inbox.clear();
            partition.mark();
            partition.leaves(below);
        }
        let give_up_at = now().instant + HANDOVER;
        while exporter.low() < below && now().instant < give_up_at {
            self.sink.beat();
            thread::park_timeout(LEFT_POLL);
        }
        let (time, low) = (now(), exporter.low());
        let last = |partition: &mut JudgedPartition| {
            partition.delivered(low);
            Some((partition.number, partition.next_commit(true, time)?))
        };
        let last: Vec<_> = given.iter_mut().filter_map(last).collect();
        self.commit_last(&last);
        self.forget(&given, "handed_over");
    }

    /// Commits before partitions are handed over. While other members join or leave, the group
    /// accepts no commit for a moment.
    fn commit_last(&mut self, commits: &[(i32, CommittedOffset)]) {
        if commits.is_empty() {
            return;
        }
        let give_up_at = now().instant + HANDOVER;
        let ended = |is_taken| CommitEnded { is_taken }.emit(&self.shared.telemetry);
        while let Err(why) = self.reader.commit(commits, true) {
            ended(false);
            if now().instant >= give_up_at {
                return self.shared.failed(&why);
            }
            self.sink.beat();
            thread::park_timeout(RETRY / 10);
        }
        ended(true);
    }

    fn lose(&mut self, partitions: &[i32]) {
        let lost = self.take(partitions);
        let known = lost
            .iter()
            .map(|it| (it.number, (self.index, it.known_until)));
        self.shared.status.lost.lock().extend(known);
        self.forget(&lost, "lost");
    }

    fn take(&mut self, partitions: &[i32]) -> Vec<JudgedPartition> {
        let taken = partitions.iter().map(|number| self.held.remove(number));
        taken.flatten().collect()
    }

    fn moved(&self, kind: &'static str, partitions: &[i32]) {
        PartitionsMoved { kind, partitions }.emit(&self.shared.telemetry);
    }

    fn forget(&mut self, partitions: &[JudgedPartition], kind: &'static str) {
        if partitions.is_empty() {
            return;
        }
        let partitions: Vec<i32> = partitions.iter().map(|it| it.number).collect();
        self.moved(kind, &partitions);
        let is_gone = |number: &i32| partitions.contains(number);
        let paused: Vec<i32> = self
            .paused
            .extract_if(.., |number| is_gone(number))
            .collect();
        // The library remembers the pause, and would not fetch these partitions when they are
        // assigned again.
        if !paused.is_empty()
            && let Err(why) = self.reader.pause(&paused, false)
        {
            self.shared.failed(&why);
        }
        let mut statuses = self.shared.status.partitions.lock();
        statuses.retain(|number, _| !partitions.contains(number));
        drop(statuses);
        self.shared.report_use();
    }
}
