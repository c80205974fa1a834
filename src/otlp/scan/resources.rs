//! Reads each distinct resource of a request once, and shares the resource among its spans.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::HashSet;
use smallvec::SmallVec;

use super::retention::Keeper;
use super::value::{ValueKind, key_value};
use crate::span::{KeySet, Resource, cut_at_char};
use crate::wire::otlp::resource;
use crate::wire::{Cursor, RECURSION_LIMIT, check_utf8, delimited_fields};

/// Maximum bytes of a resource's kept encoding; only the first fields of a longer encoding are
/// kept. Real resources have a few hundred bytes.
const MAX_RESOURCE_SIZE: usize = 64 << 10;
/// Maximum bytes of a kept service name.
const MAX_SERVICE_SIZE: usize = 1 << 10;

/// The occurrences of one message field, which merge into one message.
pub(super) type Occurrences<'b> = SmallVec<[&'b [u8]; 1]>;

/// Returns the first occurrences of a field, up to the one with which they exceed
/// [`MAX_RESOURCE_SIZE`] bytes together.
pub(super) fn occurrences(message: &[u8], field: u64) -> Occurrences<'_> {
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

/// The distinct resources of a request.
pub(super) struct RequestResources<'k> {
    keeper: Option<Keeper<'k>>,
    seen: HashSet<ByEncoding>,
    last: Option<Arc<Resource>>,
}

impl<'k> RequestResources<'k> {
    pub(super) fn new(keys: Option<&'k KeySet>) -> Self {
        Self {
            keeper: keys.map(Keeper::new),
            seen: HashSet::new(),
            last: None,
        }
    }

    /// Returns the resource with these occurrences. Equal resources are shared.
    pub(super) fn intern(&mut self, occurrences: &Occurrences<'_>) -> Arc<Resource> {
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
        let resource = match self.seen.get(encoded) {
            Some(seen) => Arc::clone(&seen.0),
            None => {
                let resource = Arc::new(self.read(encoded));
                self.seen.insert(ByEncoding(Arc::clone(&resource)));
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
            .map(Keeper::take_alone)
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

/// A resource that is hashed and compared by its encoding.
struct ByEncoding(Arc<Resource>);

impl Borrow<[u8]> for ByEncoding {
    fn borrow(&self) -> &[u8] {
        &self.0.encoded
    }
}

impl PartialEq for ByEncoding {
    fn eq(&self, other: &Self) -> bool {
        self.0.encoded == other.0.encoded
    }
}

impl Eq for ByEncoding {}

impl Hash for ByEncoding {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.encoded.hash(state);
    }
}
