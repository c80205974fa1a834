//! Writes an unreadable record to the set-aside topic, if there is one, before its partition
//! continues.

use std::time::{Duration, Instant};

use super::Shared;
use crate::kafka::{AsideFailure, AsideInFlight, AsideRecord, AsideWriter, ReadRecord};
use crate::sidecar::now;
use crate::telemetry::{RecordSetAside, SettingAsideFailed};

/// Delay before a rejected record is sent again.
const RETRY: Duration = Duration::from_secs(1);

/// An unreadable record, and the progress of writing it to the set-aside topic.
pub(super) struct UnreadRecord {
    why: String,
    sent: Option<AsideInFlight>,
    retry_at: Instant,
}

impl UnreadRecord {
    pub(super) fn new(why: String) -> Self {
        Self {
            why,
            sent: None,
            retry_at: now().instant,
        }
    }

    /// Performs the next step without waiting for the brokers. Returns true if the partition may
    /// continue.
    pub(super) fn is_set_aside(&mut self, record: &ReadRecord, shared: &Shared) -> bool {
        let Some(writer) = &shared.aside else {
            self.report(record, None, shared);
            return true;
        };
        match self.step(writer, record, shared) {
            None => false,
            Some(Ok(())) => {
                let to = shared.config.read.set_aside_topic.as_deref();
                self.report(record, to, shared);
                true
            }
            Some(Err(AsideFailure::TooLarge(why))) => {
                self.why = format!("{}; {why}", self.why);
                self.report(record, None, shared);
                true
            }
            Some(Err(AsideFailure::Later(why))) => {
                self.sent = None;
                self.retry_at = now().instant + RETRY;
                if shared.may_log(&why) {
                    SettingAsideFailed {
                        topic: &shared.config.read.topic,
                        partition: record.partition,
                        offset: record.offset,
                        why: &why,
                    }
                    .emit();
                }
                false
            }
        }
    }

    /// Sends the record or checks the outcome; `None` while there is no outcome.
    fn step(
        &mut self,
        writer: &AsideWriter,
        record: &ReadRecord,
        shared: &Shared,
    ) -> Option<Result<(), AsideFailure>> {
        if let Some(sent) = &mut self.sent {
            return writer.outcome(sent);
        }
        if now().instant < self.retry_at {
            return None;
        }
        let aside = AsideRecord {
            topic: &shared.config.read.topic,
            partition: record.partition,
            offset: record.offset,
            reason: &self.why,
            value: &record.value,
        };
        match writer.send(&aside) {
            Ok(sent) => {
                self.sent = Some(sent);
                None
            }
            Err(failure) => Some(Err(failure)),
        }
    }

    fn report(&self, record: &ReadRecord, to: Option<&str>, shared: &Shared) {
        let is_json = record.value.first() == Some(&b'{');
        RecordSetAside {
            topic: &shared.config.read.topic,
            partition: record.partition,
            offset: record.offset,
            why: &self.why,
            to,
            is_json,
            is_logged: shared.may_log("set aside"),
        }
        .emit(&shared.telemetry);
    }
}
