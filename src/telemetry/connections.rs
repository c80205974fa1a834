//! Events of our ports and of certificate files. Must not know of requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Telemetry;

/// A port is bound and accepts connections.
#[derive(Debug)]
pub struct Listening {
    /// The setting the address came from.
    pub setting: &'static str,
    /// The address, with the port that was actually bound.
    pub address: SocketAddr,
    /// With TLS?
    pub tls: bool,
}

impl Listening {
    /// Logs it.
    pub fn emit(self, _telemetry: &Telemetry) {
        let Self {
            setting,
            address,
            tls,
        } = self;
        tracing::info!(setting, %address, tls, "listening");
    }
}

/// A connection was accepted.
#[derive(Debug)]
pub struct ConnectionOpened {
    /// The setting of the port that accepted it.
    pub setting: &'static str,
}

impl ConnectionOpened {
    /// Counts it as long as the guard lives.
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

/// A connection could not be accepted, usually for lack of file descriptors.
#[derive(Debug)]
pub struct AcceptFailed {
    /// The setting of the port.
    pub setting: &'static str,
    /// The error of the system.
    pub error: String,
    /// True for the first failure since the last accepted connection, which is the one logged.
    pub first: bool,
}

impl AcceptFailed {
    /// Counts it; logs the first of a series.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.accept_failures.add([self.setting], 1);
        if self.first {
            tracing::error!(
                port = self.setting,
                error = self.error,
                "cannot accept connections; is the open file limit (ulimit -n) too low?"
            );
        }
    }
}

/// A connection was closed because others needed its place.
#[derive(Debug)]
pub struct ConnectionGaveWay {
    /// The setting of the port.
    pub setting: &'static str,
    /// The other end.
    pub peer: IpAddr,
}

impl ConnectionGaveWay {
    /// Counts it; the first is logged as a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { setting, peer } = self;
        if telemetry
            .metrics
            .connections_cut
            .add([setting, "gave_way"], 1)
            == 1
        {
            tracing::warn!(
                port = setting,
                %peer,
                "closed a connection of the peer that has the most, for lack of memory for more \
                 connections; raise `memory.limit` if these peers are yours (further ones are \
                 counted in spanscore_connections_cut_total)"
            );
        }
    }
}

/// A connection was closed unserved because no other gave way.
#[derive(Debug)]
pub struct ConnectionTurnedAway {
    /// The setting of the port.
    pub setting: &'static str,
    /// The other end.
    pub peer: IpAddr,
}

impl ConnectionTurnedAway {
    /// Counts it; the first is logged as a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { setting, peer } = self;
        if telemetry
            .metrics
            .connections_cut
            .add([setting, "no_slot"], 1)
            == 1
        {
            tracing::warn!(
                port = setting,
                %peer,
                "closed a new connection: there is no memory for more connections; raise \
                 `memory.limit` if this peer is yours (further ones are counted in \
                 spanscore_connections_cut_total)"
            );
        }
    }
}

/// A TLS handshake failed.
#[derive(Debug)]
pub struct HandshakeFailed {
    /// The setting of the port.
    pub setting: &'static str,
    /// The error.
    pub error: String,
}

impl HandshakeFailed {
    /// Counts it. The first is a warning, since the client may speak plain text or present no
    /// certificate.
    pub fn emit(self, telemetry: &Telemetry) {
        let n_failures = telemetry
            .metrics
            .tls_handshake_failures
            .add([self.setting], 1);
        match n_failures {
            1 => tracing::warn!(
                port = self.setting,
                error = self.error,
                "TLS handshake failed; does the client use https and the right certificate? \
                 (further failures are counted and logged at debug level)"
            ),
            _ => tracing::debug!(
                port = self.setting,
                error = self.error,
                "TLS handshake failed"
            ),
        }
    }
}

/// Certificate files changed, and the new certificates are in use.
#[derive(Debug)]
pub struct CertificatesReplaced {
    /// The files, quoted.
    pub files: String,
}

impl CertificatesReplaced {
    /// Counts and logs it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.certificate_reloads.add(["replaced"], 1);
        tracing::info!(
            files = self.files,
            "certificate files changed; new connections use the new certificates"
        );
    }
}

/// Changed certificate files cannot be used; the last good certificates stay in use.
#[derive(Debug)]
pub struct CertificatesUnusable {
    /// The problem.
    pub error: String,
}

impl CertificatesUnusable {
    /// Counts and logs it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.certificate_reloads.add(["unusable"], 1);
        tracing::warn!(
            error = self.error,
            "changed certificate files cannot be used; the last good certificates stay in use"
        );
    }
}
