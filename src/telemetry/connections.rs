//! Events of ports and of certificate files.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Telemetry;

events! {
    Listening { setting: &'static str, address: SocketAddr, tls: bool } (_) {
        tracing::info!(setting, %address, tls, "listening");
    }
}

#[derive(Debug)]
pub struct ConnectionOpened {
    /// The setting of the port.
    pub setting: &'static str,
}

impl ConnectionOpened {
    /// Counts the connection as open until the guard is dropped.
    pub fn emit(self, telemetry: &Arc<Telemetry>) -> OpenConnection {
        telemetry.metrics.connections_open.add([self.setting], 1);
        OpenConnection {
            setting: self.setting,
            telemetry: Arc::clone(telemetry),
        }
    }
}

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

events! {
    AcceptFailed { setting: &'static str, error: String, first: bool } (telemetry) {
        telemetry.metrics.accept_failures.add([setting], 1);
        if first {
            tracing::error!(
                port = setting,
                error,
                "cannot accept connections; is the open file limit (ulimit -n) too low?"
            );
        }
    }

    ConnectionEvicted { setting: &'static str, peer: IpAddr } (telemetry) {
        if telemetry.metrics.connections_cut.add([setting, "gave_way"], 1) == 1 {
            tracing::warn!(
                port = setting,
                %peer,
                "connection evicted: it was idle longest, and there is no memory for more \
                 connections; raise `memory.limit` if these peers are yours (further ones are \
                 counted in spanscore_connections_cut_total)"
            );
        }
    }

    ConnectionRejected { setting: &'static str, peer: IpAddr } (telemetry) {
        if telemetry.metrics.connections_cut.add([setting, "no_slot"], 1) == 1 {
            tracing::warn!(
                port = setting,
                %peer,
                "closed a new connection: there is no memory for more connections; raise \
                 `memory.limit` if this peer is yours (further ones are counted in \
                 spanscore_connections_cut_total)"
            );
        }
    }

    HandshakeFailed { setting: &'static str, error: String } (telemetry) {
        let n_failures = telemetry.metrics.tls_handshake_failures.add([setting], 1);
        match n_failures {
            1 => tracing::warn!(
                port = setting,
                error,
                "TLS handshake failed; does the client use https and the right certificate? \
                 (further failures are counted and logged at debug level)"
            ),
            _ => tracing::debug!(port = setting, error, "TLS handshake failed"),
        }
    }

    CertificatesReplaced { files: String } (telemetry) {
        telemetry.metrics.certificate_reloads.add(["replaced"], 1);
        tracing::info!(
            files,
            "certificate files changed; new connections use the new certificates"
        );
    }

    CertificatesUnusable { error: String } (telemetry) {
        telemetry.metrics.certificate_reloads.add(["unusable"], 1);
        tracing::warn!(
            error,
            "changed certificate files cannot be used; the last good certificates stay in use"
        );
    }
}
