//! Criteria while the sidecar runs: files that change and callers of the API in, one immutable set
//! that traces are judged by out. The shell around [`merge`]: it holds the set in force, swaps it
//! whole, keeps what came by the API in a file, and tells who watches.
//!
//! A change is made under one lock, from the check of its condition to the swap, so two writers
//! never undo each other unseen; readers and the scoring thread take no lock. REST and gRPC call
//! the same functions here and differ in how they are spelled.

pub mod merge;

mod grpc;
mod judge;
mod openapi;
mod problem;
mod rest;
mod state;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot};

use crate::config::{self, Config};
use crate::evaluate::{self, Criterion};
use crate::pipeline::Rules;
use crate::span::Now;
use crate::sync::Mutex;
use crate::telemetry::{CriteriaInForce, RegistrationsExpired, StateFileUnusable, Telemetry};
use crate::text::rfc3339;

use merge::{Changes, Registered, Registration};
use problem::ApiError;
use state::StateFile;

pub use state::StateError;
pub use watch::{AGREEMENT, Origin, Outcome, Watcher};

/// Most bytes of a request's body.
const MAX_BODY_SIZE: usize = 4 << 20;
/// Most registrations by the API. Files may hold more: who writes them can also write the memory
/// limit.
const MAX_REGISTRATIONS: usize = 1_000;
/// Most bytes of one criterion that comes by the API, as compact JSON: what its expectations cost
/// when a long trace is judged.
const MAX_CRITERION_SIZE: usize = 32 << 10;
/// Most patterns of all registrations together, each of which may take 32 KiB, and as much again
/// while it searches.
const MAX_PATTERNS: usize = 1_000;
/// Most characters of a name that comes by the API.
const MAX_NAME_LENGTH: usize = 200;
/// Most attribute names that selectors may bring up in the life of one process: they keep their
/// numbers, so that spans taken in before a change can still be read after it.
const MAX_KEYS: usize = 4_096;
/// Longest life of a registration that is to end by itself.
const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 3600);
/// Bodies that are read at once, and changes and judgements that are worked on at once: telemetry
/// comes first.
const MAX_BODIES: usize = 8;
const MAX_WORK: usize = 2;
/// Most watchers at once.
const MAX_WATCHERS: usize = 256;
/// Applied sets that a slow watcher may be behind before it misses some.
const MAX_BEHIND: usize = 64;

/// What a register is made of.
pub struct Plan {
    /// The configuration that the sidecar was started with.
    pub config: Config,
    /// Where that was read from; without it nothing is reloaded.
    pub origin: Option<Origin>,
    /// What traces are judged by: swapped here, read by the scoring thread.
    pub rules: Arc<ArcSwap<Rules>>,
    /// The one clock.
    pub clock: fn() -> Now,
}

/// The criteria in force, and how they change.
#[derive(Clone)]
pub struct Register(Arc<Shared>);

struct Shared {
    /// The set that `rules` was made of. Changed together with it, under `config`'s lock.
    registered: ArcSwap<Registered>,
    rules: Arc<ArcSwap<Rules>>,
    /// What the sidecar runs by. The lock of all writers; held for a moment's work and, with a
    /// state file, for a write to disk.
    config: Mutex<Config>,
    state_file: Option<StateFile>,
    applied: broadcast::Sender<Arc<Applied>>,
    reloads: mpsc::Sender<oneshot::Sender<Outcome>>,
    last_reload: Mutex<Option<Value>>,
    has_origin: bool,
    bodies: Semaphore,
    work: Arc<Semaphore>,
    watchers: Arc<Semaphore>,
    telemetry: Arc<Telemetry>,
    clock: fn() -> Now,
}

/// A set came into force.
#[derive(Debug, Clone)]
struct Applied {
    revision: String,
    n_criteria: usize,
    /// `start`, `file`, `api`, `ttl`.
    cause: &'static str,
    unix_nanos: u64,
    changes: Changes,
}

/// What must hold of what is there for a change to be made: `If-Match` and `If-None-Match`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Condition {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tags {
    Any,
    These(Vec<String>),
}

/// How a change is to be made.
#[derive(Debug, Clone, Default)]
struct Change {
    condition: Condition,
    /// The registrations end by themselves after so long.
    ttl: Option<Duration>,
    /// Only tell whether it could be made.
    validate_only: bool,
}

impl Register {
    /// The register, and the watcher that reloads files and takes out what has run out.
    ///
    /// # Errors
    /// The state file cannot be used.
    pub fn open(plan: Plan, telemetry: &Arc<Telemetry>) -> Result<(Self, Watcher), StateError> {
        let Plan {
            config,
            origin,
            rules,
            clock,
        } = plan;
        let state_file = config
            .admin
            .state_file
            .as_deref()
            .map(StateFile::open)
            .transpose()?;
        let (state_file, restored) = state_file
            .map(|(file, restored)| (Some(file), restored))
            .unwrap_or_default();
        if let (Some(file), false) = (&state_file, restored.unusable.is_empty()) {
            let kept = format!("{}.unusable", file.path().display());
            StateFileUnusable {
                path: file.path().display().to_string(),
                kept,
                problems: restored.unusable.join("; "),
            }
            .emit(telemetry);
        }
        let registered = Registered::new(config.criteria.clone(), restored.registrations);
        let registered = registered.expired(clock().unix_nanos).unwrap_or(registered);
        let (reloads, requests) = mpsc::channel(1);
        let interval = config.reload.interval.0;
        let shared = Shared {
            registered: ArcSwap::from_pointee(Registered::default()),
            rules,
            config: Mutex::new(config),
            state_file,
            applied: broadcast::Sender::new(MAX_BEHIND),
            reloads,
            last_reload: Mutex::default(),
            has_origin: origin.is_some(),
            bodies: Semaphore::new(MAX_BODIES),
            work: Arc::new(Semaphore::new(MAX_WORK)),
            watchers: Arc::new(Semaphore::new(MAX_WATCHERS)),
            telemetry: Arc::clone(telemetry),
            clock,
        };
        let register = Self(Arc::new(shared));
        {
            let config = register.config();
            let rules = register.rules_of(&config, &registered);
            register.swap(registered, rules, "start");
        }
        let watcher = Watcher::new(register.clone(), origin, interval, requests);
        Ok((register, watcher))
    }

    /// The same without waiting; what comes of it is logged. If one is asked for already, that one
    /// will do.
    pub fn reload_soon(&self) {
        let _ = self.0.reloads.try_send(oneshot::channel().0);
    }

    /// REST and gRPC, for the admin port.
    pub fn routes(&self) -> Router {
        rest::routes(self.clone()).merge(grpc::routes(self.clone()))
    }

    /// Reads the configuration again, as soon as the watcher gets to it.
    ///
    /// # Errors
    /// The watcher has ended, or has as much to do as it takes.
    pub async fn reload(&self) -> Result<Outcome, Stopped> {
        let (answer, outcome) = oneshot::channel();
        self.0.reloads.send(answer).await.map_err(|_| Stopped)?;
        outcome.await.map_err(|_| Stopped)
    }

    /// The revision of each criterion in force, by name.
    pub fn revisions(&self) -> BTreeMap<String, String> {
        let registered = self.0.registered.load();
        registered
            .in_force()
            .into_iter()
            .map(|criterion| (criterion.name.clone(), criterion.revision().to_owned()))
            .collect()
    }

    // === what is there ===

    fn get(&self, name: &str) -> Result<Value, ApiError> {
        self.0
            .registered
            .load()
            .get(name)
            .map(|entry| entry.to_json())
            .ok_or_else(|| not_registered(name))
    }

    /// A page, sorted by name: those behind `after`.
    fn list(&self, page_size: usize, after: Option<&str>) -> Value {
        let registered = self.0.registered.load();
        let entries = registered.entries();
        let mut rest = entries
            .iter()
            .filter(|(name, _)| after.is_none_or(|after| **name > after))
            .map(|(_, entry)| entry)
            .peekable();
        let page: Vec<_> = rest.by_ref().take(page_size).collect();
        let mut shown = json!({
            "criteria": page.iter().map(|entry| entry.to_json()).collect::<Vec<_>>(),
            "revision": registered.revision(),
            "etag": registered.etag(),
        });
        if let (Some(last), true) = (page.last(), rest.peek().is_some()) {
            shown["next_page_token"] =
                json!(data_encoding::BASE64URL_NOPAD.encode(last.criterion.name.as_bytes()));
        }
        shown
    }

    fn status(&self) -> Value {
        let registered = self.0.registered.load();
        let n_api = registered.registrations().len();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "phase": self.0.telemetry.phase().as_str(),
            "criteria": {
                "revision": registered.revision(),
                "total": registered.len(),
                "api": n_api,
                "next_expiry": registered.next_expiry().map(rfc3339),
            },
            "state_file": self.0.state_file.as_ref().map(|file| file.path().display().to_string()),
            "reload": { "watches": self.0.has_origin, "last": *self.0.last_reload.lock() },
        })
    }

    // === changes ===

    /// Registers a criterion under its name; tells whether it is new there.
    fn upsert(
        &self,
        name: Option<&str>,
        text: &str,
        change: &Change,
    ) -> Result<(Value, bool), ApiError> {
        let criterion = frugal(|| config::criterion(text, name))?;
        let name = criterion.name.clone();
        let criterion = Arc::new(criterion);
        let mut is_new = false;
        let registered = self.change("api", change.validate_only, |registered, now| {
            let entry = registered.get(&name);
            change.condition.check(entry.map(|entry| entry.etag()))?;
            is_new = entry.is_none();
            Ok(registered.with(Registration {
                criterion,
                expires_unix_nanos: change.expiry(now),
            }))
        })?;
        let shown = registered
            .get(&name)
            .map(|entry| entry.to_json())
            .ok_or_else(|| not_registered(&name))?;
        Ok((shown, is_new))
    }

    /// Takes out what the API registered under a name; what the file has there comes back.
    fn delete(&self, name: &str, change: &Change) -> Result<Value, ApiError> {
        let registered = self.change("api", change.validate_only, |registered, _| {
            let entry = registered.get(name).ok_or_else(|| not_registered(name))?;
            change.condition.check(Some(entry.etag()))?;
            match entry.source {
                merge::Source::Api => Ok(registered.without(name)),
                merge::Source::File => Err(ApiError::Forbidden(format!(
                    "`{name}` stands in the configuration file: take it out there, or register another one of its name in front of it"
                ))),
            }
        })?;
        let mut shown = json!({ "revision": registered.revision() });
        if let Some(entry) = registered.get(name) {
            shown["uncovered"] = entry.to_json();
        }
        Ok(shown)
    }

    /// Registers exactly these: what the API registered before and is not among them is taken out.
    fn replace(&self, text: &str, change: &Change) -> Result<Value, ApiError> {
        let criteria = frugal(|| config::criteria(text))?;
        let mut changes = Changes::default();
        let registered = self.change("api", change.validate_only, |registered, now| {
            change.condition.check(Some(registered.etag()))?;
            let expires_unix_nanos = change.expiry(now);
            let next = registered.with_all(criteria.into_iter().map(|criterion| Registration {
                criterion: criterion.into(),
                expires_unix_nanos,
            }));
            changes = registered.changes_to(&next);
            Ok(next)
        })?;
        Ok(json!({
            "revision": registered.revision(),
            "etag": registered.etag(),
            "added": changes.added,
            "changed": changes.changed,
            "removed": changes.removed,
        }))
    }

    /// Takes out what has run out.
    fn expire(&self) {
        let now = (self.0.clock)().unix_nanos;
        let before = self.0.registered.load();
        if before.next_expiry().is_none_or(|expires| expires > now) {
            return;
        }
        let gone = self.change("ttl", false, |registered, now| {
            Ok(registered
                .expired(now)
                .unwrap_or_else(|| registered.clone()))
        });
        let gone = gone
            .map(|after| {
                before
                    .registrations()
                    .len()
                    .saturating_sub(after.registrations().len())
            })
            .map_err(|error| error.detail());
        RegistrationsExpired { gone }.emit(&self.0.telemetry);
    }

    fn change(
        &self,
        cause: &'static str,
        validate_only: bool,
        make: impl FnOnce(&Registered, u64) -> Result<Registered, ApiError>,
    ) -> Result<Arc<Registered>, ApiError> {
        let config = self.config();
        let next = make(&self.0.registered.load(), (self.0.clock)().unix_nanos)?;
        check_limits(&next)?;
        let rules = self.rules_of(&config, &next);
        check_keys(&rules)?;
        if validate_only {
            return Ok(Arc::new(next));
        }
        if let Some(file) = &self.0.state_file {
            file.write(next.registrations()).map_err(|error| {
                ApiError::Internal(format!(
                    "the state file `{}` cannot be written: {error}; nothing was changed",
                    file.path().display()
                ))
            })?;
        }
        Ok(self.swap(next, rules, cause))
    }

    /// Takes over what a reload may change; tells what it may not.
    fn take_over(&self, loaded: Config) -> Result<(String, bool, Vec<String>), ApiError> {
        let mut config = self.config();
        let (next_config, needs_restart) = config.reloaded(loaded);
        let before = self.0.registered.load_full();
        let next = before.with_file(next_config.criteria.clone());
        let rules = self.rules_of(&next_config, &next);
        check_keys(&rules)?;
        *config = next_config;
        let registered = self.swap(next, rules, "file");
        let changed = !before.changes_to(&registered).is_empty();
        Ok((registered.revision(), changed, needs_restart))
    }

    fn rules_of(&self, config: &Config, registered: &Registered) -> Rules {
        let criteria = registered
            .in_force()
            .into_iter()
            .map(|criterion| (**criterion).clone())
            .collect();
        merge::rules(config, criteria, Some(&self.0.rules.load()))
    }

    /// Only under `config`'s lock.
    fn swap(&self, next: Registered, rules: Rules, cause: &'static str) -> Arc<Registered> {
        let next = Arc::new(next);
        let before = self.0.registered.swap(next.clone());
        self.0.rules.store(Arc::new(rules));
        let changes = before.changes_to(&next);
        let n_api = next.registrations().len();
        if !changes.is_empty() || cause == "start" {
            CriteriaInForce {
                n_criteria: next.len(),
                n_api,
                revision: next.revision(),
                cause,
            }
            .emit(&self.0.telemetry);
            let unix_nanos = (self.0.clock)().unix_nanos;
            // Nobody watching is fine.
            let _ = self.0.applied.send(Arc::new(Applied {
                revision: next.revision(),
                n_criteria: next.len(),
                cause,
                unix_nanos,
                changes,
            }));
        }
        next
    }

    fn config(&self) -> MutexGuard<'_, Config> {
        self.0.config.lock()
    }

    // === judging without keeping ===

    /// Judges what a caller sends by what it sends along, or by what is registered.
    fn evaluate(&self, text: &str) -> Result<Value, ApiError> {
        self.judge(frugal(|| judge::Question::read(text))?)
    }

    fn judge(&self, question: judge::Question) -> Result<Value, ApiError> {
        judge::judge(
            question,
            &self.0.registered.load(),
            &self.0.rules.load(),
            (self.0.clock)(),
        )
    }

    /// Runs what may take long on a thread that may block, a few at a time.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.0.work)
            .acquire_owned()
            .await
            .map_err(|_| ApiError::Busy)?;
        let register = self.clone();
        // A caller that goes away does not stop it half way: a change is made wholly or not at all.
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&register)
        });
        done.await.unwrap_or_else(|_| {
            Err(ApiError::Internal(
                "this call failed in an unforeseen way; please report it".to_owned(),
            ))
        })
    }
}

/// Nothing is reloaded any more: the sidecar stops.
#[derive(Debug, thiserror::Error)]
#[error("the sidecar stops")]
pub struct Stopped;

impl Condition {
    fn check(&self, current: Option<String>) -> Result<(), ApiError> {
        let matches = |tags: &Tags| match (tags, &current) {
            (Tags::Any, current) => current.is_some(),
            (Tags::These(tags), Some(current)) => tags.contains(current),
            (Tags::These(_), None) => false,
        };
        let there = current.as_deref().map_or_else(
            || "nothing is there".to_owned(),
            |etag| format!("what is there has the ETag \"{etag}\""),
        );
        if self.if_match.as_ref().is_some_and(|tags| !matches(tags)) {
            return Err(ApiError::Conflict(format!(
                "somebody else was faster: {there}; read it again, then decide"
            )));
        }
        if self.if_none_match.as_ref().is_some_and(matches) {
            return Err(ApiError::Exists(format!("it is there already: {there}")));
        }
        Ok(())
    }
}

impl Change {
    fn expiry(&self, now_unix_nanos: u64) -> Option<u64> {
        self.ttl.map(|ttl| {
            now_unix_nanos.saturating_add(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX))
        })
    }
}

/// Reads criteria that come over the network: their patterns are held to tighter bounds than those
/// of files.
fn frugal<T>(read: impl FnOnce() -> Result<T, config::Problems>) -> Result<T, ApiError> {
    evaluate::frugally(MAX_PATTERNS, read)
        .0
        .map_err(ApiError::Invalid)
}

fn not_registered(name: &str) -> ApiError {
    ApiError::NotFound(format!("no criterion is registered as `{name}`"))
}

fn check_limits(registered: &Registered) -> Result<(), ApiError> {
    if registered.registrations().len() > MAX_REGISTRATIONS {
        return Err(ApiError::Limit(format!(
            "more than {MAX_REGISTRATIONS} registrations: take some out, give test runs a `ttl`, or put lasting criteria into a file"
        )));
    }
    let mut n_patterns = 0;
    for Registration { criterion, .. } in registered.registrations() {
        n_patterns += check_criterion(criterion)?;
    }
    if n_patterns > MAX_PATTERNS {
        return Err(ApiError::Limit(format!(
            "more than {MAX_PATTERNS} patterns in all registrations together: put some into a file"
        )));
    }
    Ok(())
}

/// The number of its patterns.
fn check_criterion(criterion: &Criterion) -> Result<usize, ApiError> {
    let too_long = |text: &str| text.chars().count() > MAX_NAME_LENGTH;
    if too_long(&criterion.name) || criterion.name.chars().any(char::is_control) {
        let detail =
            format!("a name has at most {MAX_NAME_LENGTH} characters, and no control characters");
        return Err(ApiError::Argument {
            name: "name",
            detail,
        });
    }
    if criterion.selector_attributes().any(too_long) {
        let detail = format!("the name of an attribute has at most {MAX_NAME_LENGTH} characters");
        return Err(ApiError::Argument {
            name: "select.attributes",
            detail,
        });
    }
    let json = json!(criterion);
    if json.to_string().len() > MAX_CRITERION_SIZE {
        let detail = format!(
            "`{}` is larger than {} KiB: put it into a file",
            criterion.name,
            MAX_CRITERION_SIZE >> 10
        );
        return Err(ApiError::TooLarge(detail));
    }
    Ok(n_patterns(&json))
}

/// The patterns of a criterion, as it is shown.
fn n_patterns(criterion: &Value) -> usize {
    criterion.pointer("/evaluate/tool_calls").map_or(0, n_texts)
}

fn n_texts(value: &Value) -> usize {
    match value {
        Value::String(_) => 1,
        Value::Array(items) => items.iter().map(n_texts).sum(),
        Value::Object(fields) => fields.values().map(n_texts).sum(),
        _ => 0,
    }
}

fn check_keys(rules: &Rules) -> Result<(), ApiError> {
    if rules.keys().len() > MAX_KEYS {
        return Err(ApiError::Limit(format!(
            "selectors have named more than {MAX_KEYS} attributes since the sidecar started: name fewer, or restart it"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
