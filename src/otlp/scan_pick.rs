//! Picks the spans of some traces out of an `ExportTraceServiceRequest`. Parses only trace ids, and
//! copies spans and other fields as they were encoded, unknown fields included.

use crate::span::TraceId;
use crate::wire::otlp::{request, resource_group, scope_group, span};
use crate::wire::{Fault, delimited_fields, fields, write};

/// Field numbers on the path to the spans.
const LEVELS: [u64; 3] = [
    request::RESOURCE_GROUPS,
    resource_group::SCOPE_GROUPS,
    scope_group::ITEMS,
];

/// Returns the request with only the spans whose traces `keeps` accepts. `None` if no span remains,
/// or if the request is malformed; receivers reject such requests.
pub fn pick(body: &[u8], mut keeps: impl FnMut(TraceId) -> bool) -> Option<Vec<u8>> {
    let mut picked = Vec::new();
    let has_any = pick_level(body, &LEVELS, &mut keeps, &mut picked).ok()?;
    has_any.then_some(picked)
}

/// Copies a message with its picked spans only. Returns true if there are any.
fn pick_level(
    message: &[u8],
    levels: &[u64],
    keeps: &mut dyn FnMut(TraceId) -> bool,
    out: &mut Vec<u8>,
) -> Result<bool, Fault> {
    let Some((&children, below)) = levels.split_first() else {
        return Ok(false);
    };
    let mut has_any = false;
    for field in fields(message) {
        let field = field?;
        match field.content.filter(|_| field.number == children) {
            None => out.extend_from_slice(field.raw),
            Some(content) if below.is_empty() => {
                // In protobuf, the last occurrence counts.
                let id = delimited_fields(content, span::TRACE_ID).last();
                if id.and_then(TraceId::try_new).is_some_and(&mut *keeps) {
                    out.extend_from_slice(field.raw);
                    has_any = true;
                }
            }
            Some(content) => {
                let mut child = Vec::new();
                if pick_level(content, below, keeps, &mut child)? {
                    write::delimited(out, children, &child);
                    has_any = true;
                }
            }
        }
    }
    Ok(has_any)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length-delimited field.
    fn field(number: u64, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write::delimited(&mut out, number, content);
        out
    }

    fn span_of(trace: u8, name: &[u8]) -> Vec<u8> {
        let content = [field(1, &[trace; 16]), field(99, name)].concat();
        field(2, &content)
    }

    /// A resource group with a schema URL and one scope, which has these spans and an unknown
    /// field.
    fn group(resource: &[u8], spans: &[Vec<u8>]) -> Vec<u8> {
        let scope = [field(1, b"scope"), spans.concat(), field(77, b"?")].concat();
        let content = [field(1, resource), field(2, &scope), field(3, b"schema")].concat();
        field(1, &content)
    }

    #[test]
    fn spans_of_other_traces_go_and_all_else_stays_to_the_byte() {
        let (a, b, c) = (span_of(1, b"a"), span_of(2, b"b"), span_of(1, b"c"));
        let unknown = field(55, b"unknown");
        let of = |first: &[Vec<u8>], second: &[Vec<u8>]| {
            [group(b"one", first), unknown.clone(), group(b"two", second)].concat()
        };
        let body = of(&[a.clone(), b.clone()], std::slice::from_ref(&c));
        let pick_trace = |wanted: u8| pick(&body, |id| id.as_bytes() == &[wanted; 16]);
        let expected = of(std::slice::from_ref(&a), std::slice::from_ref(&c));
        assert_eq!(pick_trace(1), Some(expected));
        let only_second = [group(b"one", std::slice::from_ref(&b)), unknown].concat();
        assert_eq!(pick_trace(2), Some(only_second), "no empty group");
        assert_eq!(pick_trace(3), None);
        assert_eq!(pick(&body, |_| true), Some(body.clone()));
        assert_eq!(pick(&body[..body.len() - 1], |_| true), None, "cut short");
    }
}
