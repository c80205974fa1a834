//! Interprets a single span. From the bottom up: its keys, its view, a model's messages, the
//! conventions, log records, the recogniser that tries all conventions, the calls that alarms watch
//! for, and the admission of a span.

pub(crate) mod keys;
pub(crate) mod view;

pub(crate) mod convention;
pub(crate) mod conventions;
pub(crate) mod model_messages;
pub(crate) mod shared_keys;
pub(crate) mod usage;

pub(crate) mod expectation_keys;
pub(crate) mod log_records;
pub(crate) mod prune;
pub(crate) mod recognise;
pub(crate) mod stored_keys;
pub(crate) mod watch;

pub(crate) mod admit;

pub(crate) use convention::{RecognisedSpan, RecognisedSpans, SpanCall, SpanIdx};
pub(crate) use conventions::ConventionId;
pub(crate) use recognise::{ConventionRef, Recogniser, is_synthesized};
pub(crate) use view::View;
