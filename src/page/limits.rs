//! Limits on what the list shows of a run, for which its memory allows, too.

/// Most calls of a line of the list, and characters of a name in it.
pub(super) const MAX_LISTED_CALLS: usize = 48;
pub(super) const MAX_LISTED_NAME: usize = 120;
