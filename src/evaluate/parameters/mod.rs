//! Pure. The types of evaluators' parameters: names, patterns, and patterns over calls. They check
//! themselves when they are read. Knows no single evaluator.

pub(super) mod call_pattern;
pub(super) mod field_aliases;
pub(super) mod names;
pub(super) mod optional;
pub(super) mod pattern;
