//! Remembers the services whose traces contain model spans. If a run of one of these services has
//! no model span, the run called no model. Other services may not record their model calls.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::extract::Trajectory;

/// The number of successive traces without a model span after which a service is forgotten, because
/// a release can turn the instrumentation off.
const WINDOW: usize = 200;
/// Maximum number of services. Further services count as unknown.
const MAX_SERVICES: usize = 200;

#[derive(Debug, Default)]
pub(super) struct ModelServices {
    /// For each service, the number of traces since the last model span.
    n_since: HashMap<Arc<str>, usize>,
}

impl ModelServices {
    /// Records a closed trace. Ignores a trace whose model tokens were not stored.
    pub(super) fn note(&mut self, trajectory: &Trajectory) {
        let (service, used) = (&trajectory.service, &trajectory.model_use);
        if !used.is_usage_stored {
            return;
        }
        let (has_model, n_services) = (used.n_calls > 0, self.n_since.len());
        match self.n_since.get_mut(service) {
            Some(n_since) if has_model => *n_since = 0,
            Some(n_since) => {
                *n_since += 1;
                if *n_since == WINDOW {
                    self.n_since.remove(service);
                }
            }
            None if has_model && n_services < MAX_SERVICES => {
                self.n_since.insert(service.clone(), 0);
            }
            None => {}
        }
    }

    pub(super) fn contains(&self, service: &str) -> bool {
        self.n_since.contains_key(service)
    }
}
