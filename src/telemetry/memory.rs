//! Events of the memory limit.

use super::Telemetry;

events! {
    MemoryShared { n_bytes: usize } (telemetry) {
        telemetry.metrics.memory_shared.set([], n_bytes);
    }

    MemoryLimitChanged { before: Option<usize>, limit: Option<usize>, n_shared: usize } () {
        tracing::info!(
            before,
            limit,
            n_shared,
            "memory limit changed; limits of queues and traces adjusted"
        );
    }
}
