//! Events of the memory limit.

use super::Telemetry;

/// Memory was shared out among queues and traces.
#[derive(Debug)]
pub struct MemoryShared {
    /// Bytes of all shares.
    pub n_bytes: usize,
}

impl MemoryShared {
    /// Sets the gauge.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics.memory_shared.set([], self.n_bytes);
    }
}

/// The memory limit of the control group has changed while we run.
#[derive(Debug)]
pub struct MemoryLimitChanged {
    /// Bytes before, if there was a limit.
    pub before: Option<usize>,
    /// Bytes now, if there is one.
    pub limit: Option<usize>,
    /// Bytes that are shared out now.
    pub n_shared: usize,
}

impl MemoryLimitChanged {
    /// Logs it; [`MemoryShared`] has the gauge.
    pub fn emit(self) {
        let Self {
            before,
            limit,
            n_shared,
        } = self;
        tracing::info!(
            before,
            limit,
            n_shared,
            "the memory limit has changed: queues and traces may take more or less from now on"
        );
    }
}
