//! What happened to the criteria while the sidecar runs, and at the API of the admin port.

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
        let Self {
            address,
            to,
            in_the_clear,
        } = self;
        match in_the_clear {
            true => {
                tracing::warn!(%address, to, "the API answers; its token travels unencrypted, unless `admin.tls` is set")
            }
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
        match telemetry.metrics.api_refused.add([reason], 1) {
            1 => tracing::warn!(
                reason,
                remedy,
                "the API refused a caller (further ones are counted and logged at debug)"
            ),
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
        match telemetry.metrics.api_token_unusable.add([], 1) {
            1 => tracing::warn!(
                error = self.error,
                "callers of the API are refused (further ones are counted and logged at debug)"
            ),
            _ => tracing::debug!(error = self.error, "callers of the API are refused"),
        }
    }
}

/// A set of criteria came into force.
#[derive(Debug)]
pub struct CriteriaInForce {
    /// How many.
    pub n_criteria: usize,
    /// How many of them came by the API.
    pub n_api: usize,
    /// Revision of the set.
    pub revision: String,
    /// `start`, `file`, `api`, `ttl`.
    pub cause: &'static str,
}

impl CriteriaInForce {
    /// Set the gauges, and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            n_criteria,
            n_api,
            revision,
            cause,
        } = self;
        let n_file = n_criteria.saturating_sub(n_api);
        telemetry.metrics.criteria.set(["file"], n_file);
        telemetry.metrics.criteria.set(["api"], n_api);
        telemetry.metrics.criteria_sets.add([cause], 1);
        tracing::info!(n_criteria, n_api, revision, cause, "criteria in force");
    }
}

/// Configuration files were read again, and what may change is in force.
#[derive(Debug)]
pub struct ConfigurationReloaded {
    /// Revision of the set of criteria.
    pub revision: String,
    /// Is any criterion another one?
    pub changed: bool,
    /// Keys whose new values need a restart.
    pub needs_restart: Vec<String>,
    /// What is probably not meant so, as `validate` prints it.
    pub warnings: String,
}

impl ConfigurationReloaded {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            revision,
            changed,
            needs_restart,
            warnings,
        } = self;
        let result = if changed { "applied" } else { "unchanged" };
        telemetry.metrics.config_reloads.add([result], 1);
        telemetry.metrics.config_reload_failed.set([], 0);
        telemetry
            .metrics
            .config_needs_restart
            .set([], usize::from(!needs_restart.is_empty()));
        if !needs_restart.is_empty() {
            tracing::warn!(
                keys = needs_restart.join(", "),
                "these keys of the configuration have changed, which needs a restart"
            );
        }
        match changed {
            true if warnings.is_empty() => tracing::info!(revision, "configuration reloaded"),
            true => tracing::warn!(revision, warnings, "configuration reloaded, with warnings"),
            false => tracing::debug!(
                revision,
                "configuration read again: the criteria are the same"
            ),
        }
    }
}

/// Configuration files cannot be used; the last good set of criteria stays in force.
#[derive(Debug)]
pub struct ConfigurationRefused {
    /// Every mistake, as `validate` prints them.
    pub problems: String,
}

impl ConfigurationRefused {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.config_reloads.add(["refused"], 1);
        telemetry.metrics.config_reload_failed.set([], 1);
        tracing::error!(
            problems = self.problems,
            "the configuration was not reloaded; the last good one stays in force"
        );
    }
}

/// Registrations ran out.
#[derive(Debug)]
pub struct RegistrationsExpired {
    /// How many were taken out, or why they could not be.
    pub gone: Result<usize, String>,
}

impl RegistrationsExpired {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        match self.gone {
            Ok(n) => {
                telemetry.metrics.registrations_expired.add([], n as u64);
                tracing::info!(n, "registrations ran out");
            }
            Err(error) => {
                if telemetry.metrics.registrations_kept.add([], 1) == 1 {
                    tracing::error!(
                        error,
                        "registrations ran out and could not be taken out; tried again each second"
                    );
                }
            }
        }
    }
}

/// The state file could be read but not understood.
#[derive(Debug)]
pub struct StateFileUnusable {
    /// Where it is.
    pub path: String,
    /// Where what stood in it is kept.
    pub kept: String,
    /// What is wrong with it.
    pub problems: String,
}

impl StateFileUnusable {
    /// Count and log it.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            path,
            kept,
            problems,
        } = self;
        telemetry.metrics.state_file_unusable.add([], 1);
        tracing::error!(
            path,
            kept,
            problems,
            "some registrations of the state file are lost; the others are in force"
        );
    }
}
