//! Events of criteria that change while the sidecar runs, and of the API on the admin port.

use std::net::SocketAddr;

use super::Telemetry;

events! {
    ApiOpen { address: SocketAddr, to: &'static str, in_the_clear: bool } () {
        if in_the_clear {
            tracing::warn!(
                %address,
                to,
                "API enabled; its token is sent unencrypted, set `admin.tls`"
            )
        } else {
            tracing::info!(%address, to, "API enabled")
        }
    }

    ApiRefused { reason: &'static str, remedy: &'static str } (telemetry) {
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

    TokenUnusable { error: String } (telemetry) {
        match telemetry.metrics.api_token_unusable.add([], 1) {
            1 => tracing::warn!(
                error,
                "API request refused because the token file cannot be used \
                 (further refusals are counted and logged at debug level)"
            ),
            _ => tracing::debug!(
                error,
                "API request refused because the token file cannot be used"
            ),
        }
    }

    CriteriaActive {
        n_criteria: usize,
        n_api: usize,
        revision: String,
        cause: &'static str,
    } (telemetry) {
        let n_file = n_criteria.saturating_sub(n_api);
        telemetry.metrics.criteria.set(["file"], n_file);
        telemetry.metrics.criteria.set(["api"], n_api);
        telemetry.metrics.criteria_sets.add([cause], 1);
        tracing::info!(n_criteria, n_api, revision, cause, "criteria in force");
    }

    CriteriaShadowed { names: Vec<String> } () {
        tracing::warn!(
            criteria = names.join(", "),
            "criteria from the API override criteria of the same names from files; restore the \
             criteria of the files with `spanscore criteria delete`"
        );
    }

    ConfigurationReloaded {
        revision: String,
        changed: bool,
        settings: Vec<String>,
        needs_restart: Vec<String>,
        warnings: String,
    } (telemetry) {
        let changed = changed || !settings.is_empty();
        let settings = settings.join(", ");
        let result = if changed { "applied" } else { "unchanged" };
        telemetry.metrics.config_reloads.add([result], 1);
        telemetry.metrics.config_reload_failed.set([], 0);
        telemetry.metrics.config_needs_restart.set([], usize::from(!needs_restart.is_empty()));
        if !needs_restart.is_empty() {
            tracing::warn!(
                keys = needs_restart.join(", "),
                "changed configuration keys take effect after a restart"
            );
        }
        if !changed {
            tracing::debug!(revision, "configuration reloaded; nothing changed");
        } else if warnings.is_empty() {
            tracing::info!(revision, settings, "configuration reloaded");
        } else {
            tracing::warn!(revision, settings, warnings, "configuration reloaded, with warnings");
        }
    }

    /// Configuration files cannot be used. The previous configuration stays active: the last good
    /// one, or the valid part of the configuration at the start.
    ConfigurationRefused { problems: String } (telemetry) {
        telemetry.metrics.config_reloads.add(["refused"], 1);
        telemetry.metrics.config_reload_failed.set([], 1);
        tracing::error!(
            problems,
            "configuration rejected; the previous one stays in force (after a start with \
             `reload.at_start: forward`: its valid part)"
        );
    }

    RegistrationsExpired { gone: Result<usize, String> } (telemetry) {
        match gone {
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

    StateFileUnusable { path: String, kept: String, problems: String } (telemetry) {
        telemetry.metrics.state_file_unusable.add([], 1);
        tracing::error!(
            path,
            kept,
            problems,
            "registrations in the state file cannot be parsed; the other registrations are in \
             force, and `kept` is a copy of the file"
        );
    }
}
