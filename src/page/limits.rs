//! How much of a run the list shows, which is also how much its memory allows for. Knows nothing
//! else.

/// Most calls of a line of the list, and characters of a name in it.
pub(super) const MAX_LISTED_CALLS: usize = 48;
pub(super) const MAX_LISTED_NAME: usize = 120;
