//! The `journal` section: storage of acknowledged requests on disk, and its limits.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::ByteSize;

/// The `journal` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Journal {
    /// A separate folder that stores requests until they are delivered. Without it, acknowledged
    /// requests that are not sent are lost when the process ends.
    pub directory: Option<PathBuf>,
    /// Maximum bytes on disk; requests for Kafka may use as many again. When the limit is reached,
    /// requests are refused and senders retry.
    pub max_size: ByteSize,
    /// Maximum bytes on disk of scores that wait for their destinations. When the limit is reached,
    /// the oldest scores are dropped.
    pub max_scores_size: ByteSize,
    /// Sync the disk before a request is acknowledged. If false, acknowledged requests survive a
    /// crash of the process, but not a power cut.
    pub sync: bool,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            directory: None,
            max_size: ByteSize::mib(1024),
            max_scores_size: ByteSize::mib(128),
            sync: true,
        }
    }
}

/// Minimum bytes of a log of scores: space for one batch besides the batch that is being evicted.
const LEAST_SCORES_SIZE: usize = 16 << 20;

impl Journal {
    /// Returns true if the log of scores is smaller than the minimum.
    pub fn has_small_scores(&self) -> bool {
        self.max_scores_size.0 < LEAST_SCORES_SIZE
    }

    /// Returns the size above which a request is refused as too large. A log must have space for
    /// undelivered requests besides this request.
    pub fn largest_request(&self) -> usize {
        // Lengths in the files have 32 bits.
        (self.max_size.0 / 2).min(1 << 31)
    }
}
