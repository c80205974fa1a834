//! Encodes requests by hand, because a library would not send the attackers' requests.

/// Returns the preface of HTTP/2 and empty settings.
pub(crate) fn preface() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns uncompressed request headers: POST to `path`, and the headers in `more`.
pub(crate) fn headers(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` are entries of the static table of HPACK.
    let mut block = vec![0x83, 0x86, 0x04];
    text(&mut block, path);
    block.push(0x01);
    text(&mut block, "127.0.0.1");
    for (name, value) in more {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

fn text(block: &mut Vec<u8>, text: &str) {
    match text.len() {
        len if len < 127 => block.push(len as u8),
        len => {
            block.push(127);
            let mut rest = len - 127;
            while rest >= 128 {
                block.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            block.push(rest as u8);
        }
    }
    block.extend(text.as_bytes());
}

pub(crate) fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut len = content.len();
    while len >= 128 {
        bytes.push((len % 128) as u8 | 128);
        len /= 128;
    }
    bytes.push(len as u8);
    bytes.extend(content);
    bytes
}

/// Returns a request of `n` spans of 30 bytes. With `traces`, each span is in a separate trace.
pub(crate) fn spans(n: usize, traces: bool) -> Vec<u8> {
    let mut all = Vec::new();
    for number in 0..n as u64 {
        let mut trace_id = [7; 16];
        if traces {
            trace_id[8..].copy_from_slice(&(number + 1).to_be_bytes());
        }
        let span = [field(1, &trace_id), field(2, &(number + 1).to_be_bytes())].concat();
        all.extend(field(2, &span));
    }
    field(1, &field(2, &all))
}

/// Returns a request of `n` spans, each in a separate trace. Their parents never arrive. The traces
/// are numbered from `first`.
pub(crate) fn open_traces(first: u64, n: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for number in first..first + n {
        let ids = Ids::new(9, number);
        let span = [ids.fields(2), field(4, &1_u64.to_be_bytes())].concat();
        all.extend(field(2, &span));
    }
    field(1, &field(2, &all))
}

/// Like [`open_traces`], but the spans have ended and have no parents.
pub(crate) fn ended_traces(first: u64, n: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for number in first..first + n {
        let ids = Ids::new(14, number);
        all.extend(field(2, &[ids.fields(1), timed(0)].concat()));
    }
    field(1, &field(2, &all))
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    trace_id: [u8; 16],
}

impl Ids {
    /// Creates the ids of a trace. Traces of different kinds have different ids.
    pub(crate) fn new(kind: u8, number: u64) -> Self {
        let mut trace_id = [kind; 16];
        trace_id[8..].copy_from_slice(&number.to_be_bytes());
        Self { trace_id }
    }

    pub(crate) fn trace(&self) -> String {
        self.trace_id.map(|byte| format!("{byte:02x}")).concat()
    }

    fn fields(&self, span: u64) -> Vec<u8> {
        [field(1, &self.trace_id), field(2, &span.to_be_bytes())].concat()
    }
}

/// Returns a span of a call of the tool `name`, with a result. Its parent is span 1.
pub(crate) fn call(ids: Ids, span: u64, name: &str, result: &str) -> Vec<u8> {
    let attributes = [
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", name),
        ("gen_ai.tool.call.result", result),
    ];
    let parent = field(4, &1_u64.to_be_bytes());
    let span = [ids.fields(span), parent, timed(span), stated(&attributes)].concat();
    field(2, &span)
}

/// Returns the agent's run: span 1, which ends its trace.
pub(crate) fn root(ids: Ids, attributes: &[(&str, &str)]) -> Vec<u8> {
    root_lasting(ids, timed(0), attributes)
}

/// Like [`root`]; `times` contains the encoded fields of its start and end.
pub(crate) fn root_lasting(ids: Ids, times: Vec<u8>, attributes: &[(&str, &str)]) -> Vec<u8> {
    let named = [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.agent.name", "agent"),
    ];
    let all = [&named, attributes].concat();
    field(2, &[ids.fields(1), times, stated(&all)].concat())
}

pub(crate) fn request(spans: &[Vec<u8>]) -> Vec<u8> {
    post("/v1/traces", "", &field(1, &field(2, &spans.concat())))
}

/// Returns the encoded start and end of a span. Spans with higher numbers start later.
fn timed(number: u64) -> Vec<u8> {
    // These times are long ago, so that the traces count as a recording. A trace that ended shortly
    // before the sidecar's start would be `incomplete`.
    let start = 1_767_225_600_000_000_000 + number * 2_000;
    lasting(start, start + 1_000)
}

pub(crate) fn lasting(start_nanos: u64, end_nanos: u64) -> Vec<u8> {
    let fixed = |tag: u8, nanos: u64| [&[tag << 3 | 1], nanos.to_le_bytes().as_slice()].concat();
    [fixed(7, start_nanos), fixed(8, end_nanos)].concat()
}

fn stated(attributes: &[(&str, &str)]) -> Vec<u8> {
    let stated = attributes.iter().map(|(key, value)| {
        let value = field(1, value.as_bytes());
        field(9, &[field(1, key.as_bytes()), field(2, &value)].concat())
    });
    stated.flatten().collect()
}

pub(crate) fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    asked("POST", path, "application/x-protobuf", headers, body)
}

pub(crate) fn asked(
    method: &str,
    path: &str,
    content_type: &str,
    headers: &str,
    body: &[u8],
) -> Vec<u8> {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\n\
         {headers}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend(body);
    request
}
