//! Limits what callers of the API may register, and the number of concurrent calls, so that
//! telemetry comes first.

use std::sync::Arc;
use std::time::Duration;

use judge::evaluate::{Criterion, PatternLimits, Scope};
use judge::pipeline::Rules;
use serde_json::json;
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::merge::{CriteriaSet, Registration};
use crate::config::Config;

pub(super) const MAX_BODY_SIZE: usize = 4 << 20;
/// Maximum number of registrations by the API. Files may contain more, because their author can
/// also raise the memory limit.
pub(super) const MAX_REGISTRATIONS: usize = 1_000;
/// Maximum bytes of one criterion registered by the API, as compact JSON. The limit bounds the cost
/// of judging a long trace by the criterion.
const MAX_CRITERION_SIZE: usize = 32 << 10;
/// Maximum number of patterns in all registrations together. Each pattern may use 32 KiB, and
/// another 32 KiB during a search.
pub(super) const MAX_PATTERNS: usize = 1_000;
/// Limits of the patterns in one request, tighter than the limits for files.
pub(crate) const PATTERN_LIMITS: PatternLimits = PatternLimits::network(MAX_PATTERNS);
/// Maximum length of a name that a caller sends, in characters.
pub(super) const MAX_NAME_LENGTH: usize = 200;
/// Maximum number of attribute keys that selectors may add while the process runs. Keys are never
/// renumbered, so that spans received before a change can still be read after it.
pub(super) const MAX_KEYS: usize = 4_096;
pub(super) const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 3600);

const MAX_CONCURRENT_BODIES: usize = 2;
const MAX_CONCURRENT_WORK: usize = 1;

pub(super) struct CallSlots {
    /// Limits the calls whose body is arriving.
    pub(super) bodies: Semaphore,
    /// Limits the calls that change the set, or judge.
    pub(super) work: Arc<Semaphore>,
}

impl Default for CallSlots {
    fn default() -> Self {
        Self {
            bodies: Semaphore::new(MAX_CONCURRENT_BODIES),
            work: Arc::new(Semaphore::new(MAX_CONCURRENT_WORK)),
        }
    }
}

pub(super) fn check_ttl(ttl: Duration) -> Result<Duration, ApiError> {
    if ttl.is_zero() || ttl > MAX_TTL {
        return Err(ApiError::Argument {
            name: "ttl",
            detail: "must be more than zero and at most 366 days; leave it out to keep the \
                     registration"
                .to_owned(),
        });
    }
    Ok(ttl)
}

pub(super) fn check_registrations(registered: &CriteriaSet) -> Result<(), ApiError> {
    if registered.registrations().len() > MAX_REGISTRATIONS {
        return Err(ApiError::Limit(format!(
            "more than {MAX_REGISTRATIONS} registrations: delete some, give test runs a `ttl`, or \
             put lasting criteria into a file"
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

/// Refuses a criterion with `scope: session` in a process that cannot judge sessions.
pub(super) fn check_scope(config: &Config, criterion: &Criterion) -> Result<(), String> {
    let is_refused = criterion.scope == Scope::Session;
    match config.why_no_sessions().filter(|_| is_refused) {
        None => Ok(()),
        Some((title, remedy)) => Err(format!("{title}: {remedy}")),
    }
}

/// Refuses a criterion with `scope: session` for a call that judges single runs.
pub(super) fn check_runs(criterion: &Criterion) -> Result<(), ApiError> {
    if criterion.scope != Scope::Session {
        return Ok(());
    }
    Err(ApiError::Argument {
        name: "scope",
        detail: "a session is judged only when its turns have arrived: send the turns to the \
                 sidecar, or run `spanscore replay` on their recordings"
            .to_owned(),
    })
}

/// Checks one criterion and returns the number of its patterns.
pub(super) fn check_criterion(criterion: &Criterion) -> Result<usize, ApiError> {
    let is_too_long = |text: &str| text.chars().count() > MAX_NAME_LENGTH;
    if is_too_long(&criterion.name) || criterion.name.chars().any(char::is_control) {
        let detail =
            format!("must have at most {MAX_NAME_LENGTH} characters and no control characters");
        return Err(ApiError::Argument {
            name: "name",
            detail,
        });
    }
    if criterion.selector_attributes().any(is_too_long) {
        let detail = format!("an attribute key must have at most {MAX_NAME_LENGTH} characters");
        return Err(ApiError::Argument {
            name: "select.attributes",
            detail,
        });
    }
    if json!(criterion).to_string().len() > MAX_CRITERION_SIZE {
        let detail = format!(
            "`{}` is larger than {} KiB: put it into a file",
            criterion.name,
            MAX_CRITERION_SIZE >> 10
        );
        return Err(ApiError::TooLarge(detail));
    }
    Ok(criterion.n_patterns())
}

pub(super) fn check_keys(rules: &Rules) -> Result<(), ApiError> {
    if rules.keys().len() > MAX_KEYS {
        return Err(ApiError::Limit(format!(
            "selectors have named more than {MAX_KEYS} attributes since the sidecar started: name \
             fewer, or restart it"
        )));
    }
    Ok(())
}
