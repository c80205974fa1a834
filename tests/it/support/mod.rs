//! Shared by several tests: calls, spans and records to send, the program, a sidecar, and a
//! downstream that receives.

pub(crate) mod backend;
pub(crate) mod calls;
pub(crate) mod cases;
pub(crate) mod eventually;
pub(crate) mod pages;
pub(crate) mod program;
pub(crate) mod records;
pub(crate) mod repetitions;
pub(crate) mod sidecars;
pub(crate) mod spans;
