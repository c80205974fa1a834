//! Events of incoming requests.

use std::net::SocketAddr;
use std::time::Duration;

use text::truncated;

use super::Telemetry;

/// A request was refused. Its sender retries it, or learns that retrying is pointless.
#[derive(Debug)]
pub struct IncomingRefused {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points; 0 where the body could not be read.
    pub n_items: u64,
    /// `malformed`, `too_large`, `unsupported`, `broken`, `slow`, `in_flight_full`, `queue_full`,
    /// `draining`.
    pub reason: &'static str,
    /// The message that the sender received.
    pub message: String,
}

impl IncomingRefused {
    /// Counts it. The first of each kind is a warning, since many senders do not log refusals.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            signal,
            n_items,
            reason,
            message,
        } = self;
        *telemetry
            .items
            .signal(signal)
            .rare()
            .refused
            .entry(reason)
            .or_default() += n_items;
        match telemetry
            .metrics
            .receiver_refused_requests
            .add([signal, reason], 1)
        {
            1 => tracing::warn!(
                signal,
                reason,
                message,
                "request refused \
                 (further refusals of this kind are counted and logged at debug level)"
            ),
            _ => tracing::debug!(signal, reason, message, "request refused"),
        }
    }
}

/// A request held items that claim to be scores of ours.
#[derive(Debug)]
pub struct ScoresReceived {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points.
    pub n_items: u64,
    /// `forward` or `drop`.
    pub action: &'static str,
}

impl ScoresReceived {
    /// Counts them. The first are a line, since a sender without a sidecar has no scores.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            signal,
            n_items,
            action,
        } = self;
        let counter = &telemetry.metrics.receiver_scores;
        if counter.add([signal, action], n_items) == n_items {
            tracing::info!(
                signal,
                action,
                "received items that claim to be scores of spanscore: they come from another \
                 sidecar, or are forged (further ones are only counted; receivers.otlp.scores \
                 decides whether they are forwarded)"
            );
        }
    }
}

impl Telemetry {
    /// How many items that claimed to be scores were received, by what became of them.
    pub fn received_scores(&self, action: &'static str) -> u64 {
        ["traces", "logs", "metrics"]
            .map(|signal| self.metrics.receiver_scores.value([signal, action]))
            .iter()
            .sum()
    }
}

/// A request went to an address that has nothing for it: a wrong path, method or port.
#[derive(Debug)]
pub struct RequestMisdirected<'a> {
    /// `path`, `method`, `protocol` or `port`.
    pub reason: &'static str,
    /// Its method.
    pub method: &'a str,
    /// Its path.
    pub path: &'a str,
    /// The answer: where such requests belong.
    pub remedy: &'a str,
}

impl RequestMisdirected<'_> {
    /// Counts it. The first of each kind is a warning: the sender may not log the answer, and its
    /// telemetry is lost.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            reason,
            method,
            path,
            remedy,
        } = self;
        // Both come from outside.
        let (method, path) = (truncated(method, 32), truncated(path, 200));
        let n_misdirected = telemetry
            .metrics
            .receiver_misdirected_requests
            .add([reason], 1);
        match n_misdirected {
            1 => tracing::warn!(
                method,
                path,
                remedy,
                "request to a wrong address \
                 (further ones of this kind are counted and logged at debug level)"
            ),
            _ => tracing::debug!(method, path, remedy, "request to a wrong address"),
        }
    }
}

/// A client sent an `authorization` header that is not forwarded.
#[derive(Debug)]
pub struct AuthorizationNotPassed;

impl AuthorizationNotPassed {
    /// Counts it; the first is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        if telemetry.metrics.authorization_not_passed.add([], 1) == 1 {
            tracing::warn!(
                "a client sends an `authorization` header, which is not forwarded; \
                 add it to `forward.pass_headers`, or set the downstream's own in `forward.headers`"
            );
        }
    }
}

/// Nothing has arrived since the start.
#[derive(Debug)]
pub struct NothingReceived {
    /// Time since the start.
    pub after: Duration,
    /// Where OTLP/gRPC is accepted.
    pub grpc: Option<SocketAddr>,
    /// Where OTLP/HTTP is accepted.
    pub http: Option<SocketAddr>,
}

impl NothingReceived {
    /// Logs it, with the remedy.
    pub fn emit(self) {
        let Self { after, grpc, http } = self;
        let places: Vec<String> = [("gRPC", grpc), ("HTTP", http)]
            .into_iter()
            .filter_map(|(protocol, address)| Some(format!("{} for {protocol}", address?)))
            .collect();
        tracing::warn!(
            "no telemetry has arrived in the first {} s; does OTEL_EXPORTER_OTLP_ENDPOINT of the \
             agent point here ({})?",
            after.as_secs(),
            places.join(", ")
        );
    }
}
