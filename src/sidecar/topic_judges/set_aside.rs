//! Writes an unreadable record to the set-aside topic, if there is one, before its partition
//! continues.

use std::time::{Duration, Instant};

use super::Shared;
use crate::kafka::{AsideRecord, Failure, ReadRecord};
use crate::sidecar::now;
use crate::telemetry::{RecordSetAside, SettingAsideFailed};

/// Delay before a rejected record is sent again.
const RETRY: Duration = Duration::from_secs(1);

/// An unreadable record, which may have to wait for the set-aside topic.
pub(super) struct UnreadRecord {
    why: String,
    retry_at: Instant,
}

impl UnreadRecord {
    pub(super) fn new(why: String) -> Self {
        Self {
            why,
            retry_at: now().instant,
        }
    }

    /// Writes the record to the set-aside topic, if there is one and the last attempt is long
    /// enough ago. Returns true if the partition may continue.
    pub(super) fn is_set_aside(&mut self, record: &ReadRecord, shared: &Shared) -> bool {
        let Some(writer) = &shared.aside else {
            self.report(record, None, shared);
            return true;
        };
        if now().instant < self.retry_at {
            return false;
        }
        let topic = &*shared.config.read.topic;
        let (partition, offset) = (record.partition, record.offset);
        let written = writer.write(&AsideRecord {
            topic,
            partition,
            offset,
            reason: &self.why,
            value: &record.value,
        });
        match written {
            Ok(()) => {
                let to = shared.config.read.set_aside_topic.as_deref();
                self.report(record, to, shared);
                true
            }
            Err(Failure::TooLarge(why)) => {
                self.why = format!("{}; {why}", self.why);
                self.report(record, None, shared);
                true
            }
            Err(failure) => {
                self.retry_at = now().instant + RETRY;
                let why = &*failure.text();
                if shared.may_log(why) {
                    SettingAsideFailed {
                        topic,
                        partition,
                        offset,
                        why,
                    }
                    .emit();
                }
                false
            }
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
