//! Detects services whose traces arrive torn: some spans of a trace reach this replica, the rest
//! reach another one. A single trace proves nothing, because a missing child is invisible; many
//! traces do. The evidence is a trace that was closed as inactive with a missing local parent. A
//! service with too many torn traces gets no full verdicts.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use super::{TornService, TornTraces};

/// The number of a service's latest closed traces that are considered.
const WINDOW: usize = 200;
/// Maximum number of torn traces in the window that count as accidents: 2 %.
const MAX_TORN: usize = WINDOW / 50;
/// Maximum number of services that are counted separately; further services count as one.
const MAX_SERVICES: usize = 200;

#[derive(Debug, Default)]
pub struct TornServices {
    by_service: HashMap<Arc<str>, Window>,
    seen: TornTraces,
}

#[derive(Debug, Default)]
struct Window {
    /// One entry for each closed trace, the oldest first: true if the trace was torn.
    closed: VecDeque<bool>,
    n_torn: usize,
}

impl TornServices {
    pub(super) fn note(&mut self, service: &str, is_torn: bool) {
        let service: Arc<str> = match self.by_service.get_key_value(service) {
            Some((known, _)) => known.clone(),
            None if self.by_service.len() < MAX_SERVICES => service.into(),
            None => "".into(),
        };
        let window = self.by_service.entry(service.clone()).or_default();
        let before = window.is_torn();
        window.closed.push_back(is_torn);
        window.n_torn += usize::from(is_torn);
        if window.closed.len() > WINDOW && window.closed.pop_front() == Some(true) {
            window.n_torn -= 1;
        }
        self.seen.n_traces += usize::from(is_torn);
        if window.is_torn() != before {
            self.seen.changes.push(TornService {
                service,
                is_torn: !before,
                n_torn: window.n_torn,
                n_closed: window.closed.len(),
            });
        }
    }

    pub(super) fn is_torn(&self, service: &str) -> bool {
        let window = self.by_service.get(service).or_else(|| {
            (self.by_service.len() >= MAX_SERVICES)
                .then(|| self.by_service.get(""))
                .flatten()
        });
        window.is_some_and(Window::is_torn)
    }

    pub fn take(&mut self) -> TornTraces {
        std::mem::take(&mut self.seen)
    }
}

impl Window {
    fn is_torn(&self) -> bool {
        self.n_torn > MAX_TORN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_torn_while_more_than_four_of_its_last_200_traces_were() {
        let mut services = TornServices::default();
        for _ in 0..4 {
            services.note("shop", true);
        }
        services.note("other", false);
        assert!(!services.is_torn("shop"), "four are an accident");
        assert_eq!(services.take().changes, []);
        services.note("shop", true);
        assert!(services.is_torn("shop"));
        assert!(
            !services.is_torn("other"),
            "one sender does not silence another"
        );
        let TornTraces { n_traces, changes } = services.take();
        assert_eq!(n_traces, 1);
        assert_eq!((changes[0].is_torn, changes[0].n_torn), (true, 5));

        for _ in 0..195 {
            services.note("shop", false);
        }
        assert!(services.is_torn("shop"));
        services.note("shop", false);
        assert!(!services.is_torn("shop"), "the first has left the window");
        let changes = services.take().changes;
        assert_eq!((changes.len(), changes[0].is_torn), (1, false));
    }

    #[test]
    fn services_beyond_the_bound_count_as_one() {
        let mut services = TornServices::default();
        for n in 0..MAX_SERVICES + 10 {
            services.note(&format!("service-{n}"), n >= MAX_SERVICES);
        }
        assert_eq!(services.by_service.len(), MAX_SERVICES + 1);
        assert!(services.is_torn("service-205"));
        assert!(!services.is_torn("service-5"));
    }
}
