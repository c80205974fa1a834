//! Follows the memory limit, which Kubernetes can change while a container runs (in-place resize).
//! Reads the limit every `reload.interval`, and computes the budgets again.

use std::sync::Arc;
use std::time::Duration;

use judge::assemble;

use crate::config::{Bound, Budgets, Config};
use crate::heap;
use crate::telemetry::{MemoryLimitChanged, MemoryShared, Telemetry};

pub(super) struct MemoryWatch {
    config: Config,
    read: fn() -> Option<usize>,
    limit: Option<usize>,
    bounds: Budgets<Bound>,
    telemetry: Arc<Telemetry>,
}

impl MemoryWatch {
    pub(super) fn new(
        config: &Config,
        read: fn() -> Option<usize>,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        let limit = read();
        let budgets = share(config, limit, &telemetry);
        Self {
            config: config.clone(),
            read,
            limit,
            bounds: budgets.bounds(),
            telemetry,
        }
    }

    /// Returns the budgets, which change with the limit while [`Self::run`] runs.
    pub(super) fn bounds(&self) -> &Budgets<Bound> {
        &self.bounds
    }

    /// Returns the assembly settings under the current memory limit.
    pub(super) fn assemble_settings(&self) -> assemble::Settings {
        self.config
            .assemble_settings(&self.config.budgets(self.limit))
    }

    /// Follows the limit until aborted. If `reload.interval` is 0, the limit is read only at the
    /// start.
    pub(super) async fn run(mut self) {
        let interval = self.config.reload.interval.0;
        if interval == Duration::ZERO {
            return;
        }
        loop {
            tokio::time::sleep(interval).await;
            self.look();
        }
    }

    fn look(&mut self) {
        let limit = (self.read)();
        let before = std::mem::replace(&mut self.limit, limit);
        if limit == before {
            return;
        }
        let budgets = share(&self.config, limit, &self.telemetry);
        self.bounds.set(&budgets);
        MemoryLimitChanged {
            before,
            limit,
            n_shared: budgets.limit,
        }
        .emit();
    }
}

/// Computes and reports the shares of a memory limit.
fn share(config: &Config, limit: Option<usize>, telemetry: &Telemetry) -> Budgets {
    let budgets = config.budgets(limit);
    heap::set_limit(budgets.limit / 4 * 3);
    let n_bytes = budgets.limit;
    MemoryShared { n_bytes }.emit(telemetry);
    budgets
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_shares_follow_the_limit_up_and_down() {
        static LIMIT: AtomicUsize = AtomicUsize::new(128 * MIB);
        let config = Config::default();
        let read = || Some(LIMIT.load(Ordering::Relaxed));
        let mut watch = MemoryWatch::new(&config, read, Arc::default());
        let (queue, third) = {
            let bounds = watch.bounds();
            (bounds.forward_queue.clone(), bounds.scores.share(3))
        };
        for limit in [128 * MIB, 48 * MIB, 256 * MIB] {
            LIMIT.store(limit, Ordering::Relaxed);
            watch.look();
            let expected = config.budgets(Some(limit));
            assert_eq!(queue.get(), expected.forward_queue);
            assert_eq!(third.get(), expected.scores / 3);
        }
    }
}
