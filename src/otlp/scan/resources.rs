//! Reads each distinct resource of a request once, and shares the resource among its spans.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use super::retention::Retainer;
use super::value::{ValueKind, key_value};
use crate::span::{KeySet, Resource, cut_at_char};
use crate::wire::otlp::{resource, resource_group};
use crate::wire::{Cursor, RECURSION_LIMIT, check_utf8, delimited_fields};

/// Maximum bytes stored of an encoded resource. Only the first fields of a longer resource are
/// stored. Real resources have a few hundred bytes.
const MAX_RESOURCE_SIZE: usize = 64 << 10;
/// Maximum bytes stored of a service name.
const MAX_SERVICE_SIZE: usize = 1 << 10;

/// The occurrences of one message field, which merge into one message.
type Occurrences<'b> = SmallVec<[&'b [u8]; 1]>;

/// Returns the occurrences of a field, but none after their total exceeds [`MAX_RESOURCE_SIZE`]
/// bytes.
fn occurrences(message: &[u8], field: u64) -> Occurrences<'_> {
    let mut n_bytes = 0;
    delimited_fields(message, field)
        .filter(|occurrence| !occurrence.is_empty())
        .take_while(|occurrence| {
            let begins_within = n_bytes <= MAX_RESOURCE_SIZE;
            n_bytes += occurrence.len();
            begins_within
        })
        .collect()
}

pub(super) struct RequestResources<'k, 'b> {
    keeper: Option<Retainer<'k>>,
    group: &'b [u8],
    current: Option<Arc<Resource>>,
    /// All resources, keyed by their encoding.
    seen: HashTable<Arc<Resource>>,
    hasher: RandomState,
    last: Option<Arc<Resource>>,
}

impl<'k, 'b> RequestResources<'k, 'b> {
    pub(super) fn new(keys: Option<&'k KeySet>) -> Self {
        Self {
            keeper: keys.map(Retainer::new),
            group: &[],
            current: None,
            seen: HashTable::new(),
            hasher: RandomState::default(),
            last: None,
        }
    }

    pub(super) fn begin(&mut self, group: &'b [u8]) {
        (self.group, self.current) = (group, None);
    }

    /// Returns the resource of the current group, which may follow the group's spans.
    pub(super) fn current(&mut self) -> &Arc<Resource> {
        let read = self.current.take();
        let resource =
            read.unwrap_or_else(|| self.intern(&occurrences(self.group, resource_group::RESOURCE)));
        self.current.insert(resource)
    }

    /// Returns the resource with these occurrences. Equal resources are shared.
    fn intern(&mut self, occurrences: &Occurrences<'_>) -> Arc<Resource> {
        let merged;
        let encoded = match occurrences.as_slice() {
            [] => &[][..],
            _ if self.keeper.is_none() => &[][..],
            [one] if one.len() <= MAX_RESOURCE_SIZE => one,
            _ => {
                merged = merge(occurrences);
                &merged[..]
            }
        };
        if let Some(last) = &self.last
            && *last.encoded == *encoded
        {
            return Arc::clone(last);
        }
        let hash = self.hasher.hash_one(encoded);
        let seen = self.seen.find(hash, |seen| *seen.encoded == *encoded);
        let resource = match seen.map(Arc::clone) {
            Some(seen) => seen,
            None => {
                let resource = Arc::new(self.read(encoded));
                let hash_of = |seen: &Arc<Resource>| self.hasher.hash_one(&*seen.encoded);
                self.seen
                    .insert_unique(hash, Arc::clone(&resource), hash_of);
                resource
            }
        };
        self.last = Some(Arc::clone(&resource));
        resource
    }

    fn read(&mut self, encoded: &[u8]) -> Resource {
        let mut service: Option<Arc<str>> = None;
        for attribute in delimited_fields(encoded, resource::ATTRIBUTES) {
            let Ok((key, value)) = key_value(attribute, RECURSION_LIMIT, check_utf8) else {
                continue;
            };
            if key == b"service.name" && service.is_none() {
                service = Some(match value.kind {
                    ValueKind::Str => {
                        String::from_utf8_lossy(cut_at_char(value.bytes, MAX_SERVICE_SIZE)).into()
                    }
                    _ => Arc::default(),
                });
            }
            if let Some(keeper) = &mut self.keeper
                && let Some(kept) = keeper.keys().find(key)
            {
                keeper.attribute(kept, value, attribute);
            }
        }
        let kept = self
            .keeper
            .as_mut()
            .map(Retainer::take_alone)
            .unwrap_or_default();
        Resource {
            encoded: encoded.into(),
            service: service.unwrap_or_default(),
            kept,
        }
    }
}

/// Merges all occurrences into one message, with as many whole fields as [`MAX_RESOURCE_SIZE`]
/// allows.
fn merge(occurrences: &Occurrences<'_>) -> Vec<u8> {
    let mut merged = Vec::new();
    for occurrence in occurrences {
        let mut cursor = Cursor::new(occurrence);
        while !cursor.is_empty() {
            let field = cursor.rest();
            if cursor
                .varint()
                .and_then(|key| cursor.skip_unread(key, 0, RECURSION_LIMIT))
                .is_err()
            {
                break;
            }
            let field = &field[..field.len() - cursor.rest().len()];
            if merged.len() + field.len() > MAX_RESOURCE_SIZE {
                return merged;
            }
            merged.extend_from_slice(field);
        }
    }
    merged
}
