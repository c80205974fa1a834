//! Derives roles, turns, ordered calls and their certainty from all spans of a trace. Each file
//! builds only on the files listed before it.

pub(crate) mod interner;

pub(crate) mod call_report;
pub(crate) mod handoffs;
pub(crate) mod tree;

pub(crate) mod span_roles;

pub(crate) mod turns;

pub(crate) mod capture;
pub(crate) mod draft;
pub(crate) mod joins;
pub(crate) mod uncertainty;

pub(crate) mod calls;
pub(crate) mod message_calls;
pub(crate) mod model_use;

pub(crate) mod cross_trace_results;
pub(crate) mod evaluated;
pub(crate) mod expectation_attributes;
pub(super) mod half_arrived;
pub(crate) mod log_trajectory;
pub(crate) mod node_visits;
pub(crate) mod span_report;
pub(super) mod unrecognised;
