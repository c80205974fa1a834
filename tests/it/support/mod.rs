//! What several tests need: calls, spans and records to send, a program, a sidecar and a downstream
//! to receive them.

pub(crate) mod backend;
pub(crate) mod calls;
pub(crate) mod cases;
pub(crate) mod pages;
pub(crate) mod program;
pub(crate) mod records;
pub(crate) mod sidecars;
pub(crate) mod spans;
