//! Judges single rules and limits over calls: which calls a rule requires something of, and which
//! of them break it.

pub(super) mod activations;
pub(super) mod effort;
pub(super) mod judged;
mod keys;
mod pairs;
pub(super) mod rule_explanation;
pub(super) mod templates;
mod total;
