//! Events of the criteria while the sidecar runs, and of the API on the admin port.

use std::net::SocketAddr;

use super::Telemetry;

/// The API is open.
#[derive(Debug)]
pub struct ApiOpen {
    /// Where the admin port is bound.
    pub address: SocketAddr,
    /// The permitted callers.
    pub to: &'static str,
    /// Whether its token travels unencrypted.
    pub in_the_clear: bool,
}

impl ApiOpen {
    /// Logs it.
    pub fn emit(self) {
        let Self {
            address,
            to,
            in_the_clear,
        } = self;
        match in_the_clear {
            true => {
                tracing::warn!(
                    %address,
                    to,
                    "the API is open; its token travels unencrypted unless `admin.tls` is set"
                )
            }
            false => tracing::info!(%address, to, "the API is open"),
        }
    }
}

/// The API refused a request.
#[derive(Debug)]
pub struct ApiRefused {
    /// `closed`, `cross_origin`, `foreign_host`, `no_certificate`, `no_token`, `wrong_token`.
    pub reason: &'static str,
    /// The message that the caller received.
    pub remedy: &'static str,
}

impl ApiRefused {
    /// Counts it; the first of each kind is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { reason, remedy } = self;
        match telemetry.metrics.api_refused.add([reason], 1) {
            1 => tracing::warn!(
                reason,
                remedy,
                "API request refused \
                 (further refusals of this kind are counted and logged at debug level)"
            ),
            _ => tracing::debug!(reason, remedy, "API request refused"),
        }
    }
}

/// The token file was usable at start and no longer is: API requests are refused.
#[derive(Debug)]
pub struct TokenUnusable {
    /// The problem.
    pub error: String,
}

impl TokenUnusable {
    /// Counts it; the first is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        match telemetry.metrics.api_token_unusable.add([], 1) {
            1 => tracing::warn!(
                error = self.error,
                "API request refused because the token file cannot be used \
                 (further refusals are counted and logged at debug level)"
            ),
            _ => tracing::debug!(
                error = self.error,
                "API request refused because the token file cannot be used"
            ),
        }
    }
}

/// A set of criteria came into force.
#[derive(Debug)]
pub struct CriteriaInForce {
    /// How many.
    pub n_criteria: usize,
    /// How many of them were registered by the API.
    pub n_api: usize,
    /// Revision of the set.
    pub revision: String,
    /// `start`, `file`, `api`, `ttl`.
    pub cause: &'static str,
}

impl CriteriaInForce {
    /// Sets the gauges and logs it.
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

/// The API registered criteria that replace criteria of the files.
#[derive(Debug)]
pub struct CriteriaShadowed {
    /// Their names.
    pub names: Vec<String>,
}

impl CriteriaShadowed {
    /// Logs it: whoever reads the files would not notice otherwise.
    pub fn emit(self) {
        tracing::warn!(
            criteria = self.names.join(", "),
            "the API replaces criteria of the configuration files; `spanscore criteria delete` \
             brings those of the files back"
        );
    }
}

/// Configuration files were reloaded; keys that can change at run time are in force.
#[derive(Debug)]
pub struct ConfigurationReloaded {
    /// Revision of the set of criteria.
    pub revision: String,
    /// Whether any criterion changed.
    pub changed: bool,
    /// The other sections that changed and are in force.
    pub settings: Vec<String>,
    /// Keys whose new values need a restart.
    pub needs_restart: Vec<String>,
    /// Probable mistakes, as `validate` prints them.
    pub warnings: String,
}

impl ConfigurationReloaded {
    /// Counts and logs it.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            revision,
            changed,
            settings,
            needs_restart,
            warnings,
        } = self;
        let changed = changed || !settings.is_empty();
        let settings = settings.join(", ");
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
                "changed configuration keys take effect after a restart"
            );
        }
        match changed {
            true if warnings.is_empty() => {
                tracing::info!(revision, settings, "configuration reloaded");
            }
            true => tracing::warn!(
                revision,
                settings,
                warnings,
                "configuration reloaded, with warnings"
            ),
            false => tracing::debug!(revision, "configuration reloaded; nothing changed"),
        }
    }
}

/// Configuration files cannot be used; the last good set of criteria stays in force, or the part of
/// them that a start could use.
#[derive(Debug)]
pub struct ConfigurationRefused {
    /// Every mistake, as `validate` prints them.
    pub problems: String,
}

impl ConfigurationRefused {
    /// Counts and logs it.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.config_reloads.add(["refused"], 1);
        telemetry.metrics.config_reload_failed.set([], 1);
        tracing::error!(
            problems = self.problems,
            "the configuration has mistakes and was not loaded: what was in force stays; after a \
             start with reload.at_start: forward, that is the part of it that can be used"
        );
    }
}

/// Registrations expired.
#[derive(Debug)]
pub struct RegistrationsExpired {
    /// How many were removed, or why they could not be.
    pub gone: Result<usize, String>,
}

impl RegistrationsExpired {
    /// Counts and logs it.
    pub fn emit(self, telemetry: &Telemetry) {
        match self.gone {
            Ok(n) => {
                telemetry.metrics.registrations_expired.add([], n as u64);
                tracing::info!(n, "registrations expired");
            }
            Err(error) => {
                if telemetry.metrics.registrations_kept.add([], 1) == 1 {
                    tracing::error!(
                        error,
                        "expired registrations could not be removed; retrying every second"
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
    /// Where its content was saved.
    pub kept: String,
    /// The problem.
    pub problems: String,
}

impl StateFileUnusable {
    /// Counts and logs it.
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
