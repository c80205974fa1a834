//! spanscore receives OpenTelemetry spans, assembles them into traces, extracts each trace's tool
//! calls, evaluates them against registered criteria, forwards the original spans untouched and
//! exports the scores.
//!
//! The modules stand in the order in which the data meets them. Start reading with [`pipeline`].

// === ground: knows nothing of spanscore ===
mod located;
mod sync;
mod text;
mod wire;

// === core: no I/O, no clock ===
pub mod assemble;
pub mod evaluate;
pub mod extract;
pub mod pipeline;
pub mod span;

// === translators: text and wire formats ===
pub mod config;

// === shell: sockets, files, signals ===
pub mod admin;
pub mod cli;
pub mod export;
pub mod forward;
pub mod listen;
pub mod receive;
pub mod register;
pub mod sidecar;
pub mod telemetry;
pub mod tls;
pub mod transport;
