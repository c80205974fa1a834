//! Writes an unreadable record to the set-aside topic, if there is one, before its partition
//! continues.

use super::TopicJudges;
use crate::kafka::{Failure, ReadRecord};
use crate::telemetry::{RecordSetAside, SettingAsideFailed};

/// Makes one attempt. Returns true if the partition may continue.
pub(super) fn set_aside(record: &ReadRecord, why: &str, shared: &TopicJudges) -> bool {
    let mut why = why.to_owned();
    let read = &shared.config.read;
    let (topic, mut to) = (&*read.topic, read.set_aside_topic.as_deref());
    let (partition, offset) = (record.partition, record.offset);
    if let Some(writer) = &shared.aside {
        match writer.write(topic, record, &why) {
            Ok(()) => {}
            Err(Failure::TooLarge(reason)) => {
                why = format!("{why}; {reason}");
                to = None;
            }
            Err(failure) => {
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
                return false;
            }
        }
    }
    RecordSetAside {
        topic,
        partition,
        offset,
        why: &why,
        to,
        is_json: record.value.first() == Some(&b'{'),
        is_logged: shared.may_log("set aside"),
    }
    .emit(&shared.telemetry);
    true
}
