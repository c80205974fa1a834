//! Values in, protobuf bytes out: the little of the wire format that scores are written with, and a
//! batch of items grouped by resource. Knows OTLP's framing; does not know what a score is, nor
//! where the bytes go.
//!
//! Written by hand, since a score span must cost no more than a few spans to decode (DESIGN 10,
//! goal 10): building the generated structs would mean some sixty allocations for each. The tests
//! read everything back with prost.

use std::fmt::Write as _;

use hashbrown::HashMap;

/// The scope name of everything we send; the scan leaves spans with this scope name out of scoring.
pub(super) const SCOPE_NAME: &str = "spanscore";
/// The version beside it.
pub(super) const SCOPE_VERSION: &str = env!("CARGO_PKG_VERSION");

const VARINT: u64 = 0;
const I64: u64 = 1;
const LEN: u64 = 2;
const I32: u64 = 5;

pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A varint field; left out where it is 0, as proto3 does.
pub(super) fn uint(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        varint(out, field << 3 | VARINT);
        varint(out, value);
    }
}

/// A fixed64 field; left out where it is 0.
pub(super) fn fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        varint(out, field << 3 | I64);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// A fixed32 field; left out where it is 0.
pub(super) fn fixed32(out: &mut Vec<u8>, field: u64, value: u32) {
    if value != 0 {
        varint(out, field << 3 | I32);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// A string or bytes field; left out where it is empty.
pub(super) fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    if !value.is_empty() {
        set_bytes(out, field, value);
    }
}

/// A string or bytes field of a `oneof`, where an empty value is a value.
fn set_bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | LEN);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A field of bytes that `write` appends: a nested message, or a text that is built in place. One
/// byte is set aside for the length; content of 128 bytes or more is moved to make room, which is
/// cheaper than measuring first.
pub(super) fn message(out: &mut Vec<u8>, field: u64, write: impl FnOnce(&mut Vec<u8>)) {
    varint(out, field << 3 | LEN);
    let at = out.len();
    out.push(0);
    write(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
        return;
    }
    let mut prefix = [0; 10];
    let mut n = 0;
    let mut rest = len;
    while rest >= 0x80 {
        prefix[n] = rest as u8 | 0x80;
        rest >>= 7;
        n += 1;
    }
    prefix[n] = rest as u8;
    out.splice(at..=at, prefix[..=n].iter().copied());
}

// === attributes ===

/// A repeated `KeyValue` at one field number.
pub(super) struct Attributes<'a> {
    /// Where they are written.
    pub(super) out: &'a mut Vec<u8>,
    /// The number of the field that holds them.
    pub(super) field: u64,
}

impl Attributes<'_> {
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.entry(key, |out| set_bytes(out, 1, value.as_bytes()));
    }

    /// A string value that `write` appends in place; it must append UTF-8.
    pub(super) fn text_with(&mut self, key: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.entry(key, |out| message(out, 1, write));
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.entry(key, |out| {
            out.extend_from_slice(&[2 << 3 | VARINT as u8, u8::from(value)])
        });
    }

    pub(super) fn count(&mut self, key: &str, value: usize) {
        self.entry(key, |out| {
            varint(out, 3 << 3 | VARINT);
            varint(out, value as u64);
        });
    }

    pub(super) fn number(&mut self, key: &str, value: f64) {
        self.entry(key, |out| {
            varint(out, 4 << 3 | I64);
            out.extend_from_slice(&value.to_le_bytes());
        });
    }

    fn entry(&mut self, key: &str, any_value: impl FnOnce(&mut Vec<u8>)) {
        message(self.out, self.field, |out| {
            bytes(out, 1, key.as_bytes());
            message(out, 2, any_value);
        });
    }
}

// === JSON in place ===

/// Appends a JSON string.
pub(super) fn json_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&text.as_bytes()[plain..at]);
        plain = at + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\r' => out.extend_from_slice(b"\\r"),
            _ => {
                let mut escape = String::with_capacity(6);
                let _ = write!(escape, "\\u{byte:04x}");
                out.extend_from_slice(escape.as_bytes());
            }
        }
    }
    out.extend_from_slice(&text.as_bytes()[plain..]);
    out.push(b'"');
}

// === resource ===

/// Appends the content of the resource that scores carry: the evaluated span's own, so that
/// backends route them to the same project, without what describes the SDK and the process that
/// made it, and with our mark. Works on the encoded bytes, so fields newer than our protos survive.
fn score_resource(out: &mut Vec<u8>, encoded: &[u8]) {
    let mut rest = encoded;
    while let Some(field) = next_field(rest) {
        let whole = &rest[..rest.len() - field.rest.len()];
        let is_ours = field.number == 1 && field.content.and_then(key_of).is_some_and(is_replaced);
        if !is_ours {
            out.extend_from_slice(whole);
        }
        rest = field.rest;
    }
    let mut attributes = Attributes { out, field: 1 };
    attributes.text("telemetry.distro.name", SCOPE_NAME);
    attributes.text("telemetry.distro.version", SCOPE_VERSION);
}

/// The resource of a trajectory without an evaluated span: all we know is the service.
pub(super) fn service_resource(service: &str) -> Vec<u8> {
    let mut out = Vec::new();
    if !service.is_empty() {
        Attributes {
            out: &mut out,
            field: 1,
        }
        .text("service.name", service);
    }
    out
}

fn is_replaced(key: &[u8]) -> bool {
    key.starts_with(b"telemetry.sdk.")
        || key.starts_with(b"telemetry.distro.")
        || key.starts_with(b"process.")
}

/// The key of an encoded `KeyValue`; where a sender repeats the field, the last one holds, as in
/// protobuf.
fn key_of(mut key_value: &[u8]) -> Option<&[u8]> {
    let mut key = None;
    while let Some(field) = next_field(key_value) {
        if field.number == 1 {
            key = field.content;
        }
        key_value = field.rest;
    }
    key
}

struct Field<'a> {
    number: u64,
    /// If it is length-delimited.
    content: Option<&'a [u8]>,
    /// What follows it.
    rest: &'a [u8],
}

/// The next field. `None` at the end, or at anything malformed (which the scan does not let
/// through).
fn next_field(bytes: &[u8]) -> Option<Field<'_>> {
    let (key, rest) = read_varint(bytes)?;
    let (content, rest) = match key & 7 {
        VARINT => (None, read_varint(rest)?.1),
        I64 => (None, rest.get(8..)?),
        I32 => (None, rest.get(4..)?),
        LEN => {
            let (len, rest) = read_varint(rest)?;
            let (content, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            (Some(content), rest)
        }
        _ => return None,
    };
    Some(Field {
        number: key >> 3,
        content,
        rest,
    })
}

fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (n, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[n + 1..]));
        }
    }
    None
}

// === Batch ===

/// Items on their way into one export request, grouped by resource. Traces and logs share the
/// numbers of their outer fields: request.1 = resource group { 1 = resource, 2 = scope group { 1 =
/// scope, 2 = item } }.
#[derive(Debug, Default)]
pub(crate) struct Batch {
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

impl Batch {
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
        message(items, 2, write);
        self.size += items.len() - before;
        self.n_items += 1;
    }

    /// How many items there are.
    pub(crate) fn n_items(&self) -> usize {
        self.n_items
    }

    /// Bytes it holds on to, which is about the size of the request.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The encoded export request, groups in the order in which their first item came; the batch is
    /// empty afterwards.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size + 64 * self.groups.len());
        for group in self.groups.drain(..) {
            message(&mut out, 1, |out| {
                message(out, 1, |out| out.extend_from_slice(&group.resource));
                message(out, 2, |out| {
                    message(out, 1, |out| {
                        bytes(out, 1, SCOPE_NAME.as_bytes());
                        bytes(out, 2, SCOPE_VERSION.as_bytes());
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
