//! What happened at the API of the admin port.

use std::net::SocketAddr;

use super::Telemetry;

/// The API is there, and for whom.
#[derive(Debug)]
pub struct ApiOpen {
    /// Where the admin port is bound.
    pub address: SocketAddr,
    /// Who may use it.
    pub to: &'static str,
    /// Does a token travel to it unencrypted?
    pub in_the_clear: bool,
}

impl ApiOpen {
    /// Log it.
    pub fn emit(self) {
        let Self { address, to, in_the_clear } = self;
        match in_the_clear {
            true => tracing::warn!(%address, to, "the API answers; its token travels unencrypted, unless `admin.tls` is set"),
            false => tracing::info!(%address, to, "the API answers"),
        }
    }
}

/// The API refused a caller.
#[derive(Debug)]
pub struct ApiRefused {
    /// `closed`, `cross_origin`, `foreign_host`, `no_certificate`, `no_token`, `wrong_token`.
    pub reason: &'static str,
    /// What the caller was told.
    pub remedy: &'static str,
}

impl ApiRefused {
    /// Count it; the first of each kind is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { reason, remedy } = self;
        match telemetry.add("spanscore_api_refused_total", &[("reason", reason)], 1) {
            1 => tracing::warn!(reason, remedy, "the API refused a caller (further ones are counted and logged at debug)"),
            _ => tracing::debug!(reason, remedy, "the API refused a caller"),
        }
    }
}

/// The token file was fine when we started, and cannot be used now: callers are refused.
#[derive(Debug)]
pub struct TokenUnusable {
    /// What is wrong with it.
    pub error: String,
}

impl TokenUnusable {
    /// Count it; the first is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        match telemetry.add("spanscore_api_token_unusable_total", &[], 1) {
            1 => tracing::warn!(error = self.error, "callers of the API are refused (further ones are counted and logged at debug)"),
            _ => tracing::debug!(error = self.error, "callers of the API are refused"),
        }
    }
}
