//! A mutex that ignores poisoning.

use std::sync::{MutexGuard, PoisonError};

/// A mutex that can be locked after a thread panicked while holding the lock. Every value behind
/// this kind of mutex is consistent between two statements, and a panic in one request must not
/// stop other requests.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
