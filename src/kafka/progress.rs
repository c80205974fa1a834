//! Encodes and parses the progress of a judge, which is the metadata of its commits.

use judge::pipeline::{LogMark, LogMoment, LogProgress};

/// The text before the version.
const NAME: &str = "spanscore/";

/// The version that this program writes, and the only one that it reads.
const VERSION: &str = "1";

/// The key of the number of partitions.
const OF: &str = "of=";

/// Maximum length of a parsed text in bytes. Our texts are shorter, and brokers accept 4 KiB.
const MAX_LEN: usize = 1 << 10;

/// The reason why a committed text cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgressUnread {
    /// Another program or a person set the offset.
    #[error("the offset was committed by another program")]
    Foreign,
    #[error(
        "cannot read committed progress: format {0}, expected 1; use the spanscore version that \
         committed it"
    )]
    Version(String),
    #[error("cannot parse committed progress: `{0}` is missing or not a number")]
    Damaged(&'static str),
}

/// Returns the text to commit. `n_partitions` is the topic's number of partitions when the group
/// began to read this partition.
pub fn encode(progress: &LogProgress, n_partitions: Option<i32>) -> String {
    let LogProgress {
        mark,
        until_unix_nanos,
    } = progress;
    let LogMark {
        replay,
        open,
        judged,
    } = mark;
    let LogMoment { unix_nanos, offset } = judged;
    let of = n_partitions.map_or(String::new(), |n| format!(" {OF}{n}"));
    format!(
        "{NAME}{VERSION} replay={replay} open={open} judged={unix_nanos} at={offset} \
         until={until_unix_nanos}{of}"
    )
}

/// Returns the topic's number of partitions when the group began to read this partition, if the
/// text has that number.
pub fn n_partitions_at_start(text: &str) -> Option<i32> {
    let words = text.strip_prefix(NAME)?.split(' ');
    let mut numbers = words.filter_map(|word| word.strip_prefix(OF));
    numbers.next()?.parse().ok()
}

/// Parses a committed text. Ignores words that a later version of spanscore appends.
///
/// # Errors
/// Returns an error if spanscore did not write the text, or if the text cannot be parsed.
pub fn decode(text: &str) -> Result<LogProgress, ProgressUnread> {
    let mut words = text.split(' ');
    let version = words.next().and_then(|word| word.strip_prefix(NAME));
    let version = version
        .filter(|_| text.len() <= MAX_LEN)
        .ok_or(ProgressUnread::Foreign)?;
    if version != VERSION {
        let shown = version.chars().take(16).collect();
        return Err(ProgressUnread::Version(shown));
    }
    let words: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
    let number = |key: &'static str| {
        let word = words.iter().find(|(name, _)| *name == key);
        let number = word.and_then(|(_, value)| value.parse::<u64>().ok());
        number.ok_or(ProgressUnread::Damaged(key))
    };
    Ok(LogProgress {
        mark: LogMark {
            replay: number("replay")?,
            open: number("open")?,
            judged: LogMoment {
                unix_nanos: number("judged")?,
                offset: number("at")?,
            },
        },
        until_unix_nanos: number("until")?,
    })
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
            let text = encode(&progress, Some(i32::MAX));
            assert!(text.len() < 200, "{text}");
            assert_eq!(decode(&text), Ok(progress));
            assert_eq!(n_partitions_at_start(&text), Some(i32::MAX));
            let text = encode(&progress, None);
            assert_eq!(decode(&text), Ok(progress));
            assert_eq!(n_partitions_at_start(&text), None);
            assert_eq!(decode(&format!("{text} later=x")), Ok(progress));
        }
    }

    #[test]
    fn what_another_program_or_version_committed_is_refused() {
        let text = encode(&largest(), None);
        for foreign in ["", "checkpoint 7", "spanscore", "replay=1 open=1"] {
            assert_eq!(decode(foreign), Err(ProgressUnread::Foreign), "{foreign}");
        }
        let long = format!("{text} {}", "x".repeat(MAX_LEN));
        assert_eq!(decode(&long), Err(ProgressUnread::Foreign));
        let next = text.replacen("spanscore/1", "spanscore/2", 1);
        assert_eq!(decode(&next), Err(ProgressUnread::Version("2".to_owned())));
        for end in 12..text.len() - 20 {
            let cut = decode(&text[..end]);
            assert!(
                matches!(cut, Err(ProgressUnread::Damaged(_))),
                "{end}: {cut:?}"
            );
        }
        let damaged = text.replace("open=", "open=-");
        assert_eq!(decode(&damaged), Err(ProgressUnread::Damaged("open")));
    }
}
