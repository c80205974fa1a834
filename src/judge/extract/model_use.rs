//! The types that count a run's model calls and their tokens; `trace` counts.

/// The tokens that model calls read, wrote, or both.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// Lower bound: tokens that were certainly used.
    pub least: u64,
    /// Upper bound; `u64::MAX` if there is none.
    pub most: u64,
    /// The number of model calls that did not record the tokens.
    pub n_without: u64,
}

/// The model calls of a run. By default no call was seen, and no total was recorded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ModelUse {
    pub n_calls: u64,
    /// The number of model calls that certainly stay separate calls, whatever the rest of a trace
    /// cut short contains.
    pub n_certain: u64,
    /// True if no model call was seen and the tokens are the totals that agents recorded.
    pub from_agent: bool,
    /// True if some criterion read model tokens when the run was seen; otherwise the tokens were
    /// not stored.
    pub is_usage_kept: bool,
    /// True if the trace shows no model call but other traces of the service do: the run made none.
    pub others_have_models: bool,
    /// Tokens that were read.
    pub input: Tokens,
    /// Tokens that were written.
    pub output: Tokens,
    /// Tokens that were read or written, including those of calls that recorded only a total.
    pub total: Tokens,
}

impl ModelUse {
    /// Returns the three sums, always in this order.
    pub(crate) fn sums(&mut self) -> impl Iterator<Item = &mut Tokens> {
        [&mut self.input, &mut self.output, &mut self.total].into_iter()
    }
}
