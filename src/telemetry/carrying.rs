//! Events of carrying open traces to later records of the journal.

use super::Telemetry;

/// Open traces were carried out of the oldest records of the journal into new ones.
#[derive(Debug)]
pub struct TracesCarried {
    /// Bytes that were written again.
    pub n_bytes: u64,
    /// Traces that the journal no longer holds in full.
    pub n_given_up: usize,
}

impl TracesCarried {
    /// Counts it.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self {
            n_bytes,
            n_given_up,
        } = self;
        let metrics = &telemetry.metrics;
        metrics.journal_carried_bytes.add([], n_bytes);
        metrics.journal_uncarried_traces.add([], n_given_up as u64);
    }
}

/// The journal had no room to carry open traces.
#[derive(Debug)]
pub struct TracesGivenUp {
    /// How many since this was last logged.
    pub n_traces: usize,
}

impl TracesGivenUp {
    /// Logs it.
    pub fn emit(self) {
        tracing::warn!(
            n_traces = self.n_traces,
            "the journal has no room to keep open traces: after a restart they are judged as \
             incomplete; raise journal.max_size"
        );
    }
}
