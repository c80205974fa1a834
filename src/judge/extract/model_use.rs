//! The types for a run's model calls and their tokens. The module `trace` counts both.

/// The input tokens of model calls, their output tokens, or both together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// Lower bound: the tokens that were certainly used.
    pub least: u64,
    /// Upper bound; `u64::MAX` if unknown.
    pub most: u64,
    /// The number of model calls that did not record the tokens.
    pub n_without: u64,
}

/// The model calls of a run and their tokens. By default no call was seen and no total recorded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ModelUse {
    pub n_calls: u64,
    /// Lower bound of the number of model calls. In a cut trace, missing spans could merge some of
    /// the calls that were seen.
    pub n_certain: u64,
    /// True if no model call was seen and the tokens are the totals that agents recorded.
    pub from_agent: bool,
    /// True if the rules read model tokens when the run was seen; otherwise the tokens were not
    /// stored.
    pub is_usage_stored: bool,
    /// True if no model call was seen although other traces of the service have some. The service's
    /// model calls are thus recorded, so the run certainly made none. In a sum, true if this holds
    /// for every run without model calls.
    pub others_have_models: bool,
    pub input: Tokens,
    pub output: Tokens,
    /// Input and output tokens, including those of calls that recorded only a total.
    pub total: Tokens,
}

impl ModelUse {
    pub(crate) fn sum<'a>(runs: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let mut sum = Self {
            is_usage_stored: runs.clone().all(|run| run.is_usage_stored),
            others_have_models: (runs.clone()).all(|run| run.n_calls > 0 || run.others_have_models),
            ..Self::default()
        };
        for run in runs.clone() {
            let mut run = *run;
            sum.n_calls += run.n_calls;
            sum.n_certain += run.n_certain;
            sum.from_agent |= run.from_agent;
            for (sum, of_run) in sum.sums().zip(run.sums()) {
                sum.least = sum.least.saturating_add(of_run.least);
                sum.most = sum.most.saturating_add(of_run.most);
                sum.n_without = sum.n_without.saturating_add(of_run.n_without);
            }
        }
        // If some runs have only totals that agents recorded, and other runs have model calls,
        // model calls of the runs with totals may be missing, and may have used any number of
        // tokens.
        if sum.from_agent && sum.n_calls > 0 {
            sum.from_agent = false;
            sum.sums().for_each(|tokens| tokens.most = u64::MAX);
        }
        sum
    }

    pub(crate) fn sums(&mut self) -> impl Iterator<Item = &mut Tokens> {
        [&mut self.input, &mut self.output, &mut self.total].into_iter()
    }
}
