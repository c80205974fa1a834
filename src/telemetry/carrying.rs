//! Events of carrying open traces to later records of the journal.

use super::Telemetry;

events! {
    /// Open traces were carried out of the oldest records of the journal into new ones.
    TracesCarried { n_bytes: u64, n_given_up: usize } (telemetry) {
        let metrics = &telemetry.metrics;
        metrics.journal_carried_bytes.add([], n_bytes);
        metrics.journal_uncarried_traces.add([], n_given_up as u64);
    }

    /// The journal had no room to carry open traces.
    TracesGivenUp { n_traces: usize } () {
        tracing::warn!(
            n_traces,
            "the journal has no room to keep open traces: after a restart they are judged as \
             incomplete; raise journal.max_size"
        );
    }
}
