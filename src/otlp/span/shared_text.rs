//! A text that several spans share, and ranges of it.

use std::sync::{Arc, OnceLock};

/// A text that is handed out before it is complete, and read once it is.
pub(super) type SharedText = Arc<OnceLock<String>>;

/// A range of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextRange {
    start: u32,
    len: u32,
}

impl TextRange {
    /// `None` beyond 4 GiB.
    pub(super) fn try_new(start: usize, len: usize) -> Option<Self> {
        let end = u32::try_from(start.checked_add(len)?).ok()?;
        Some(Self {
            start: start as u32,
            len: end - start as u32,
        })
    }

    pub(super) fn slice(self, text: &str) -> &str {
        text.get(self.start as usize..)
            .and_then(|rest| rest.get(..self.len as usize))
            .unwrap_or_default()
    }

    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}
