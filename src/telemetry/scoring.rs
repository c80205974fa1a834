//! Events of scoring spans and traces, and of the sidecar's start and stop.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Telemetry;

impl Telemetry {
    /// Returns the number of stored sessions, and the numbers of sessions with final verdicts by
    /// completeness.
    pub fn sessions(&self) -> (i64, BTreeMap<&'static str, u64>) {
        let stored = self.metrics.sessions.series([]).load(Ordering::Relaxed);
        (stored, self.metrics.sessions_judged.values())
    }
}

events! {
    SpansUnscored { n_spans: usize } (telemetry) {
        let n_spans = n_spans as u64;
        if telemetry.metrics.unscored_spans.add([], n_spans) == n_spans {
            tracing::warn!(
                n_spans,
                "the scoring queue is full: spans are forwarded unscored and their traces are \
                 incomplete (further spans are only counted); raise scoring.queue or \
                 memory.limit, use a journal, or give the sidecar more CPU"
            );
        }
    }

    JournaledSpansUnread { n_spans: usize, why: String, is_logged: bool } (telemetry) {
        telemetry.metrics.unscored_spans.add([], n_spans as u64);
        if is_logged {
            tracing::error!(
                n_spans,
                why,
                "cannot read spans for scoring from the journal; open traces are incomplete"
            );
        }
    }

    /// Spans were forwarded, but belong to no trace: their trace or span id is empty or all zero.
    SpansWithoutIds { n_spans: usize } (telemetry) {
        if n_spans > 0 {
            telemetry.metrics.spans_without_ids.add([], n_spans as u64);
        }
    }

    RevisionsLost { n_revisions: usize } (telemetry) {
        let n_lost = n_revisions as u64;
        if n_lost > 0 && telemetry.metrics.revisions_lost.add([], n_lost) == n_lost {
            tracing::warn!(
                n_revisions = n_lost,
                "late spans or results ignored: their trace was evicted because the memory for \
                 closed traces was full (further ones are only counted); raise \
                 assemble.recent.max_size or memory.limit"
            );
        }
    }

    /// Spans arrived for traces that were already judged.
    SpansLate { n_taken: usize, n_refused: usize, n_forgotten: usize } (telemetry) {
        RevisionsLost {
            n_revisions: n_forgotten,
        }
        .emit(telemetry);
        if n_taken + n_refused > 0 {
            telemetry.metrics.late_spans.add([], (n_taken + n_refused) as u64);
        }
        if n_refused > 0 {
            telemetry.metrics.late_spans_unjudged.add([], n_refused as u64);
        }
    }

    /// Open traces must grow before they are searched for alarms again.
    AlarmsPostponed { n_postponed: usize } (telemetry) {
        if n_postponed > 0 {
            telemetry.metrics.alarms_postponed.add([], n_postponed as u64);
        }
    }

    TracesClosed { reason: &'static str, n_traces: u64 } (telemetry) {
        telemetry.metrics.traces_closed.add([reason], n_traces);
    }

    ServiceTorn<'a> {
        service: &'a str,
        is_torn: bool,
        n_torn: usize,
        n_closed: usize,
    } (telemetry) {
        let change = if is_torn { 1 } else { -1 };
        telemetry.metrics.services_torn.add([], change);
        if is_torn {
            tracing::warn!(
                service,
                n_torn,
                n_closed,
                "spans of one trace reach several replicas, so traces of this service are judged \
                 as incomplete; route spans by trace id (docs/kubernetes.md), or raise \
                 assemble.inactive if runs pause longer"
            );
        } else {
            tracing::info!(service, "all spans of a trace reach one replica again");
        }
    }

    /// Traces were closed although another replica received some of their spans.
    TracesTorn { n_traces: usize } (telemetry) {
        telemetry.metrics.traces_torn.add([], n_traces as u64);
    }

    TraceHalfArrived<'a> { service: &'a str, missing: &'static str, is_first: bool } (telemetry) {
        telemetry.metrics.traces_half_arrived.add([missing], 1);
        if !is_first {
            return;
        }
        match missing {
            "spans" => tracing::warn!(
                service,
                "log records with model messages arrived without spans, so their calls are not \
                 judged; send traces and logs to the same sidecar (behind a router: by the same \
                 key, docs/kubernetes.md); further ones are counted in \
                 spanscore_traces_half_arrived_total"
            ),
            _ => tracing::warn!(
                service,
                "a model span reports tool calls, but no span or message names the tools; record \
                 tool calls as spans, or capture model messages and send them (also as log \
                 records) to the same sidecar (behind a router: by the same key, \
                 docs/kubernetes.md); further ones are counted in \
                 spanscore_traces_half_arrived_total"
            ),
        }
    }

    PeersFound { n_peers: usize, n_before: Option<usize>, is_logged: bool } (telemetry) {
        let metrics = &telemetry.metrics;
        metrics.peers.set([], n_peers);
        metrics.peers_unresolved.set([], 0);
        metrics.peers_answers.add([], 1);
        metrics.peers_changes.add([], u64::from(n_before.is_some()));
        if let Some(n_before) = n_before.filter(|_| is_logged) {
            tracing::info!(
                n_peers,
                n_before,
                "replicas changed (assemble.peers); traces that move to this replica while open \
                 are judged as incomplete"
            );
        }
    }
}

#[derive(Debug)]
pub struct PeersUnresolved<'a> {
    pub peers: &'a str,
    pub error: String,
}

impl PeersUnresolved<'_> {
    /// Counts the failure; logs the first one of an outage as a warning.
    pub fn emit(self, telemetry: &Telemetry, is_first: bool) {
        let Self { peers, error } = self;
        telemetry.metrics.peers_unresolved.set([], 1);
        if is_first {
            tracing::warn!(
                peers,
                error,
                "cannot resolve assemble.peers; judging continues, but changes of the replicas go \
                 unnoticed and can cause wrong verdicts; name the replicas' headless Service"
            );
        }
    }
}

events! {
    TracesJudged { n_evaluations: usize, n_unchanged: usize, n_no_trajectory: usize } (telemetry) {
        let metrics = &telemetry.metrics;
        for (counter, n) in [
            (&metrics.judgements, n_evaluations),
            (&metrics.judgements_unchanged, n_unchanged),
            (&metrics.traces_without_trajectory, n_no_trajectory),
        ] {
            if n > 0 {
                counter.add([], n as u64);
            }
        }
    }

    SessionsJudged { completeness: &'static str, n_sessions: u64 } (telemetry) {
        telemetry.metrics.sessions_judged.add([completeness], n_sessions);
    }

    #[derive(Default)]
    TracesInMemory {
        n_open: usize,
        open_bytes: usize,
        n_recent: usize,
        recent_bytes: usize,
        n_sessions: usize,
        session_bytes: usize,
        unread_bytes: usize,
    } (telemetry) {
        let metrics = &telemetry.metrics;
        metrics.traces_open.set([], n_open);
        metrics.traces_open_bytes.set([], open_bytes);
        metrics.traces_recent.set([], n_recent);
        metrics.traces_recent_bytes.set([], recent_bytes);
        metrics.sessions.set([], n_sessions);
        metrics.sessions_bytes.set([], session_bytes);
        metrics.scoring_unread_bytes.set([], unread_bytes);
    }

    /// The first log line, with a summary of the configuration.
    ConfigurationActive {
        downstream: Option<(String, String)>,
        writes_kafka: bool,
        only_reads_kafka: bool,
        n_criteria: usize,
        scoring: bool,
    } () {
        let version = env!("CARGO_PKG_VERSION");
        match downstream {
            Some((origin, endpoint)) => tracing::info!(
                version,
                endpoint,
                origin,
                n_criteria,
                scoring,
                "{}",
                if only_reads_kafka {
                    "sending scores to the downstream"
                } else {
                    "forwarding to the downstream"
                }
            ),
            None if only_reads_kafka => tracing::info!(
                version,
                n_criteria,
                scoring,
                "no downstream is configured: scores go to the endpoints under `scores`, or are \
                 printed"
            ),
            None if writes_kafka => tracing::info!(
                version,
                n_criteria,
                scoring,
                "no downstream is configured: spans go to Kafka alone, and log records and metrics \
                 are accepted and dropped; set forward.endpoint to forward all three as well"
            ),
            None => tracing::warn!(
                version,
                n_criteria,
                scoring,
                "no downstream is configured: telemetry is accepted and scored but not forwarded; \
                 set forward.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT"
            ),
        }
    }

    /// No criterion judges the trajectories that were seen, and no terminal shows them.
    TrajectoriesSeen { n_seen: u64 } () {
        tracing::info!(
            n_seen,
            "trajectories seen, but no criterion judges them; register one under `criteria`"
        );
    }

    /// A trace looks like an agent's, but nothing was recognised in it or in any earlier trace.
    NothingRecognised<'a> { service: &'a str, n_models: usize, span_name: &'a str } () {
        tracing::warn!(
            service,
            n_models,
            span_name,
            "a trace looks like an agent's, but no span is recognised as a tool call or an agent \
             run, so it is not judged (further ones are only counted); to see its spans, start \
             `spanscore run --record DIR`, then run `spanscore inspect -v DIR`"
        );
    }

    RecordingStarted { folder: String, max_size: u64 } () {
        tracing::warn!(
            folder,
            max_size,
            "recording every request, with all that agents send; the oldest files are deleted"
        );
    }

    RecordingFailed { folder: String, error: String } () {
        tracing::warn!(folder, error, "a request was not recorded (further ones are not reported)");
    }

    DrainStarted {} (_) {
        tracing::info!(
            "draining: still accepting requests, closing traces sooner and sending scores at once; \
             no longer ready"
        );
    }

    Stopping { signal: &'static str } (_) {
        tracing::info!(
            signal,
            "stopping: accepting requests until senders fall quiet, then delivering the queues; \
             a second signal exits at once"
        );
    }

    /// The sidecar has stopped; the last log line.
    Stopped {
        n_undelivered: u64,
        n_kept: u64,
        n_undelivered_scores: u64,
        n_kept_scores: u64,
    } (_) {
        if n_undelivered + n_undelivered_scores > 0 {
            tracing::warn!(
                n_undelivered,
                n_undelivered_scores,
                n_kept,
                n_kept_scores,
                "stopped; not everything could be delivered before shutdown.deadline"
            );
        } else if n_kept + n_kept_scores > 0 {
            tracing::info!(
                n_kept,
                n_kept_scores,
                "stopped; undelivered requests stay in the journal and are sent at the next start"
            );
        } else {
            tracing::info!("stopped; everything was delivered");
        }
    }
}
