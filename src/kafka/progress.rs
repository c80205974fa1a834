//! Encodes and parses the progress of a judge, which is the metadata of its commits.

use judge::pipeline::{LogMark, LogMoment, LogProgress};
use serde::{Deserialize, Serialize};

/// The version that this program writes, and the only one that it reads.
const VERSION: u32 = 1;

/// The committed JSON. Brokers accept 4 KiB.
#[derive(Serialize, Deserialize)]
struct Committed {
    /// The version.
    spanscore: u32,
    replay: u64,
    open: u64,
    judged: u64,
    at: u64,
    until: u64,
    of: Option<i32>,
}

/// Returns the text to commit. `n_partitions` is the topic's number of partitions when the group
/// began to read this partition.
pub fn encode(progress: &LogProgress, n_partitions: Option<i32>) -> String {
    let mark = progress.mark;
    let committed = Committed {
        spanscore: VERSION,
        replay: mark.replay,
        open: mark.open,
        judged: mark.judged.unix_nanos,
        at: mark.judged.offset,
        until: progress.until_unix_nanos,
        of: n_partitions,
    };
    serde_json::to_string(&committed).unwrap_or_default()
}

/// Parses a committed text. Returns the progress, and the topic's number of partitions when the
/// group began to read this partition, if the text has that number. Ignores fields that a later
/// version of spanscore adds.
///
/// # Errors
/// Returns an error if this version of spanscore did not write the text.
pub fn decode(text: &str) -> Result<(LogProgress, Option<i32>), String> {
    let committed: Committed = serde_json::from_str(text)
        .map_err(|error| format!("not committed by this version of spanscore: {error}"))?;
    if committed.spanscore != VERSION {
        let found = committed.spanscore;
        return Err(format!(
            "format {found}, expected {VERSION}; use the spanscore version that committed it"
        ));
    }
    let mark = LogMark {
        replay: committed.replay,
        open: committed.open,
        judged: LogMoment {
            unix_nanos: committed.judged,
            offset: committed.at,
        },
    };
    let progress = LogProgress {
        mark,
        until_unix_nanos: committed.until,
    };
    Ok((progress, committed.of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest() -> LogProgress {
        LogProgress {
            mark: LogMark {
                replay: u64::MAX,
                open: u64::MAX - 1,
                judged: LogMoment {
                    unix_nanos: u64::MAX - 2,
                    offset: u64::MAX - 3,
                },
            },
            until_unix_nanos: u64::MAX - 4,
        }
    }

    #[test]
    fn a_progress_is_read_back_and_is_short() {
        for progress in [largest(), LogProgress::default()] {
            for of in [Some(i32::MAX), None] {
                let text = encode(&progress, of);
                assert!(text.len() < 200, "{text}");
                assert_eq!(decode(&text), Ok((progress, of)));
                let later = text.replacen('{', "{\"later\":\"x\",", 1);
                assert_eq!(decode(&later), Ok((progress, of)));
            }
        }
    }

    #[test]
    fn what_another_program_or_version_committed_is_refused() {
        let text = encode(&largest(), None);
        for foreign in ["", "checkpoint 7", "{}", "{\"replay\":1,\"open\":1}"] {
            assert!(decode(foreign).is_err(), "{foreign}");
        }
        let next = text.replacen("\"spanscore\":1", "\"spanscore\":2", 1);
        assert!(decode(&next).unwrap_err().starts_with("format 2"));
        for end in 0..text.len() {
            assert!(decode(&text[..end]).is_err(), "{end}");
        }
        let damaged = text.replace("\"open\":", "\"open\":-");
        assert!(decode(&damaged).is_err());
    }
}
