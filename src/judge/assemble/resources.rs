//! Lets different requests share equal resources, so that traces do not store copies.

use std::sync::Arc;

use otlp::span::Resource;

/// Maximum number of shared resources. An agent has one, a gateway a few dozen.
const MAX_RESOURCES: usize = 64;

/// Maximum bytes of a shared resource. Together with `MAX_RESOURCES`, at most 256 KiB are outside
/// every budget.
const MAX_SIZE: usize = 4 << 10;

#[derive(Debug, Default)]
pub(super) struct SharedResources {
    known: Vec<Arc<Resource>>,
    /// The last resource and its shared form, cached because the spans of one request arrive one
    /// after the other.
    last: Option<(Arc<Resource>, SharedResource)>,
}

#[derive(Debug, Clone)]
pub(super) struct SharedResource {
    pub(super) resource: Arc<Resource>,
    /// The bytes that count towards the trace: 0 for a shared resource.
    pub(super) cost: usize,
}

impl SharedResources {
    /// Returns the shared form of a resource. Equal resources share one form, within the limits.
    pub(super) fn share(&mut self, resource: &Arc<Resource>) -> &SharedResource {
        // Drop the cached resource before the search, because the cache's reference would make the
        // resource seem to be in use.
        let last = self
            .last
            .take()
            .filter(|(last, _)| Arc::ptr_eq(last, resource));
        let last = last.unwrap_or_else(|| (Arc::clone(resource), self.find_or_keep(resource)));
        &self.last.insert(last).1
    }

    fn find_or_keep(&mut self, resource: &Arc<Resource>) -> SharedResource {
        let shared = |resource: &Arc<Resource>, cost: usize| SharedResource {
            resource: Arc::clone(resource),
            cost,
        };
        if let Some(known) = self.known.iter().find(|known| **known == *resource) {
            return shared(known, 0);
        }
        let size = resource.size();
        let is_unused = |known: &&mut Arc<Resource>| Arc::strong_count(known) == 1;
        let cost = if size > MAX_SIZE {
            size
        } else if self.known.len() < MAX_RESOURCES {
            self.known.push(Arc::clone(resource));
            0
        } else if let Some(unused) = self.known.iter_mut().find(is_unused) {
            *unused = Arc::clone(resource);
            0
        } else {
            size
        };
        shared(resource, cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otlp::span::StoredAttributes;

    fn resource(service: &str, size: usize) -> Arc<Resource> {
        Arc::new(Resource {
            encoded: vec![0; size].into(),
            service: service.into(),
            kept: StoredAttributes::default(),
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
