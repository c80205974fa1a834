//! Limits on the size of a run's entry in the list. The memory of runs counts the entry's bytes,
//! too.

/// Maximum number of calls in a line of the list.
pub(super) const MAX_LISTED_CALLS: usize = 48;
/// Maximum length of a name in the list, in characters.
pub(super) const MAX_LISTED_NAME: usize = 120;
