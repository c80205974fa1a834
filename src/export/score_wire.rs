//! Encodes attributes, and batches of items grouped by resource, as OTLP.
//!
//! Encoding a score span must cost no more than decoding a few spans, so this file writes the bytes
//! directly: building the generated structs would mean some sixty allocations for each span. The
//! tests decode all output with prost.

use hashbrown::HashMap;
use otlp::wire::otlp::{
    any_value, key_value, request, resource, resource_group, scope, scope_group,
};
use otlp::wire::write::{self, message};
use otlp::wire::{delimited_fields, fields};

/// The scope name of all score items; the scan excludes spans with this scope name from scoring.
pub(super) const SCOPE_NAME: &str = "spanscore";
pub(super) const SCOPE_VERSION: &str = env!("CARGO_PKG_VERSION");

// === attributes ===

/// Writes attributes as a repeated field of `KeyValue` messages.
pub(super) struct Attributes<'a> {
    out: &'a mut Vec<u8>,
    /// The number of the field that contains the attributes.
    field: u64,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, field: u64) -> Self {
        Self { out, field }
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.entry(key, |out| {
            write::delimited(out, any_value::STRING, value.as_bytes())
        });
    }

    /// Writes a string value that `write` appends in place; `write` must append UTF-8.
    pub(super) fn text_with(&mut self, key: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.entry(key, |out| message(out, any_value::STRING, write));
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.entry(key, |out| {
            write::present_uint(out, any_value::BOOL, value.into())
        });
    }

    pub(super) fn count(&mut self, key: &str, value: usize) {
        self.entry(key, |out| {
            write::present_uint(out, any_value::INT, value as u64)
        });
    }

    pub(super) fn number(&mut self, key: &str, value: f64) {
        self.entry(key, |out| {
            write::present_fixed64(out, any_value::DOUBLE, value.to_bits())
        });
    }

    fn entry(&mut self, key: &str, any_value: impl FnOnce(&mut Vec<u8>)) {
        message(self.out, self.field, |out| {
            write::bytes(out, key_value::KEY, key.as_bytes());
            message(out, key_value::VALUE, any_value);
        });
    }
}

// === resource ===

/// Appends the resource of scores: a copy of the evaluated span's resource, so that backends route
/// scores to the same project. Replaces attributes of the SDK and the process with ours. Copies
/// encoded bytes, so that fields unknown to our protos survive.
fn score_resource(out: &mut Vec<u8>, encoded: &[u8]) {
    for field in fields(encoded).flatten() {
        let attribute = field
            .content
            .filter(|_| field.number == resource::ATTRIBUTES);
        // If a sender repeats the key, the last entry counts, as in protobuf.
        let key = attribute.and_then(|it| delimited_fields(it, key_value::KEY).last());
        if !key.is_some_and(is_replaced) {
            out.extend_from_slice(field.raw);
        }
    }
    let mut attributes = Attributes::new(out, resource::ATTRIBUTES);
    attributes.text("telemetry.distro.name", SCOPE_NAME);
    attributes.text("telemetry.distro.version", SCOPE_VERSION);
}

/// Returns the resource of a trajectory without an evaluated span: only the service is known.
pub(super) fn service_resource(service: &str) -> Vec<u8> {
    let mut out = Vec::new();
    if !service.is_empty() {
        Attributes::new(&mut out, resource::ATTRIBUTES).text("service.name", service);
    }
    out
}

fn is_replaced(key: &[u8]) -> bool {
    key.starts_with(b"telemetry.sdk.")
        || key.starts_with(b"telemetry.distro.")
        || key.starts_with(b"process.")
}

// === ScoreBatch ===

/// Items of one export request, grouped by resource.
#[derive(Debug, Default)]
pub(crate) struct ScoreBatch {
    groups: Vec<Group>,
    /// Position of each resource in `groups`, by its encoded bytes.
    by_resource: HashMap<Box<[u8]>, usize>,
    n_items: usize,
    size: usize,
}

#[derive(Debug)]
struct Group {
    resource: Vec<u8>,
    items: Vec<u8>,
}

impl ScoreBatch {
    /// Adds the item that `write` appends to the group of this encoded resource.
    pub(super) fn push(&mut self, resource: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let group_idx = match self.by_resource.get(resource) {
            Some(&group_idx) => group_idx,
            None => {
                let mut encoded = Vec::with_capacity(resource.len() + 80);
                score_resource(&mut encoded, resource);
                self.size += encoded.len() + resource.len();
                self.by_resource.insert(resource.into(), self.groups.len());
                self.groups.push(Group {
                    resource: encoded,
                    items: Vec::new(),
                });
                self.groups.len() - 1
            }
        };
        let items = &mut self.groups[group_idx].items;
        let before = items.len();
        message(items, scope_group::ITEMS, write);
        self.size += items.len() - before;
        self.n_items += 1;
    }

    pub(crate) fn n_items(&self) -> usize {
        self.n_items
    }

    /// Returns the size of the batch in bytes, which is close to that of the request.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the encoded export request and empties the batch. Groups are in the order of their
    /// first items.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size + 64 * self.groups.len());
        for group in self.groups.drain(..) {
            message(&mut out, request::RESOURCE_GROUPS, |out| {
                write::delimited(out, resource_group::RESOURCE, &group.resource);
                message(out, resource_group::SCOPE_GROUPS, |out| {
                    message(out, scope_group::SCOPE, |out| {
                        write::bytes(out, scope::NAME, SCOPE_NAME.as_bytes());
                        write::bytes(out, scope::VERSION, SCOPE_VERSION.as_bytes());
                    });
                    out.extend_from_slice(&group.items);
                });
            });
        }
        self.by_resource.clear();
        self.n_items = 0;
        self.size = 0;
        out
    }
}
