//! Events of copying open traces into later records of the journal.

use super::Telemetry;

events! {
    /// Open traces were copied from the oldest records of the journal into new ones.
    TracesCarried { n_bytes: u64, n_given_up: usize } (telemetry) {
        let metrics = &telemetry.metrics;
        metrics.journal_carried_bytes.add([], n_bytes);
        metrics.journal_uncarried_traces.add([], n_given_up as u64);
    }

    /// The journal had no space to copy open traces.
    TracesGivenUp { n_traces: usize } () {
        tracing::warn!(
            n_traces,
            "journal too full to keep open traces; after a restart they are judged as incomplete; \
             raise journal.max_size"
        );
    }
}
