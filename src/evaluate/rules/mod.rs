//! Pure. What a rule over calls comes to: which calls it asks something of, and which of them break
//! it. Knows single rules, not the score that they make together.

pub(super) mod activations;
pub(super) mod judged;
pub(super) mod pairs;
pub(super) mod words;
