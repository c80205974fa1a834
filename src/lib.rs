//! spanscore receives OpenTelemetry spans, assembles them into traces, extracts each trace's tool
//! calls, evaluates them against registered criteria, forwards the original spans untouched and
//! exports the scores.
//!
//! ```text
//!         agent ──OTLP──▶ receive ──the same bytes──▶ forward ──OTLP──▶ your backend
//!                           │ kept attributes                               ▲
//!                           ▼                                               │
//!                assemble ▶ extract ▶ evaluate ──evaluations──▶ export ─────┘
//!                └──────────── pipeline ───────────┘
//! ```
//!
//! The upper row is the *forward plane*; it never waits for the lower row, the *score plane*.
//! Start reading with [`pipeline`]: it is the score plane as one machine, without a socket or a
//! clock. The modules below stand in the order in which data meets them.
//!
//! # Example
//!
//! Judge a recorded agent session, as `spanscore replay` does:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::path::Path;
//!
//! use spanscore::assemble::Settings;
//! use spanscore::config::{Config, Sources};
//! use spanscore::pipeline::{Pipeline, Rules};
//! use otlp::scan::scan;
//! use spanscore::cli::configuration::Disk;
//! use spanscore::sidecar;
//!
//! let text = "
//! criteria:
//!   - name: look-up-before-charge
//!     evaluate:
//!       tool_call_order: { tool_calls_order: [lookup_account, charge_card] }
//! ";
//! let sources = Sources {
//!     file: Some((Path::new("spanscore.yaml"), text)),
//!     environment: &BTreeMap::new(),
//!     flags: &[],
//!     files: &Disk,
//! };
//! let config = Config::load(&sources)?.config;
//! let rules = Rules::new(
//!     config.criteria.clone(),
//!     &config.tools,
//!     config.explain,
//!     &config.scores.copy_attributes,
//! );
//!
//! // Time is an argument; a recording needs only one moment.
//! let now = sidecar::now();
//! let mut pipeline = Pipeline::new(Settings::replay(), now);
//! for number in 1..=6 {
//!     let body = std::fs::read(format!("examples/recording/00{number}.traces.pb"))?;
//!     let scanned = scan(&body, Some(rules.keys()))?;
//!     pipeline.accept(&rules, scanned.batch, now);
//! }
//! let judged = pipeline.end_of_input(&rules, now, |_trace| ());
//! for evaluation in &judged.evaluations {
//!     println!("{}: {}", evaluation.criterion.name(), evaluation.explanation());
//! }
//! assert_eq!(judged.evaluations.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// === ground: knows nothing of spanscore ===
mod sync;

mod holders;

mod rfc3339;

// === translators: text and wire formats ===
pub mod config;

// === shell: sockets, files, signals ===
mod heap;

pub mod receive;

#[doc(hidden)]
pub mod journal;

#[doc(hidden)]
pub mod forward;

#[doc(hidden)]
pub mod export;

#[doc(hidden)]
pub mod transport;

#[doc(hidden)]
#[cfg(any(feature = "kafka", test))]
pub mod kafka;

#[doc(hidden)]
pub mod tls;

#[doc(hidden)]
pub mod listen;

pub mod page;

#[doc(hidden)]
pub mod register;

#[doc(hidden)]
pub mod admin;

#[doc(hidden)]
pub mod telemetry;

pub mod sidecar;

pub mod cli;
