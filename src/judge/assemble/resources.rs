//! Shares equal resources of different requests, so that no trace holds a copy of its own.

use std::sync::Arc;

use otlp::span::Resource;

/// Number of shared resources. An agent has one, a gateway a few dozen.
const MAX_RESOURCES: usize = 64;

/// Size of the largest shared resource, in bytes. With the number above, at most 256 KiB are
/// outside every budget.
const MAX_SIZE: usize = 4 << 10;

/// Resources that traces share.
#[derive(Debug, Default)]
pub(super) struct SharedResources {
    known: Vec<Arc<Resource>>,
    /// The last resource and its shared form: spans of one request arrive one after the other.
    last: Option<(Arc<Resource>, SharedResource)>,
}

/// A resource as a trace holds it.
#[derive(Debug, Clone)]
pub(super) struct SharedResource {
    pub(super) resource: Arc<Resource>,
    /// Bytes that count as the trace's own: 0 for a shared resource.
    pub(super) cost: usize,
}

impl SharedResources {
    /// The shared form of this resource and of all that equal it.
    pub(super) fn share(&mut self, resource: &Arc<Resource>) -> &SharedResource {
        // Dropped if it is another one: its reference count would say that it is in use.
        let last = self
            .last
            .take()
            .filter(|(last, _)| Arc::ptr_eq(last, resource));
        let last = last.unwrap_or_else(|| (Arc::clone(resource), self.find_or_keep(resource)));
        &self.last.insert(last).1
    }

    fn find_or_keep(&mut self, resource: &Arc<Resource>) -> SharedResource {
        let size = resource.size();
        if size > MAX_SIZE {
            return SharedResource {
                resource: Arc::clone(resource),
                cost: size,
            };
        }
        if let Some(known) = self.known.iter().find(|known| **known == *resource) {
            return SharedResource {
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
            return SharedResource {
                resource: Arc::clone(resource),
                cost: size,
            };
        }
        SharedResource {
            resource: Arc::clone(resource),
            cost: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otlp::span::KeptAttributes;

    fn resource(service: &str, size: usize) -> Arc<Resource> {
        Arc::new(Resource {
            encoded: vec![0; size].into(),
            service: service.into(),
            kept: KeptAttributes::default(),
        })
    }

    #[test]
    fn equal_resources_become_one_that_costs_nothing() {
        let mut resources = SharedResources::default();
        let first = resources.share(&resource("shop", 200)).clone();
        let second = resources.share(&resource("shop", 200)).clone();
        let other = resources.share(&resource("bank", 200)).clone();
        assert!(Arc::ptr_eq(&first.resource, &second.resource));
        assert!(!Arc::ptr_eq(&first.resource, &other.resource));
        assert_eq!((first.cost, second.cost, other.cost), (0, 0, 0));
    }

    #[test]
    fn a_large_resource_counts_against_its_trace() {
        let mut resources = SharedResources::default();
        let large = resource("shop", MAX_SIZE);
        assert_eq!(resources.share(&large).cost, large.size());
        assert_eq!(
            resources.share(&large).cost,
            large.size(),
            "also for the second span of a request"
        );
    }

    #[test]
    fn shared_resources_are_bounded_and_an_unused_one_makes_room() {
        let mut resources = SharedResources::default();
        let mut held: Vec<SharedResource> = (0..MAX_RESOURCES)
            .map(|nth| resources.share(&resource(&nth.to_string(), 100)).clone())
            .collect();
        assert!(resources.share(&resource("one too many", 100)).cost > 0);
        held.remove(7);
        assert_eq!(resources.share(&resource("in its place", 100)).cost, 0);
        assert_eq!(resources.known.len(), MAX_RESOURCES);
    }
}
