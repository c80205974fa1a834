//! Counts a run's model calls and their tokens, as far as these are known. Only types; `trace`
//! counts.

/// The tokens that model calls read, wrote, or both.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// As many for certain, whatever else becomes known.
    pub least: u64,
    /// No more than this; `u64::MAX` where nothing bounds them.
    pub most: u64,
    /// Number of model calls that recorded no such number.
    pub n_without: u64,
}

/// The model calls of a run. By default none was seen, and no total was recorded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ModelUse {
    /// Number of model calls.
    pub n_calls: u64,
    /// Number of model calls that stay model calls of their own, whatever the rest of a trace cut
    /// short is.
    pub n_certain: u64,
    /// No model call was seen: the tokens are the totals that agents recorded.
    pub from_agent: bool,
    /// Some criterion read the tokens of models when the run was seen: otherwise they are not kept.
    pub is_usage_kept: bool,
    /// Tokens that were read.
    pub input: Tokens,
    /// Tokens that were written.
    pub output: Tokens,
    /// Both together.
    pub total: Tokens,
}

impl ModelUse {
    /// The three sums, in one order.
    pub(crate) fn sums(&mut self) -> impl Iterator<Item = &mut Tokens> {
        [&mut self.input, &mut self.output, &mut self.total].into_iter()
    }
}
