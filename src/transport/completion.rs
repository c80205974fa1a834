//! A guard for callers that wait for the end of a request.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// Dropped once the request and all parts that it was split into are done, delivered or not.
#[derive(Clone)]
pub struct CompletionGuard(pub Arc<dyn Any + Send + Sync>);

impl Debug for CompletionGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompletionGuard")
    }
}
