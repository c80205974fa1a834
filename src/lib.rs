//! spanscore receives OpenTelemetry spans, assembles them into traces, extracts each trace's tool
//! calls, evaluates them against registered criteria, forwards the original spans unchanged and
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
//! The upper row is the *forward plane*; it never waits for the lower row, the *score plane*. Start
//! reading with [`judge`]: it is the score plane up to the evaluations, without a socket or a
//! clock.
//!
//! # Map
//!
//! - [`text`], [`located`]: utilities for texts, and for documents with positions; independent of
//!   spanscore.
//! - [`otlp`]: validates and reads received requests in one pass.
//! - [`judge`]: turns traces into verdicts. Other programs can embed it; its documentation
//!   has an example.
//! - this crate: the program.

// === ground: independent of spanscore ===
mod sync;

mod rfc3339;

#[cfg(test)]
#[path = "../tests/support/eventually.rs"]
#[expect(dead_code, reason = "the tests of a running sidecar wait in more ways")]
mod eventually;

// === translators: text and wire formats ===
pub mod config;

// === shell: sockets, files, signals ===
mod heap;

mod fair;

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
