//! What happened at our ports and to certificate files, before any request.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Telemetry;

/// A port is bound and connections are taken.
#[derive(Debug)]
pub struct Listening {
    /// The setting the address came from.
    pub setting: &'static str,
    /// The address, with the port that was really bound.
    pub address: SocketAddr,
    /// With TLS?
    pub tls: bool,
}

impl Listening {
    /// Log it.
    pub fn emit(self, _telemetry: &Telemetry) {
        tracing::info!(setting = self.setting, address = %self.address, tls = self.tls, "listening");
    }
}

/// A connection was taken.
#[derive(Debug)]
pub struct ConnectionOpened {
    /// The setting of the port it came in by.
    pub setting: &'static str,
}

impl ConnectionOpened {
    /// Count it, as long as the guard lives.
    pub fn emit(self, telemetry: &Arc<Telemetry>) -> OpenConnection {
        telemetry.metrics.connections_open.add([self.setting], 1);
        OpenConnection {
            setting: self.setting,
            telemetry: Arc::clone(telemetry),
        }
    }
}

/// Held as long as a connection is open.
#[derive(Debug)]
pub struct OpenConnection {
    setting: &'static str,
    telemetry: Arc<Telemetry>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let metrics = &self.telemetry.metrics;
        metrics.connections_open.add([self.setting], -1);
    }
}

/// The system gave us no connection, most often for want of file descriptors.
#[derive(Debug)]
pub struct AcceptFailed {
    /// The setting of the port.
    pub setting: &'static str,
    /// What the system said.
    pub error: String,
    /// The first failure since a connection was taken: the one that is logged.
    pub first: bool,
}

impl AcceptFailed {
    /// Count it; log it when it begins.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.accept_failures.add([self.setting], 1);
        if self.first {
            tracing::error!(
                port = self.setting,
                error = self.error,
                "cannot take connections; is the limit of open files (ulimit -n) too low?"
            );
        }
    }
}

/// A connection to a TLS port did not get through its handshake.
#[derive(Debug)]
pub struct HandshakeFailed {
    /// The setting of the port.
    pub setting: &'static str,
    /// What went wrong.
    pub error: String,
}

impl HandshakeFailed {
    /// Count it; the first one is a warning, since it may be a client that speaks plain text or
    /// shows no certificate.
    pub fn emit(self, telemetry: &Telemetry) {
        let n_failures = telemetry
            .metrics
            .tls_handshake_failures
            .add([self.setting], 1);
        match n_failures {
            1 => tracing::warn!(
                port = self.setting,
                error = self.error,
                "a TLS handshake failed; does the client use https and the right certificate? (further ones are counted and logged at debug)"
            ),
            _ => tracing::debug!(
                port = self.setting,
                error = self.error,
                "a TLS handshake failed"
            ),
        }
    }
}

/// Certificate files changed, and the new ones are in use.
#[derive(Debug)]
pub struct CertificatesReplaced {
    /// The files, quoted.
    pub files: String,
}

impl CertificatesReplaced {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.certificate_reloads.add(["replaced"], 1);
        tracing::info!(
            files = self.files,
            "certificate files changed; new connections use the new ones"
        );
    }
}

/// Certificate files changed and cannot be used; the last good ones stay in use.
#[derive(Debug)]
pub struct CertificatesUnusable {
    /// What is wrong.
    pub error: String,
}

impl CertificatesUnusable {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.certificate_reloads.add(["unusable"], 1);
        tracing::warn!(
            error = self.error,
            "certificate files changed and cannot be used; the last good ones stay in use"
        );
    }
}
