//! Logs the refusals of a log (at most two lines a minute: refused, resumed), and decides when a
//! full or failed disk is retried.

use std::fmt::Display;
use std::mem;
use std::time::{Duration, Instant};

use super::store::AppendError;
use crate::telemetry::{JournalAccepting, JournalRefusing, Throttled};

/// Delay before a full disk is retried.
const FULL_RETRY: Duration = Duration::from_millis(250);
const FAILED_RETRY: Duration = Duration::from_secs(1);

pub(super) fn retry_after(refusal: AppendError) -> Duration {
    match refusal {
        AppendError::Full | AppendError::DiskFull => FULL_RETRY,
        AppendError::DiskFailed => FAILED_RETRY,
    }
}

pub(super) struct Refusals {
    log: &'static str,
    capacity: u64,
    pub(super) current: Option<AppendError>,
    since: Option<Instant>,
    is_logged: bool,
    lines: Throttled,
}

impl Refusals {
    pub(super) fn new(log: &'static str, capacity: u64) -> Self {
        Self {
            log,
            capacity,
            current: None,
            since: None,
            is_logged: false,
            lines: Throttled::default(),
        }
    }

    pub(super) fn begin(
        &mut self,
        error: AppendError,
        why: Option<&dyn Display>,
        size: u64,
        now: Instant,
    ) {
        self.since = self.since.or(Some(now));
        let is_new = self.current.replace(error) != Some(error);
        if (is_new || !self.is_logged) && self.lines.ready((), now).is_some() {
            self.is_logged = true;
            JournalRefusing {
                log: self.log,
                state: error.as_str(),
                why: why.map(ToString::to_string),
                size,
                capacity: self.capacity,
            }
            .emit();
        }
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.current = None;
        if let Some(since) = self.since.take()
            && mem::take(&mut self.is_logged)
        {
            let after = now.saturating_duration_since(since);
            JournalAccepting {
                log: self.log,
                after,
            }
            .emit();
        }
    }
}
