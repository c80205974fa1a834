//! Pure. What a rule or a limit over calls comes to: which calls it asks something of, and which of
//! them break it. Knows single rules, not the score that they make together.

pub(super) mod activations;
pub(super) mod effort;
pub(super) mod judged;
mod keys;
mod pairs;
pub(super) mod templates;
pub(super) mod words;
