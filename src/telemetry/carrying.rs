//! The event of carrying open traces through the journal.

use super::Telemetry;

/// Open traces were carried from the oldest records of the journal into new ones.
#[derive(Debug)]
pub struct TracesCarried {
    /// Bytes that were written again.
    pub n_bytes: u64,
    /// Traces that are not in the journal in full from now on.
    pub n_given_up: usize,
}

impl TracesCarried {
    /// Counts it, and logs it if traces were given up.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            n_bytes,
            n_given_up,
        } = self;
        let metrics = &telemetry.metrics;
        metrics.journal_carried_bytes.add([], n_bytes);
        metrics.journal_uncarried_traces.add([], n_given_up as u64);
        if n_given_up > 0 {
            tracing::warn!(
                n_traces = n_given_up,
                "open traces are too large or too many for the journal: after a restart they are \
                 judged as incomplete; raise journal.max_size"
            );
        }
    }
}
