//! What happened to requests that came in.

use super::Telemetry;

/// A request was refused; its sender still has it, or was told that nobody will ever take it.
#[derive(Debug)]
pub struct Refused {
    /// `traces`, `logs` or `metrics`.
    pub signal: &'static str,
    /// Spans, log records or points; 0 where the body could not be read.
    pub n_items: u64,
    /// `malformed`, `too_large`, `unsupported`, `broken`, `slow`, `in_flight_full`, `queue_full`,
    /// `draining`.
    pub reason: &'static str,
    /// What the sender was told.
    pub message: String,
}

impl Refused {
    /// Count it. The first of each kind is a warning, since a sender may keep its refusals to
    /// itself; the rest is for debugging.
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
                "refused a request (further ones are counted and logged at debug)"
            ),
            _ => tracing::debug!(signal, reason, message, "refused a request"),
        }
    }
}

/// A client sent `authorization`, and nothing hands one on to the downstream.
#[derive(Debug)]
pub struct AuthorizationNotPassed;

impl AuthorizationNotPassed {
    /// Count it, and warn of the first.
    pub fn emit(self, telemetry: &Telemetry) {
        if telemetry.metrics.authorization_not_passed.add([], 1) == 1 {
            tracing::warn!(
                "a client sends an `authorization` header, which is not handed on; \
                 add it to `forward.pass_headers`, or set the downstream's own in `forward.headers`"
            );
        }
    }
}
