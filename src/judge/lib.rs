//! Judges the tool calls of AI agents: reads the spans of traces, and returns verdicts.
//!
//! ```text
//! assemble ▶ extract ▶ evaluate ──▶ evaluations
//! └───────── pipeline ─────────┘
//! ```
//!
//! [`Rules`] state the expectations, and [`Pipeline`] is the whole machine: it assembles spans into
//! traces, extracts the tool calls of each trace in order, and judges them by the criteria. This
//! crate needs no runtime, opens no sockets and no files, and reads no clock. The time is passed as
//! an argument.
//!
//! # Example
//!
//! Judge a recorded agent session:
//!
//! ```
//! use std::time::Instant;
//!
//! use judge::{Now, Pipeline, Rules, Settings, Verdict};
//!
//! let rules = Rules::from_json(
//!     r#"{ "criteria": [{ "name": "look-up-before-charge", "evaluate": {
//!         "tool_call_order": { "tool_calls_order": ["lookup_account", "charge_card"] } } }] }"#,
//! )?;
//! let now = Now { instant: Instant::now(), unix_nanos: 0 };
//! let mut pipeline = Pipeline::new(Settings::replay(), now);
//! let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/recording");
//! for number in 1..=6 {
//!     // The body of an OTLP request, as an exporter sends it.
//!     let body = std::fs::read(format!("{recording}/00{number}.traces.pb"))?;
//!     pipeline.take(rules.scan(&body)?, now);
//! }
//! let judged = pipeline.finish(&rules, now);
//! for evaluation in &judged.evaluations {
//!     println!("{}: {}", evaluation.criterion.name(), evaluation.explanation());
//! }
//! assert_eq!(judged.evaluations[0].verdict, Verdict::Pass);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that judges while spans arrive calls [`Pipeline::take`] for each request and
//! [`Pipeline::advance`] at [`Pipeline::next_deadline`].
//!
//! The hidden modules are for the sidecar, and may change.

#[doc(hidden)]
pub mod assemble;

#[doc(hidden)]
pub mod extract;

#[doc(hidden)]
pub mod evaluate;

#[doc(hidden)]
pub mod pipeline;

pub mod learn;

pub use assemble::{CloseReason, Settings};
pub use evaluate::{Criterion, Evaluation, Explain, FieldError, JudgedBy, Verdict};
pub use extract::{ToolCall, Tools, Trajectory};
pub use otlp::scan::MalformedProtobuf;
pub use otlp::span::{Batch, Now, SpanId, TraceId};
pub use pipeline::{InvalidRules, Judged, Pipeline, Rules, Taken};
