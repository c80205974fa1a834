//! Events of the memory limit.

use super::Telemetry;

events! {
    /// Memory was shared out among queues and traces.
    MemoryShared { n_bytes: usize } (telemetry) {
        telemetry.metrics.memory_shared.set([], n_bytes);
    }

    /// The memory limit of the control group has changed while we run.
    MemoryLimitChanged { before: Option<usize>, limit: Option<usize>, n_shared: usize } () {
        tracing::info!(
            before,
            limit,
            n_shared,
            "the memory limit has changed: queues and traces may take more or less from now on"
        );
    }
}
