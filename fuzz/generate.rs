//! Makes request bodies from random bytes: mutates captures, and writes messages field by field
//! from OTLP's descriptors.

use prost::bytes::BufMut;
use prost::encoding::encode_varint;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use super::captures::Signal;

/// Random bytes: first the input, then pseudo-random bytes that the input seeds. A generated
/// message ends after [`Self::MAX_ROLLS`] bytes were used.
pub(crate) struct Dice<'a> {
    bytes: &'a [u8],
    state: u64,
    n_left: usize,
}

impl<'a> Dice<'a> {
    const MAX_ROLLS: usize = 2_500;

    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let seed = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |seed, &byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            bytes,
            state: seed | 1,
            n_left: Self::MAX_ROLLS,
        }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.n_left = self.n_left.saturating_sub(1);
        if let Some((&first, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            return first;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) as u8
    }

    pub(crate) fn up_to(&mut self, n: usize) -> usize {
        let roll = usize::from(self.byte()) << 8 | usize::from(self.byte());
        roll % n
    }

    /// Returns true once in `n` times on average.
    fn rarely(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    fn is_empty(&self) -> bool {
        self.n_left == 0
    }
}

/// Returns the bytes with up to four faults.
pub(crate) fn mutate(bytes: &[u8], dice: &mut Dice<'_>) -> Vec<u8> {
    let mut mutated = bytes.to_vec();
    for _ in 0..dice.up_to(5) {
        if mutated.is_empty() {
            break;
        }
        let at = dice.up_to(mutated.len());
        let len = dice.up_to(20).min(mutated.len() - at);
        match dice.up_to(6) {
            0 => mutated[at] ^= 1 << dice.up_to(8),
            1 => mutated[at] = dice.byte(),
            2 => drop(mutated.drain(at..at + len)),
            3 => {
                let copy = mutated[at..at + len].to_vec();
                mutated.splice(at..at, copy);
            }
            4 => mutated.insert(at, dice.byte()),
            _ => mutated.truncate(at),
        }
    }
    mutated
}

const KEYS: [&str; 14] = [
    "tool.name",
    "gen_ai.tool.name",
    "gen_ai.operation.name",
    "gen_ai.output.messages",
    "gen_ai.input.messages",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name",
    "llm.output_messages.0.message.role",
    "input.value",
    "error.type",
    "exception.message",
    "service.name",
    "metadata",
    "http.method",
    "größe",
];
const TEXTS: [&str; 12] = [
    "",
    "search",
    "exception",
    "spanscore",
    "a text that is longer than the twenty bytes that are kept",
    "übermäßig größenwahnsinnige Äußerungen",
    "日本語の文字列はここで切られる",
    r#"[{"role":"assistant","parts":[{"type":"tool_call","id":"call_1","name":"search"}]}]"#,
    r#"[{"role":"assistant","parts":[{"type":"text","content":"a tool, called so"}]}]"#,
    "quote \" backslash \\ newline \n control \u{1} delete \u{7f}",
    r#"{"toolCallId":"x"}"#,
    "error",
];
const BAD_UTF8: [&[u8]; 4] = [
    b"\xff",
    b"ab\xc3",
    b"long enough to be past the short way \xed\xa0\x80",
    b"12345678\xf8",
];

pub(crate) struct Generator {
    pool: DescriptorPool,
}

impl Generator {
    pub(crate) fn new() -> Self {
        Self {
            pool: descriptors(),
        }
    }

    pub(crate) fn request(&self, signal: Signal, dice: &mut Dice<'_>) -> Vec<u8> {
        let message = request_descriptor(&self.pool, signal);
        // One request in four may have faults in its framing, its texts and its ids.
        let faults = dice.rarely(4);
        let mut body = Vec::new();
        write_message(&message, dice, faults, 0, &mut body);
        body
    }
}

pub(crate) fn descriptors() -> DescriptorPool {
    DescriptorPool::decode(include_bytes!("otlp.bin").as_slice()).unwrap()
}

pub(crate) fn request_descriptor(pool: &DescriptorPool, signal: Signal) -> MessageDescriptor {
    let (package, name) = match signal {
        Signal::Traces => ("trace", "ExportTraceServiceRequest"),
        Signal::Logs => ("logs", "ExportLogsServiceRequest"),
        Signal::Metrics => ("metrics", "ExportMetricsServiceRequest"),
    };
    pool.get_message_by_name(&format!(
        "opentelemetry.proto.collector.{package}.v1.{name}"
    ))
    .unwrap()
}

fn write_message(
    message: &MessageDescriptor,
    dice: &mut Dice<'_>,
    faults: bool,
    depth: usize,
    out: &mut Vec<u8>,
) {
    let fields: Vec<_> = message.fields().collect();
    // Prefer the fields that lead to spans, log records and data points, because most of the code
    // under test reads those messages.
    let favourites: Vec<_> = fields.iter().filter(|field| is_favourite(field)).collect();
    if message.name() == "Span" && !dice.rarely(8) {
        write_field(&fields[0], dice, faults, depth, out);
        write_field(&fields[1], dice, faults, depth, out);
    }
    let n_fields = match message.name() {
        "AnyValue" => 1 + usize::from(dice.rarely(6)),
        "KeyValue" => 2 + usize::from(dice.rarely(6)),
        _ => 1 + dice.up_to(10),
    };
    for i in 0..n_fields {
        if dice.is_empty() {
            return;
        }
        if dice.rarely(32) {
            write_unknown(dice, faults, 0, out);
        } else if message.name() == "AnyValue" && !dice.rarely(4) {
            write_field(&fields[dice.up_to(4)], dice, faults, depth, out);
        } else if message.name() == "KeyValue" && i < 2 && !dice.rarely(10) {
            write_field(&fields[i], dice, faults, depth, out);
        } else if !favourites.is_empty() && !dice.rarely(3) {
            write_field(
                favourites[dice.up_to(favourites.len())],
                dice,
                faults,
                depth,
                out,
            );
        } else {
            write_field(&fields[dice.up_to(fields.len())], dice, faults, depth, out);
        }
    }
}

fn is_favourite(field: &FieldDescriptor) -> bool {
    let name = field.name();
    let leads_down = [
        "resource_",
        "scope_",
        "log_records",
        "metrics",
        "data_points",
    ]
    .iter()
    .any(|start| name.starts_with(start));
    leads_down
        || matches!(
            name,
            "spans" | "attributes" | "events" | "resource" | "gauge" | "sum" | "values"
        )
}

fn write_field(
    field: &FieldDescriptor,
    dice: &mut Dice<'_>,
    faults: bool,
    depth: usize,
    out: &mut Vec<u8>,
) {
    let tag = u64::from(field.number());
    let wire_type = if faults && dice.rarely(64) {
        u64::from(dice.byte() % 8)
    } else {
        wire_type_of(&field.kind())
    };
    let is_packed = field.is_list() && matches!(wire_type, 0 | 1) && dice.rarely(2);
    if is_packed {
        write_varint(tag << 3 | 2, dice, out);
        let mut packed = Vec::new();
        for _ in 0..dice.up_to(4) {
            write_number(wire_type, dice, faults, &mut packed);
        }
        if faults && dice.rarely(16) {
            packed.push(0x80);
        }
        write_delimited(&packed, dice, faults, out);
        return;
    }
    write_varint(tag << 3 | wire_type, dice, out);
    match (wire_type, field.kind()) {
        (2, Kind::Message(inner)) => {
            let mut content = Vec::new();
            if inner.name() == "AnyValue" && dice.rarely(250) {
                write_deep_value(dice, &mut content);
            } else if depth < 40 {
                write_message(&inner, dice, faults, depth + 1, &mut content);
            }
            write_delimited(&content, dice, faults, out);
        }
        (2, Kind::String) if faults && dice.rarely(24) => {
            write_delimited(BAD_UTF8[dice.up_to(BAD_UTF8.len())], dice, faults, out)
        }
        (2, Kind::String) if field.name() == "key" => {
            write_delimited(KEYS[dice.up_to(KEYS.len())].as_bytes(), dice, faults, out)
        }
        (2, Kind::String) => {
            write_delimited(TEXTS[dice.up_to(TEXTS.len())].as_bytes(), dice, faults, out)
        }
        (2, _) if field.name().ends_with("_id") => write_id(field.name(), dice, faults, out),
        (2, _) => {
            let content: Vec<u8> = (0..dice.up_to(12)).map(|_| dice.byte()).collect();
            write_delimited(&content, dice, faults, out);
        }
        (wire_type, _) => write_number(wire_type, dice, faults, out),
    }
}

/// Writes a field that most messages do not have, of any wire type, including groups.
fn write_unknown(dice: &mut Dice<'_>, faults: bool, depth: usize, out: &mut Vec<u8>) {
    let tag = [
        4,
        17,
        31,
        32,
        33,
        1_000,
        (1 << 29) - 1,
        if faults { 0 } else { 18 },
    ][dice.up_to(8)];
    let wire_type =
        if faults { u64::from(dice.byte() % 8) } else { [0, 1, 2, 3, 5][dice.up_to(5)] };
    if faults && dice.rarely(32) {
        out.extend([0xff, 0xff, 0xff, 0xff, 0x7f]);
    }
    write_varint(tag << 3 | wire_type, dice, out);
    match wire_type {
        2 => {
            let content: Vec<u8> = (0..dice.up_to(200)).map(|_| dice.byte()).collect();
            write_delimited(&content, dice, faults, out);
        }
        3 => {
            // Prost rejects more than 100 levels, so try both sides of the limit.
            let n_nested = if depth == 0 && dice.rarely(64) { 90 + dice.up_to(14) } else { 0 };
            for _ in 0..n_nested {
                write_varint(tag << 3 | 3, dice, out);
            }
            if depth < 5 {
                for _ in 0..dice.up_to(3) {
                    write_unknown(dice, faults, depth + 1, out);
                }
            }
            for _ in 0..n_nested {
                write_varint(tag << 3 | 4, dice, out);
            }
            let end_tag = if faults && dice.rarely(8) { tag + 1 } else { tag };
            write_varint(end_tag << 3 | 4, dice, out);
        }
        _ => write_number(wire_type, dice, faults, out),
    }
}

/// Writes nested arrays or maps, about as deep as prost's limit.
fn write_deep_value(dice: &mut Dice<'_>, out: &mut Vec<u8>) {
    let mut content = vec![0x0a, 1, b'x'];
    if dice.rarely(3) {
        content.extend([0x90, 0x01, 0x01]);
    }
    let is_map = dice.rarely(2);
    for _ in 0..(if is_map { 26 } else { 41 }) + dice.up_to(8) {
        for tag in if is_map { &[2, 1, 6][..] } else { &[1, 5] } {
            let mut outer = vec![tag << 3 | 2];
            encode_varint(content.len() as u64, &mut outer);
            outer.append(&mut content);
            content = outer;
        }
    }
    out.extend(content);
}

fn write_id(name: &str, dice: &mut Dice<'_>, faults: bool, out: &mut Vec<u8>) {
    let len = if name == "trace_id" { 16 } else { 8 };
    let content = match dice.up_to(16) {
        0 => vec![0; len],
        1 => Vec::new(),
        2 if faults && dice.rarely(4) => vec![1; dice.up_to(20)],
        _ => vec![dice.byte() % 4 + 1; len],
    };
    write_delimited(&content, dice, faults, out);
}

fn write_delimited(content: &[u8], dice: &mut Dice<'_>, faults: bool, out: &mut Vec<u8>) {
    let len = content.len() as u64;
    let len = if faults && dice.rarely(100) {
        len.wrapping_add(dice.up_to(5) as u64).wrapping_sub(2)
    } else {
        len
    };
    write_varint(len, dice, out);
    out.extend(content);
}

fn write_number(wire_type: u64, dice: &mut Dice<'_>, faults: bool, out: &mut Vec<u8>) {
    match wire_type {
        0 => match dice.up_to(16) {
            0 => out.extend([0xff; 9].into_iter().chain([if faults { 2 } else { 1 }])),
            1 if faults => out.extend([0x80; 10]),
            2 => write_varint(1 << 32 | 2, dice, out),
            3 => write_varint(u64::MAX, dice, out),
            _ => {
                let number = u64::from(dice.byte() % 5);
                write_varint(number, dice, out);
            }
        },
        1 => {
            let special = [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                1.5,
                1e300,
                -0.0,
                7.0,
            ];
            out.put_slice(&special[dice.up_to(special.len())].to_le_bytes());
        }
        5 => out.extend([dice.byte(), dice.byte() % 4, 0, 0]),
        _ => {}
    }
}

/// Writes a varint, sometimes longer than needed, which is legal.
fn write_varint(value: u64, dice: &mut Dice<'_>, out: &mut Vec<u8>) {
    encode_varint(value, out);
    if value < 1 << 56 && dice.rarely(50) {
        *out.last_mut().unwrap() |= 0x80;
        out.push(0);
    }
}

fn wire_type_of(kind: &Kind) -> u64 {
    match kind {
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => 1,
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => 5,
        Kind::String | Kind::Bytes | Kind::Message(_) => 2,
        _ => 0,
    }
}
