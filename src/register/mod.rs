//! Criteria that change while the sidecar runs: from files that are reloaded and from callers of
//! the API. The active set is immutable, and a change replaces all of it.
//!
//! A change holds one lock from the check of its precondition to the swap, so no writer overwrites
//! the change of another writer unnoticed. Reading the criteria takes no lock. REST and gRPC call
//! the same functions and show the same views; they differ in encoding only.

pub mod merge;

mod error;
mod limits;
mod state;
mod view;

mod set;

mod evaluate;
mod grpc;
mod openapi;
mod reload;
mod rest;

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use judge::evaluate::Coverage;
use judge::pipeline::Rules;
use otlp::span::Now;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::sync::Mutex;
use crate::telemetry::{StateFileUnusable, Telemetry};

use limits::CallSlots;
pub(crate) use limits::PATTERN_LIMITS;
use merge::CriteriaSet;
use set::RegisterState;
use state::StateFile;

pub(crate) use error::ApiError;
pub use reload::{ConfigOrigin, Reloader, SETTLE_TIME, Start};
pub(crate) use rest::Query;
pub use set::{Register, ReloadOutcome, ReloadStopped};
pub use state::StateError;

pub struct RegisterSetup {
    pub config: Config,
    /// Source of the configuration; without it nothing is reloaded.
    pub origin: Option<ConfigOrigin>,
    /// The active rules, swapped by the register and read by the scoring threads.
    pub rules: Arc<ArcSwap<Rules>>,
    /// Counts of the trajectories that the criteria have selected.
    pub(crate) coverage: Arc<Mutex<Coverage>>,
    /// Makes all further requests use the headers of a reloaded configuration. The error is the
    /// reason why a header cannot be sent.
    pub renew_headers: RenewHeaders,
    pub clock: fn() -> Now,
}

impl RegisterSetup {
    /// Creates the arguments of a register without a sidecar: nothing is reloaded, and no run is
    /// counted.
    pub fn alone(config: Config, rules: Rules, clock: fn() -> Now) -> Self {
        Self {
            config,
            origin: None,
            rules: Arc::new(ArcSwap::from_pointee(rules)),
            coverage: Arc::default(),
            renew_headers: Box::new(|_| Ok(())),
            clock,
        }
    }
}

/// A function that makes all further requests use the headers of a configuration.
pub type RenewHeaders = Box<dyn Fn(&Config) -> Result<(), String> + Send + Sync>;

/// Opens the register, and the reloader that watches its files and deletes expired registrations.
///
/// # Errors
/// Returns an error if the state file cannot be used.
pub fn open(
    setup: RegisterSetup,
    telemetry: &Arc<Telemetry>,
) -> Result<(Register, Reloader), StateError> {
    let RegisterSetup {
        config,
        origin,
        rules,
        coverage,
        renew_headers,
        clock,
    } = setup;
    let (state_file, restored) = match config.admin.state_file.as_deref() {
        Some(path) => {
            let (file, restored) = StateFile::open(path, &config)?;
            (Some(file), restored)
        }
        None => Default::default(),
    };
    if let (Some(file), false) = (&state_file, restored.unusable.is_empty()) {
        let path = file.path().display().to_string();
        StateFileUnusable {
            kept: format!("{path}.unusable"),
            path,
            problems: restored.unusable.join("; "),
        }
        .emit(telemetry);
    }
    let set = CriteriaSet::new(config.criteria.clone(), restored.registrations)
        .read_from(config.criterion_files());
    let set = set.expired(clock().unix_nanos).unwrap_or(set);
    let (reloads, requests) = mpsc::channel(1);
    let interval = config.reload.interval.0;
    let register = Register(Arc::new(RegisterState {
        set: ArcSwap::from_pointee(CriteriaSet::default()),
        rules,
        coverage,
        config: Mutex::new(config),
        state_file,
        reloads,
        last_reload: Mutex::default(),
        has_origin: origin.is_some(),
        slots: CallSlots::default(),
        telemetry: Arc::clone(telemetry),
        renew_headers,
        clock,
    }));
    register.start(set);
    let reloader = Reloader::new(register.clone(), origin, interval, requests);
    Ok((register, reloader))
}

/// Returns the routes of REST and gRPC, for the admin port.
pub fn routes(register: &Register) -> Router {
    rest::routes(register.clone()).merge(grpc::routes(register))
}

#[cfg(test)]
mod tests;
