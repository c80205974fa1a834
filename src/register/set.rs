//! The active set of criteria: the lock that serialises changes, and the swap that activates a new
//! set.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use judge::evaluate::Coverage;
use judge::pipeline::Rules;
use otlp::span::Now;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::RenewHeaders;
use super::error::{ApiError, not_registered};
use super::limits::{CallSlots, PATTERN_LIMITS, check_keys, check_registrations, check_scope};
use super::merge::{self, CriteriaSet, CriterionSource, Registration, SetChanges};
use super::state::StateFile;
use super::view::{DeletedView, ListView, RegistrationView, ReplacedView};
use crate::config::{self, Config};
use crate::rfc3339::rfc3339;
use crate::sync::Mutex;
use crate::telemetry::{CriteriaActive, CriteriaShadowed, RegistrationsExpired, Telemetry};

/// The active criteria, and the operations that change them.
#[derive(Clone)]
pub struct Register(pub(super) Arc<RegisterState>);

pub(super) struct RegisterState {
    /// The set from which `rules` were made. Both change together, under `config`'s lock.
    pub(super) set: ArcSwap<CriteriaSet>,
    pub(super) rules: Arc<ArcSwap<Rules>>,
    pub(super) coverage: Arc<Mutex<Coverage>>,
    /// The running configuration. All writers take its lock, and hold it for a moment or, with a
    /// state file, for a write to disk.
    pub(super) config: Mutex<Config>,
    pub(super) state_file: Option<StateFile>,
    pub(super) reloads: mpsc::Sender<oneshot::Sender<ReloadOutcome>>,
    pub(super) last_reload: Mutex<Option<Value>>,
    pub(super) has_origin: bool,
    pub(super) slots: CallSlots,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) renew_headers: RenewHeaders,
    pub(super) clock: fn() -> Now,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Precondition {
    pub(super) if_match: Option<EtagMatch>,
    pub(super) if_none_match: Option<EtagMatch>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EtagMatch {
    /// `*`: any version that exists.
    Any,
    OneOf(Vec<String>),
}

#[derive(Debug, Clone, Default)]
pub(super) struct ChangeOptions {
    pub(super) precondition: Precondition,
    pub(super) ttl: Option<Duration>,
    pub(super) validate_only: bool,
}

/// A registered criterion; `is_new` if no criterion had its name.
pub(super) struct UpsertOutcome {
    pub(super) registration: RegistrationView,
    pub(super) is_new: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ReloadOutcome {
    /// The set from the files is active.
    Applied {
        revision: String,
        changed: bool,
        /// Other changed sections, such as `tools`, and keys with changed secrets; all are active
        /// now.
        settings: Vec<String>,
        needs_restart: Vec<String>,
    },
    /// The previous set stays active.
    Refused {
        /// All mistakes, as `validate` prints them.
        problems: String,
    },
    /// There is no file to reload.
    NoFile,
}

/// The sidecar stops and does not reload.
#[derive(Debug, thiserror::Error)]
#[error("the sidecar is shutting down")]
pub struct ReloadStopped;

impl Register {
    /// Requests a reload without waiting. A request that is already pending also covers this one.
    /// The result is logged.
    pub fn reload_soon(&self) {
        let _ = self.0.reloads.try_send(oneshot::channel().0);
    }

    /// Reloads the configuration and waits for the result.
    ///
    /// # Errors
    /// Returns an error if the reloader has stopped.
    pub async fn reload(&self) -> Result<ReloadOutcome, ReloadStopped> {
        let (answer, outcome) = oneshot::channel();
        self.0
            .reloads
            .send(answer)
            .await
            .map_err(|_| ReloadStopped)?;
        outcome.await.map_err(|_| ReloadStopped)
    }

    pub fn revisions(&self) -> BTreeMap<String, String> {
        let set = self.0.set.load();
        set.active()
            .into_iter()
            .map(|criterion| (criterion.name.clone(), criterion.revision().to_owned()))
            .collect()
    }

    // === reading ===

    pub(super) fn get(&self, name: &str) -> Result<RegistrationView, ApiError> {
        self.0
            .set
            .load()
            .get(name)
            .map(RegistrationView::from)
            .ok_or_else(|| not_registered(name))
    }

    pub(super) fn list(&self) -> ListView {
        ListView::new(&self.0.set.load())
    }

    pub(super) fn status(&self) -> Value {
        let set = self.0.set.load();
        let n_api = set.registrations().len();
        let state_file = self.0.state_file.as_ref();
        let (n_sessions, sessions_judged) = self.0.telemetry.sessions();
        let coverage: Vec<Value> = self
            .0
            .coverage
            .lock()
            .criteria()
            .map(|coverage| {
                json!({
                    "criterion": coverage.criterion,
                    "since": coverage.since_unix_nanos.map(rfc3339),
                    "seen": coverage.n_seen,
                    "matched": coverage.n_matched,
                    "earlier_turns": coverage.n_earlier_turns,
                    "alarms": coverage.n_alarms,
                    "problem": coverage.problem,
                })
            })
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "phase": self.0.telemetry.phase().as_str(),
            "criteria": {
                "revision": set.revision(),
                "total": set.len(),
                "api": n_api,
                "shadowing": set.shadowing(),
                "next_expiry": set.next_expiry().map(rfc3339),
            },
            "coverage": coverage,
            "sessions": { "stored": n_sessions, "judged": sessions_judged },
            "received_scores": {
                "forwarded": self.0.telemetry.received_scores("forward"),
                "dropped": self.0.telemetry.received_scores("drop"),
            },
            "destinations": self.destinations(),
            "state_file": state_file.map(|file| file.path().display().to_string()),
            "reload": { "watches": self.0.has_origin, "last": *self.last_reload() },
        })
    }

    fn destinations(&self) -> Vec<Value> {
        let Now {
            instant,
            unix_nanos,
        } = (self.0.clock)();
        let time = |at: Instant| {
            let ago = instant.saturating_duration_since(at).as_nanos();
            rfc3339(unix_nanos.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX)))
        };
        let error = |failure: Option<(Instant, String)>| {
            failure.map(|(at, error)| json!({ "time": time(at), "error": error }))
        };
        let all = self.0.telemetry.destinations().into_iter();
        all.map(|status| {
            json!({
                "queue": status.queue,
                "setting": status.origin,
                "endpoint": status.endpoint,
                "state": status.state.as_str(),
                "last_accepted": status.last_accepted.map(time),
                "last_refused": error(status.last_refused),
                "last_failed": error(status.last_failed),
            })
        })
        .collect()
    }

    // === changing ===

    pub(super) fn upsert(
        &self,
        name: Option<&str>,
        text: &str,
        options: &ChangeOptions,
    ) -> Result<UpsertOutcome, ApiError> {
        let criterion: Arc<_> = config::criterion(text, name, PATTERN_LIMITS)
            .map_err(ApiError::Invalid)?
            .into();
        let name = criterion.name.clone();
        let mut is_new = false;
        let next = self.change("api", options.validate_only, |set, now| {
            let entry = set.get(&name);
            options
                .precondition
                .check(entry.map(|entry| entry.etag()))?;
            is_new = entry.is_none();
            Ok(set.with(Registration {
                criterion,
                expires_unix_nanos: options.expiry(now),
            }))
        })?;
        let entry = next.get(&name).ok_or_else(|| not_registered(&name))?;
        Ok(UpsertOutcome {
            registration: entry.into(),
            is_new,
        })
    }

    /// Deletes a registration of the API. A criterion of the same name in the files becomes active
    /// again.
    pub(super) fn delete(
        &self,
        name: &str,
        options: &ChangeOptions,
    ) -> Result<DeletedView, ApiError> {
        let next = self.change("api", options.validate_only, |set, _| {
            let entry = set.get(name).ok_or_else(|| not_registered(name))?;
            options.precondition.check(Some(entry.etag()))?;
            match entry.source {
                CriterionSource::Api => Ok(set.without(name)),
                CriterionSource::File => Err(ApiError::Forbidden(format!(
                    "`{name}` comes from the configuration file: remove it there, or register \
                     another criterion under its name to replace it"
                ))),
            }
        })?;
        Ok(DeletedView::new(&next, name))
    }

    /// Replaces all registrations of the API with the criteria in `text`.
    pub(super) fn replace(
        &self,
        text: &str,
        options: &ChangeOptions,
    ) -> Result<ReplacedView, ApiError> {
        let criteria = config::criteria(text, PATTERN_LIMITS).map_err(ApiError::Invalid)?;
        let mut changes = SetChanges::default();
        let next = self.change("api", options.validate_only, |set, now| {
            options.precondition.check(Some(set.etag()))?;
            let expires_unix_nanos = options.expiry(now);
            let next = set.with_all(criteria.into_iter().map(|criterion| Registration {
                criterion: criterion.into(),
                expires_unix_nanos,
            }));
            changes = set.changes_to(&next);
            Ok(next)
        })?;
        Ok(ReplacedView::new(&next, changes))
    }

    pub(super) fn expire(&self) {
        let now = self.unix_nanos();
        let before = self.0.set.load();
        if before.next_expiry().is_none_or(|expires| expires > now) {
            return;
        }
        let n_before = before.registrations().len();
        let expired = self.change("ttl", false, |set, now| {
            Ok(set.expired(now).unwrap_or_else(|| set.clone()))
        });
        let gone = expired
            .map(|after| n_before.saturating_sub(after.registrations().len()))
            .map_err(|error| error.detail());
        RegistrationsExpired { gone }.emit(&self.0.telemetry);
    }

    /// Activates a reloaded configuration, except for keys that need a restart.
    pub(super) fn apply_config(&self, loaded: Config) -> Result<ReloadOutcome, ApiError> {
        let mut config = self.config();
        let (next_config, needs_restart) = config.reloaded(loaded);
        let before = self.0.set.load_full();
        let next = before
            .with_file(next_config.criteria.clone())
            .read_from(next_config.criterion_files());
        let rules = self.checked_rules(&next_config, &next)?;
        let mut settings = next_config.changed_settings(&config);
        let secrets = next_config.changed_secrets(&config);
        if !secrets.is_empty() {
            (self.0.renew_headers)(&next_config).map_err(ApiError::Internal)?;
            settings.extend(secrets);
        }
        *config = next_config;
        let next = self.swap(next, rules, "file");
        Ok(ReloadOutcome::Applied {
            revision: next.revision(),
            changed: !before.changes_to(&next).is_empty(),
            settings,
            needs_restart,
        })
    }

    pub(super) fn start(&self, set: CriteriaSet) {
        let config = self.config();
        let rules = self.rules_for(&config, &set);
        self.swap(set, rules, "start");
    }

    fn change(
        &self,
        cause: &'static str,
        validate_only: bool,
        make: impl FnOnce(&CriteriaSet, u64) -> Result<CriteriaSet, ApiError>,
    ) -> Result<Arc<CriteriaSet>, ApiError> {
        let config = self.config();
        let next = make(&self.0.set.load(), self.unix_nanos())?;
        check_registrations(&next)?;
        let rules = self.checked_rules(&config, &next)?;
        if validate_only {
            return Ok(Arc::new(next));
        }
        if let Some(file) = &self.0.state_file {
            file.write(next.registrations()).map_err(|error| {
                ApiError::Internal(format!(
                    "cannot write the state file `{}`: {error}; nothing was changed",
                    file.path().display()
                ))
            })?;
        }
        Ok(self.swap(next, rules, cause))
    }

    fn checked_rules(&self, config: &Config, set: &CriteriaSet) -> Result<Rules, ApiError> {
        let mut criteria = set.active().into_iter();
        let name = "scope";
        criteria
            .try_for_each(|criterion| check_scope(config, criterion))
            .map_err(|detail| ApiError::Argument { name, detail })?;
        let rules = self.rules_for(config, set);
        check_keys(&rules)?;
        Ok(rules)
    }

    fn rules_for(&self, config: &Config, set: &CriteriaSet) -> Rules {
        let criteria = set
            .active()
            .into_iter()
            .map(|criterion| (**criterion).clone())
            .collect();
        merge::rules(config, criteria, Some(&self.0.rules.load()))
    }

    /// Swaps the set and the rules. Call it only under `config`'s lock.
    fn swap(&self, next: CriteriaSet, rules: Rules, cause: &'static str) -> Arc<CriteriaSet> {
        let next = Arc::new(next);
        let before = self.0.set.swap(next.clone());
        let now = self.unix_nanos();
        self.0.coverage.lock().follow(&rules.criteria, Some(now));
        self.0.rules.store(Arc::new(rules));
        let changes = before.changes_to(&next);
        let n_api = next.registrations().len();
        let shadowed_before = before.shadowing();
        let newly_shadowed: Vec<String> = next
            .shadowing()
            .into_iter()
            .filter(|name| cause == "start" || !shadowed_before.contains(name))
            .map(str::to_owned)
            .collect();
        if !newly_shadowed.is_empty() {
            CriteriaShadowed {
                names: newly_shadowed,
            }
            .emit();
        }
        if !changes.is_empty() || cause == "start" {
            CriteriaActive {
                n_criteria: next.len(),
                n_api,
                revision: next.revision(),
                cause,
            }
            .emit(&self.0.telemetry);
        }
        next
    }

    /// Runs slow work on a blocking thread, one call at a time.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.0.slots.work)
            .acquire_owned()
            .await
            .map_err(|_| ApiError::Busy)?;
        let register = self.clone();
        // If the caller disconnects, the change is still made completely.
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&register)
        });
        done.await.unwrap_or_else(|_| {
            Err(ApiError::Internal(
                "the call panicked; please report this as a bug".to_owned(),
            ))
        })
    }

    fn config(&self) -> MutexGuard<'_, Config> {
        self.0.config.lock()
    }

    pub(super) fn last_reload(&self) -> MutexGuard<'_, Option<Value>> {
        self.0.last_reload.lock()
    }

    pub(super) fn unix_nanos(&self) -> u64 {
        (self.0.clock)().unix_nanos
    }
}

impl Precondition {
    fn check(&self, current: Option<String>) -> Result<(), ApiError> {
        let matches = |tags: &EtagMatch| match (tags, &current) {
            (EtagMatch::Any, current) => current.is_some(),
            (EtagMatch::OneOf(tags), Some(current)) => tags.contains(current),
            (EtagMatch::OneOf(_), None) => false,
        };
        if self.if_match.as_ref().is_some_and(|tags| !matches(tags)) {
            return Err(ApiError::Conflict(match &current {
                Some(etag) => {
                    format!("ETag mismatch: the current version is \"{etag}\"; re-read and retry")
                }
                None => "ETag mismatch: no criterion has this name; re-read and retry".to_owned(),
            }));
        }
        if self.if_none_match.as_ref().is_some_and(matches) {
            let etag = current.unwrap_or_default();
            return Err(ApiError::Exists(format!(
                "already exists: the current version is \"{etag}\""
            )));
        }
        Ok(())
    }
}

impl ChangeOptions {
    fn expiry(&self, now_unix_nanos: u64) -> Option<u64> {
        self.ttl.map(|ttl| {
            now_unix_nanos.saturating_add(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX))
        })
    }
}

impl ReloadOutcome {
    /// Returns the JSON of `POST /-/reload` and `/v1/status`.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Applied {
                revision,
                changed,
                settings,
                needs_restart,
            } => json!({
                "result": "applied",
                "revision": revision,
                "changed": changed,
                "settings": settings,
                "needs_restart": needs_restart,
            }),
            Self::Refused { problems } => json!({ "result": "refused", "problems": problems }),
            Self::NoFile => json!({ "result": "no_file" }),
        }
    }
}
