//! The `journal` section: whether acknowledged requests are kept on disk, and how much of it they
//! may use.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::ByteSize;

/// `journal`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Journal {
    /// A folder of its own, in which requests are kept until they are delivered. Without it,
    /// acknowledged requests that are not yet sent end with the process.
    pub directory: Option<PathBuf>,
    /// Most bytes on the disk; requests for Kafka may take as many again. When they are used up,
    /// requests are refused and senders try again.
    pub max_size: ByteSize,
    /// Most bytes on the disk of scores that wait for their destinations. When they are used up,
    /// the oldest scores are dropped.
    pub max_scores_size: ByteSize,
    /// Sync the disk before a request is acknowledged. Without it, requests survive the end of the
    /// process and not the end of the machine.
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

/// A log of scores takes a batch of them beside the one that is being given up.
const LEAST_SCORES_SIZE: usize = 16 << 20;

impl Journal {
    /// Returns true if the log of scores is smaller than the smallest possible one.
    pub fn has_small_scores(&self) -> bool {
        self.max_scores_size.0 < LEAST_SCORES_SIZE
    }

    /// A larger request is refused as too large: a log must have room for it beside what waits.
    pub fn largest_request(&self) -> usize {
        // Lengths in the files have 32 bits.
        (self.max_size.0 / 2).min(1 << 31)
    }
}
