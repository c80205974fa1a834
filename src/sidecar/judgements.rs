//! Handles each judgement on the thread that judged: exports it, counts the selected trajectories,
//! and passes it to the page and the observer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use judge::assemble::{CloseReason, Stats};
use judge::evaluate::Coverage;
use judge::extract::{HalfArrived, MissingHalf};
use judge::pipeline::{Judged, JudgementSink, Rules};

use super::{Observer, now};
use crate::export::Exporter;
use crate::heap;
use crate::page::Page;
use crate::sync::Mutex;
use crate::telemetry::{
    AlarmsPostponed, CoverageProblem, Heartbeat, MetricsSource, RevisionsLost, SessionsJudged,
    Telemetry, TraceHalfArrived, TracesClosed, TracesInMemory, TracesJudged, write_coverage,
};

/// Minimum time between two heartbeats, because a heartbeat takes a lock that probes take, too.
const BEAT_EVERY: Duration = Duration::from_millis(200);

/// A function that handles a thread's judgements, for example by exporting or printing them.
pub(super) type Judge = Box<dyn FnMut(&Judged, &Rules) + Send>;

/// Receives the results of a judging thread, and sends heartbeats while the thread works.
pub(super) struct JudgeSink {
    judge: Judge,
    pub(super) rules: Arc<Rules>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) heartbeat: Heartbeat,
    next_beat: Instant,
    /// The kinds of missing halves that were already logged; each kind is logged once.
    missing: Vec<MissingHalf>,
}

impl JudgementSink for JudgeSink {
    fn take(&mut self, slice: &mut Judged) {
        report(slice, &self.telemetry);
        self.report_halves(&slice.half_arrived);
        (self.judge)(slice, &self.rules);
        heap::took(slice.size());
    }

    fn beat(&mut self) {
        let now = now().instant;
        if now >= self.next_beat {
            self.next_beat = now + BEAT_EVERY;
            self.heartbeat.beat(now);
        }
    }
}

impl JudgeSink {
    pub(super) fn new(
        judge: Judge,
        rules: &ArcSwap<Rules>,
        telemetry: &Arc<Telemetry>,
        thread: &str,
    ) -> Self {
        Self {
            judge,
            rules: rules.load_full(),
            telemetry: Arc::clone(telemetry),
            heartbeat: telemetry.heartbeat(thread, now().instant),
            next_beat: now().instant,
            missing: Vec::new(),
        }
    }

    fn report_halves(&mut self, halves: &[HalfArrived]) {
        for HalfArrived { service, missing } in halves {
            let is_first = !self.missing.contains(missing);
            if is_first {
                self.missing.push(*missing);
            }
            TraceHalfArrived {
                service,
                missing: match missing {
                    MissingHalf::Spans => "spans",
                    MissingHalf::Calls => "calls",
                },
                is_first,
            }
            .emit(&self.telemetry);
        }
    }
}

fn counted(reasons: &[CloseReason]) -> BTreeMap<&'static str, u64> {
    let mut by_reason = BTreeMap::new();
    for reason in reasons {
        *by_reason.entry(reason.as_str()).or_default() += 1;
    }
    by_reason
}

fn report(judged: &Judged, telemetry: &Telemetry) {
    for (reason, n_traces) in counted(&judged.reasons) {
        TracesClosed { reason, n_traces }.emit(telemetry);
    }
    for (completeness, n_sessions) in counted(&judged.sessions) {
        SessionsJudged {
            completeness,
            n_sessions,
        }
        .emit(telemetry);
    }
    let (n_postponed, n_revisions) = (judged.n_postponed, judged.n_lost);
    AlarmsPostponed { n_postponed }.emit(telemetry);
    RevisionsLost { n_revisions }.emit(telemetry);
    TracesJudged {
        n_evaluations: judged.evaluations.len(),
        n_unchanged: judged.n_unchanged,
        n_no_trajectory: judged.n_no_trajectory,
    }
    .emit(telemetry);
}

/// Returns the memory use of all threads or partitions.
pub(super) fn in_memory(all: impl Iterator<Item = Stats>) -> TracesInMemory {
    let mut held = TracesInMemory::default();
    for stats in all {
        held.n_open += stats.n_open;
        held.open_bytes += stats.open_size;
        held.n_recent += stats.n_recent;
        held.recent_bytes += stats.recent_size;
    }
    held
}

/// Returns the function that handles the judgements of one judging thread.
pub(super) fn judge(
    exporter: Exporter,
    coverage: Arc<Mutex<Coverage>>,
    page: Option<Page>,
    observer: Option<Arc<Mutex<Observer>>>,
) -> Judge {
    Box::new(move |judged, rules| {
        let (evaluations, alarms) = (&judged.evaluations, &judged.alarms);
        let trajectories = &judged.trajectories;
        if !evaluations.is_empty() || !alarms.is_empty() || !trajectories.is_empty() {
            let mut coverage = coverage.lock();
            coverage.note(trajectories, evaluations);
            coverage.note(&[], alarms);
            let due = coverage.due();
            // Log one line for any number of problems, because `/v1/status` lists all of them.
            if let Some(first) = due.first() {
                CoverageProblem {
                    criterion: first.criterion,
                    problem: first.problem.as_deref().unwrap_or_default(),
                    n_seen: first.n_seen,
                    n_matched: first.n_matched,
                    n_others: due.len() - 1,
                }
                .emit();
            }
        }
        exporter.export(judged, &rules.explain, now().unix_nanos);
        if let Some(page) = &page {
            page.note(judged, rules, now().unix_nanos);
        }
        if let Some(observer) = &observer {
            (observer.lock())(judged, rules);
        }
    })
}

pub(super) fn coverage_metrics(coverage: Arc<Mutex<Coverage>>) -> MetricsSource {
    Arc::new(move |page| {
        let coverage = coverage.lock();
        let counts = coverage.counts();
        write_coverage(&counts.collect::<Vec<_>>(), page);
    })
}
