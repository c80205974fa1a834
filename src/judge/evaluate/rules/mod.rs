//! Judges single rules and limits over calls: finds the calls that a rule checks, and the calls
//! that violate the rule.

pub(super) mod activations;
pub(super) mod effort;
pub(super) mod judged;
mod keys;
mod pairs;
pub(super) mod rule_explanation;
pub(super) mod templates;
mod total;
