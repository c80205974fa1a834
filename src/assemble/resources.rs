//! Pure. Equal resources that came with different requests in, one of them out, so that a trace
//! need not hold a copy of its own. Knows resources; knows nothing of traces.

use std::sync::Arc;

use crate::span::Resource;

/// Resources kept in common. An agent has one, a gateway a few dozen.
const MAX_RESOURCES: usize = 64;

/// Largest resource kept in common, in bytes. With the number above: what is in nobody's budget is
/// at most 256 KiB.
const MAX_SIZE: usize = 4 << 10;

/// Resources that traces hold in common.
#[derive(Debug, Default)]
pub(super) struct Resources {
    known: Vec<Arc<Resource>>,
    /// What came last, and what stands for it: the spans of a request come one after the other.
    last: Option<(Arc<Resource>, Common)>,
}

/// A resource as a trace holds it.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) resource: Arc<Resource>,
    /// Bytes that the trace answers for: none of what is kept in common.
    pub(super) cost: usize,
}

impl Resources {
    /// The one that stands for this one and for all that equal it.
    pub(super) fn common(&mut self, resource: &Arc<Resource>) -> &Common {
        // What was held here would look as if it were in use.
        let last = self
            .last
            .take()
            .filter(|(last, _)| Arc::ptr_eq(last, resource));
        let last = last.unwrap_or_else(|| (Arc::clone(resource), self.find_or_keep(resource)));
        &self.last.insert(last).1
    }

    fn find_or_keep(&mut self, resource: &Arc<Resource>) -> Common {
        let size = resource.size();
        if size > MAX_SIZE {
            return Common {
                resource: Arc::clone(resource),
                cost: size,
            };
        }
        if let Some(known) = self.known.iter().find(|known| **known == *resource) {
            return Common {
                resource: Arc::clone(known),
                cost: 0,
            };
        }
        if self.known.len() < MAX_RESOURCES {
            self.known.push(Arc::clone(resource));
        } else if let Some(unused) = self
            .known
            .iter_mut()
            .find(|known| Arc::strong_count(known) == 1)
        {
            *unused = Arc::clone(resource);
        } else {
            return Common {
                resource: Arc::clone(resource),
                cost: size,
            };
        }
        Common {
            resource: Arc::clone(resource),
            cost: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::KeptAttributes;

    fn resource(service: &str, size: usize) -> Arc<Resource> {
        Arc::new(Resource {
            encoded: vec![0; size].into(),
            service: service.into(),
            kept: KeptAttributes::default(),
        })
    }

    #[test]
    fn equal_resources_become_one_that_costs_nothing() {
        let mut resources = Resources::default();
        let first = resources.common(&resource("shop", 200)).clone();
        let second = resources.common(&resource("shop", 200)).clone();
        let other = resources.common(&resource("bank", 200)).clone();
        assert!(Arc::ptr_eq(&first.resource, &second.resource));
        assert!(!Arc::ptr_eq(&first.resource, &other.resource));
        assert_eq!((first.cost, second.cost, other.cost), (0, 0, 0));
    }

    #[test]
    fn a_large_one_is_paid_for_by_its_trace() {
        let mut resources = Resources::default();
        let large = resource("shop", MAX_SIZE);
        assert_eq!(resources.common(&large).cost, large.size());
        assert_eq!(
            resources.common(&large).cost,
            large.size(),
            "also for the second span of a request"
        );
    }

    #[test]
    fn what_is_kept_in_common_is_bounded_and_what_nobody_holds_makes_room() {
        let mut resources = Resources::default();
        let mut held: Vec<Common> = (0..MAX_RESOURCES)
            .map(|nth| resources.common(&resource(&nth.to_string(), 100)).clone())
            .collect();
        assert!(resources.common(&resource("one too many", 100)).cost > 0);
        held.remove(7);
        assert_eq!(resources.common(&resource("in its place", 100)).cost, 0);
        assert_eq!(resources.known.len(), MAX_RESOURCES);
    }
}
