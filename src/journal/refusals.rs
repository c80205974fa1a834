//! Decides which refusals of a log are logged (at most two lines a minute: refused, resumed), and
//! when a full or failed disk is retried.

use std::mem;
use std::time::{Duration, Instant};

use super::store::AppendError;
use crate::telemetry::Throttled;

/// Delay before a full disk is retried.
const FULL_RETRY: Duration = Duration::from_millis(250);
const FAILED_RETRY: Duration = Duration::from_secs(1);

pub(super) fn retry_after(refusal: AppendError) -> Duration {
    match refusal {
        AppendError::Full | AppendError::DiskFull => FULL_RETRY,
        AppendError::DiskFailed => FAILED_RETRY,
    }
}

#[derive(Debug, Default)]
pub(super) struct Refusals {
    pub(super) current: Option<AppendError>,
    since: Option<Instant>,
    is_logged: bool,
    lines: Throttled,
}

impl Refusals {
    pub(super) fn begin(&mut self, error: AppendError, now: Instant) -> bool {
        self.since = self.since.or(Some(now));
        let is_new = self.current.replace(error) != Some(error);
        let is_due = (is_new || !self.is_logged) && self.lines.ready((), now).is_some();
        self.is_logged |= is_due;
        is_due
    }

    pub(super) fn end(&mut self, now: Instant) -> Option<Duration> {
        self.current = None;
        let since = self.since.take()?;
        mem::take(&mut self.is_logged).then(|| now.saturating_duration_since(since))
    }
}
