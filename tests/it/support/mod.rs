//! Code that several tests share: payloads to send, the program and sidecars under test, and a
//! backend.

pub(crate) mod backend;
#[path = "../../support/captures.rs"]
pub(crate) mod captures;
#[path = "../../support/cases.rs"]
pub(crate) mod cases;
#[path = "../../support/eventually.rs"]
pub(crate) mod eventually;
#[path = "../../support/pages.rs"]
pub(crate) mod pages;
pub(crate) mod program;
#[path = "../../support/repetitions.rs"]
pub(crate) mod repetitions;
pub(crate) mod sidecars;
#[path = "../../support/spans.rs"]
pub(crate) mod spans;
