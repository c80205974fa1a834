//! The types of the evaluators' parameters: names, patterns, call patterns and rules. Parsing
//! checks them.

pub(super) mod call_pattern;
pub(super) mod condition;
pub(super) mod expected_call;
pub(super) mod field_aliases;
pub(super) mod limits;
pub(super) mod match_score;
pub(super) mod names;
pub(super) mod optional;
pub(super) mod pattern;
pub(super) mod rule;
pub(super) mod same;
pub(super) mod shown_values;
