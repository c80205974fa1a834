//! Events of spans and traces on the score plane, and the life of the sidecar.

use super::Telemetry;

/// Spans were forwarded unscored because the scoring queue was full.
#[derive(Debug)]
pub struct SpansUnscored {
    /// How many.
    pub n_spans: usize,
}

impl SpansUnscored {
    /// Counts it; the first is a warning, since every trace that they belong to is incomplete.
    pub fn emit(self, telemetry: &Telemetry) {
        let n_spans = self.n_spans as u64;
        if telemetry.metrics.unscored_spans.add([], n_spans) == n_spans {
            tracing::warn!(
                n_spans,
                "the scoring queue is full: spans are forwarded unscored and their traces are \
                 incomplete (further spans are only counted); raise scoring.queue or \
                 memory.limit, or give the sidecar more CPU"
            );
        }
    }
}

/// Spans were forwarded, but belong to no trace: their trace or span id is empty or all zero.
#[derive(Debug)]
pub struct SpansWithoutIds {
    /// How many.
    pub n_spans: usize,
}

impl SpansWithoutIds {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        if self.n_spans > 0 {
            telemetry
                .metrics
                .spans_without_ids
                .add([], self.n_spans as u64);
        }
    }
}

/// Late spans, or calls and results in other traces, concern traces that were forgotten because the
/// memory of closed traces was full.
#[derive(Debug)]
pub struct RevisionsLost {
    /// How many.
    pub n_revisions: usize,
}

impl RevisionsLost {
    /// Counts it. The first one is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        let n_lost = self.n_revisions as u64;
        if n_lost > 0 && telemetry.metrics.revisions_lost.add([], n_lost) == n_lost {
            tracing::warn!(
                n_revisions = n_lost,
                "late spans or results change no verdict: the memory of closed traces was full and \
                 their trace is forgotten (further ones are only counted); raise \
                 assemble.recent.max_size or memory.limit"
            );
        }
    }
}

/// Spans arrived for traces that were already judged.
#[derive(Debug)]
pub struct SpansLate {
    /// Spans taken: their traces are judged again.
    pub n_taken: usize,
    /// Spans not taken: their traces are full or forgotten.
    pub n_refused: usize,
    /// Those of them whose trace was forgotten because the memory of closed traces was full.
    pub n_forgotten: usize,
}

impl SpansLate {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        RevisionsLost {
            n_revisions: self.n_forgotten,
        }
        .emit(telemetry);
        if self.n_taken + self.n_refused > 0 {
            telemetry
                .metrics
                .late_spans
                .add([], (self.n_taken + self.n_refused) as u64);
        }
        if self.n_refused > 0 {
            telemetry
                .metrics
                .late_spans_unjudged
                .add([], self.n_refused as u64);
        }
    }
}

/// Traces were closed for the first time.
#[derive(Debug)]
pub struct TracesClosed {
    /// Why.
    pub reason: &'static str,
    /// How many.
    pub n_traces: u64,
}

impl TracesClosed {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry
            .metrics
            .traces_closed
            .add([self.reason], self.n_traces);
    }
}

/// A service's traces have begun to arrive torn, or no longer do.
#[derive(Debug)]
pub struct ServiceTorn<'a> {
    /// The service.
    pub service: &'a str,
    /// Do they from now on?
    pub is_torn: bool,
    /// Torn traces among the latest closed ones.
    pub n_torn: usize,
    /// The latest closed ones that count.
    pub n_closed: usize,
}

impl ServiceTorn<'_> {
    /// Counts it, and logs what to do.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            service,
            is_torn,
            n_torn,
            n_closed,
        } = self;
        let change = if is_torn { 1 } else { -1 };
        telemetry.metrics.services_torn.add([], change);
        if is_torn {
            tracing::warn!(
                service,
                n_torn,
                n_closed,
                "traces of this service arrive torn: spans of one trace reach several replicas, so \
                 no trace of it is judged in full; route all spans of a trace to one replica by \
                 trace id (docs/kubernetes.md), and raise assemble.inactive if its runs pause for \
                 longer"
            );
        } else {
            tracing::info!(service, "traces of this service arrive whole again");
        }
    }
}

/// Traces were closed of which spans reached another replica.
#[derive(Debug)]
pub struct TracesTorn {
    /// How many.
    pub n_traces: usize,
}

impl TracesTorn {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.traces_torn.add([], self.n_traces as u64);
    }
}

/// Only the spans or only the log records of a trace arrived.
#[derive(Debug)]
pub struct TraceHalfArrived<'a> {
    /// The service of the half that arrived.
    pub service: &'a str,
    /// `spans` or `calls`.
    pub missing: &'static str,
    /// The first since the start that lacks this.
    pub is_first: bool,
}

impl TraceHalfArrived<'_> {
    /// Counts it, and logs the first with what to do.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            service,
            missing,
            is_first,
        } = self;
        telemetry.metrics.traces_half_arrived.add([missing], 1);
        if !is_first {
            return;
        }
        match missing {
            "spans" => tracing::warn!(
                service,
                "a trace came as log records with a model's messages and without its spans, so its \
                 calls are not judged: send both signals here; behind a router, place log records \
                 and spans by the same key (docs/kubernetes.md); further ones are counted in \
                 spanscore_traces_half_arrived_total"
            ),
            _ => tracing::warn!(
                service,
                "a model's span says that tools were called, and neither spans nor log records say \
                 which: record tool calls as spans or capture the messages, and if they are log \
                 records, send these here too; behind a router, place both by the same key \
                 (docs/kubernetes.md); further ones are counted in \
                 spanscore_traces_half_arrived_total"
            ),
        }
    }
}

/// The addresses of `assemble.peers` were found.
#[derive(Debug)]
pub struct PeersFound {
    /// How many.
    pub n_peers: usize,
    /// How many there were before, if these are others.
    pub n_before: Option<usize>,
    /// Is it logged? Changes can come every second.
    pub is_logged: bool,
}

impl PeersFound {
    /// Counts it, and logs a change.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            n_peers,
            n_before,
            is_logged,
        } = self;
        let metrics = &telemetry.metrics;
        metrics.peers.set([], n_peers);
        metrics.peers_unresolved.set([], 0);
        metrics.peers_answers.add([], 1);
        metrics.peers_changes.add([], u64::from(n_before.is_some()));
        if let Some(n_before) = n_before.filter(|_| is_logged) {
            tracing::info!(
                n_peers,
                n_before,
                "the replicas of assemble.peers have changed: traces that began before, and are \
                 first seen here from now on, are incomplete"
            );
        }
    }
}

/// The addresses of `assemble.peers` could not be found.
#[derive(Debug)]
pub struct PeersUnresolved<'a> {
    /// The name.
    pub peers: &'a str,
    /// Why not.
    pub error: String,
}

impl PeersUnresolved<'_> {
    /// Counts it; the first of an outage is a warning.
    pub fn emit(self, telemetry: &Telemetry, is_first: bool) {
        let Self { peers, error } = self;
        telemetry.metrics.peers_unresolved.set([], 1);
        if is_first {
            tracing::warn!(
                peers,
                error,
                "assemble.peers cannot be resolved: it must be the headless Service of the \
                 replicas. Judging continues, but a change of the replicas is not noticed, and \
                 verdicts on the traces that it splits may be wrong"
            );
        }
    }
}

/// Closed traces were judged.
#[derive(Debug)]
pub struct TracesJudged {
    /// Evaluations, new and changed.
    pub n_evaluations: usize,
    /// Evaluations that late spans did not change.
    pub n_unchanged: usize,
    /// Traces with neither a tool call nor an agent run.
    pub n_no_trajectory: usize,
}

impl TracesJudged {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            n_evaluations,
            n_unchanged,
            n_no_trajectory,
        } = self;
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
}

/// The amount of traces held by the score plane changed.
#[derive(Debug, Default)]
pub struct TracesHeld {
    /// Open traces.
    pub n_open: usize,
    /// Bytes of them.
    pub open_bytes: usize,
    /// Closed traces that are remembered.
    pub n_recent: usize,
    /// Bytes of them.
    pub recent_bytes: usize,
}

impl TracesHeld {
    /// Sets the gauges.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            n_open,
            open_bytes,
            n_recent,
            recent_bytes,
        } = self;
        let metrics = &telemetry.metrics;
        metrics.traces_open.set([], n_open);
        metrics.traces_open_bytes.set([], open_bytes);
        metrics.traces_recent.set([], n_recent);
        metrics.traces_recent_bytes.set([], recent_bytes);
    }
}

/// The first line of the log: the task of this process.
#[derive(Debug)]
pub struct ConfigurationInForce {
    /// The setting that names the downstream, and its endpoint.
    pub downstream: Option<(String, String)>,
    /// Whether spans are written to Kafka.
    pub writes_kafka: bool,
    /// Whether the spans of a Kafka topic are judged and none are received.
    pub only_reads_kafka: bool,
    /// Registered criteria.
    pub n_criteria: usize,
    /// Whether scoring is enabled.
    pub scoring: bool,
}

impl ConfigurationInForce {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            downstream,
            writes_kafka,
            only_reads_kafka,
            n_criteria,
            scoring,
        } = self;
        let version = env!("CARGO_PKG_VERSION");
        match downstream {
            Some((origin, endpoint)) => tracing::info!(
                version,
                endpoint,
                origin,
                n_criteria,
                scoring,
                "{}",
                match only_reads_kafka {
                    true => "sending scores to the downstream",
                    false => "forwarding to the downstream",
                }
            ),
            None if only_reads_kafka => tracing::info!(
                version,
                n_criteria,
                scoring,
                "no downstream is configured: scores go to endpoints of their own, or are printed"
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
}

/// Trajectories were seen that no criterion judges, and there is no terminal to show them on.
#[derive(Debug)]
pub struct TrajectoriesSeen {
    /// So far.
    pub n_seen: u64,
}

impl TrajectoriesSeen {
    /// Logs it.
    pub fn emit(self) {
        tracing::info!(
            n_seen = self.n_seen,
            "trajectories seen, but no criterion judges them; register one under `criteria`"
        );
    }
}

/// A trace looked like an agent's, but nothing in it was recognised, nor in any trace before it.
#[derive(Debug)]
pub struct NothingRecognised<'a> {
    /// Its service.
    pub service: &'a str,
    /// How many of its spans are model calls.
    pub n_models: usize,
    /// The name of a span that looks like a tool call or an agent run; empty if there is none.
    pub span_name: &'a str,
}

impl NothingRecognised<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            service,
            n_models,
            span_name,
        } = self;
        tracing::warn!(
            service,
            n_models,
            span_name,
            "a trace looks like an agent's, but no span is recognised as a tool call or an agent \
             run, so it is not judged (further ones are only counted); to see its spans, start \
             `spanscore run --record DIR` and look with `spanscore inspect -v DIR`"
        );
    }
}

/// Requests are written to a folder (`run --record`).
#[derive(Debug)]
pub struct RecordingBegun {
    /// The folder.
    pub folder: String,
    /// Most bytes of all files.
    pub max_size: u64,
}

impl RecordingBegun {
    /// Logs it.
    pub fn emit(self) {
        let Self { folder, max_size } = self;
        tracing::warn!(
            folder,
            max_size,
            "recording every request, with all that agents send; the oldest files are deleted"
        );
    }
}

/// A request could not be recorded.
#[derive(Debug)]
pub struct RecordingFailed {
    /// The folder.
    pub folder: String,
    /// Why.
    pub error: String,
}

impl RecordingFailed {
    /// Logs it; the caller does so once.
    pub fn emit(self) {
        let Self { folder, error } = self;
        tracing::warn!(
            folder,
            error,
            "a request was not recorded (further ones are not reported)"
        );
    }
}

/// The sidecar will be stopped soon.
#[derive(Debug)]
pub struct DrainBegun;

impl DrainBegun {
    /// Logs it.
    pub fn emit(self, _: &Telemetry) {
        tracing::info!(
            "draining: still accepting requests, closing traces sooner and sending scores at once; \
             no longer ready"
        );
    }
}

/// The sidecar stops.
#[derive(Debug)]
pub struct Stopping {
    /// The signal that stops it.
    pub signal: &'static str,
}

impl Stopping {
    /// Logs it.
    pub fn emit(self, _: &Telemetry) {
        tracing::info!(
            signal = self.signal,
            "stopping: accepting requests until senders fall quiet, then delivering the queues; \
             a second signal exits at once"
        );
    }
}

/// The last line of the log.
#[derive(Debug)]
pub struct Stopped {
    /// Spans, log records and metric points that could not be delivered.
    pub n_undelivered: u64,
    /// Spans, log records and metric points that the journal keeps for the next start.
    pub n_kept: u64,
    /// Scores that could not be delivered.
    pub n_undelivered_scores: u64,
    /// Scores that the journal keeps for the next start.
    pub n_kept_scores: u64,
}

impl Stopped {
    /// Logs it.
    pub fn emit(self, _: &Telemetry) {
        let Self {
            n_undelivered,
            n_kept,
            n_undelivered_scores,
            n_kept_scores,
        } = self;
        let is_kept = n_kept + n_kept_scores > 0;
        if is_kept {
            tracing::info!(
                n_kept,
                n_kept_scores,
                "kept in the journal; sent at the next start on this folder"
            );
        }
        if n_undelivered + n_undelivered_scores > 0 {
            tracing::warn!(
                n_undelivered,
                n_undelivered_scores,
                "stopped; not everything could be delivered before shutdown.deadline"
            );
        } else if is_kept {
            tracing::info!(
                n_kept,
                n_kept_scores,
                "stopped; the journal keeps what was not delivered and sends it at the next start"
            );
        } else {
            tracing::info!("stopped; everything was delivered");
        }
    }
}
