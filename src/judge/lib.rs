//! A trace in, verdicts out.

pub mod assemble;

pub mod extract;

pub mod evaluate;

pub mod pipeline;

pub mod learn;
