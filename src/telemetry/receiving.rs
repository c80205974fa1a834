//! Events of incoming requests.

use std::net::SocketAddr;
use std::time::Duration;

use text::truncated;

use super::Telemetry;

events! {
    /// A request was refused. Its sender retries unless retrying is useless.
    IncomingRefused {
        signal: &'static str,
        n_items: u64,
        reason: &'static str,
        message: String,
    } (telemetry) {
        *telemetry.items.signal(signal).rare().refused.entry(reason).or_default() += n_items;
        match telemetry.metrics.receiver_refused_requests.add([signal, reason], 1) {
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

    ScoresReceived { signal: &'static str, n_items: u64, action: &'static str } (telemetry) {
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
    pub fn received_scores(&self, action: &'static str) -> u64 {
        ["traces", "logs", "metrics"]
            .map(|signal| self.metrics.receiver_scores.value([signal, action]))
            .iter()
            .sum()
    }
}

events! {
    RequestMisdirected<'a> {
        reason: &'static str,
        method: &'a str,
        path: &'a str,
        remedy: &'a str,
    } (telemetry) {
        // Senders choose both texts, which may be long.
        let (method, path) = (truncated(method, 32), truncated(path, 200));
        let n_misdirected = telemetry.metrics.receiver_misdirected_requests.add([reason], 1);
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

    AuthorizationNotPassed {} (telemetry) {
        if telemetry.metrics.authorization_not_passed.add([], 1) == 1 {
            tracing::warn!(
                "a client sends an `authorization` header, which is not forwarded; \
                 add it to `forward.pass_headers`, or set the downstream's own in `forward.headers`"
            );
        }
    }

    NothingReceived {
        after: Duration,
        grpc: Option<SocketAddr>,
        http: Option<SocketAddr>,
    } () {
        tracing::warn!(
            after_secs = after.as_secs(),
            grpc = grpc.map(tracing::field::display),
            http = http.map(tracing::field::display),
            "no telemetry received since the start; does the agent's OTEL_EXPORTER_OTLP_ENDPOINT \
             point to this sidecar?"
        );
    }
}
