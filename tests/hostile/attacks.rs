//! What the attacker does, case by case, from an address of its own, until it is stopped.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::sidecar::Target;
use crate::wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, field, frame,
    headers, post, preface, spans,
};

pub(crate) type Attack = fn(Target) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Every case with its name.
pub(crate) const CASES: &[(&str, Attack)] = &[
    ("nothing", |_| Box::pin(std::future::pending())),
    ("pipelining traces", |to| {
        many(4, to.http, || pipelined(post("/v1/traces", "", &[])))
    }),
    ("pipelining metrics", |to| {
        many(2, to.admin, || pipelined(GET_METRICS.to_vec()))
    }),
    ("scrapers that do not read", |to| {
        many(30, to.admin, || stuck(GET_METRICS.to_vec()))
    }),
    ("listeners that do not read", |to| {
        many(8, to.admin, || stuck(GET_SCORES.to_vec()))
    }),
    ("unfinished headers", |to| {
        many(400, to.http, || stuck(unfinished_headers()))
    }),
    ("idle connections", |to| {
        many(900, to.http, || stuck(Vec::new()))
    }),
    ("idle connections, admin", |to| {
        many(900, to.admin, || stuck(Vec::new()))
    }),
    ("unfinished frames", |to| {
        many(125, to.grpc, || stuck(unfinished_frame()))
    }),
    ("streams with large headers", |to| {
        many(10, to.grpc, || stuck(large_headers("")))
    }),
    ("compressed streams", |to| {
        many(30, to.grpc, || stuck(large_headers("zstd")))
    }),
    ("slow bodies", |to| {
        many(8, to.http, || stuck(all_but_a_byte(8 << 20)))
    }),
    ("many slow bodies", |to| {
        many(64, to.http, || stuck(all_but_a_byte(1 << 20)))
    }),
    ("gzip bombs", |to| many(4, to.http, || repeated(bomb()))),
    ("dense spans", |to| {
        many(4, to.http, || {
            repeated(post("/v1/traces", "", &spans(250_000, false)))
        })
    }),
    ("one-span traces", |to| {
        many(2, to.http, || {
            repeated(post("/v1/traces", "", &spans(100_000, true)))
        })
    }),
    ("deep nesting, protobuf", |to| {
        many(4, to.http, || repeated(post("/v1/traces", "", &nested())))
    }),
    ("deep nesting, JSON", |to| {
        many(4, to.http, || repeated(nested_json()))
    }),
    ("smuggling", |to| many(8, to.http, || repeated(smuggled()))),
    ("rapid reset", |to| {
        many(4, to.grpc, || flood(rapid_reset()))
    }),
    ("CONTINUATION flood", |to| {
        many(4, to.grpc, || flood(continuations()))
    }),
    ("SETTINGS flood", |to| {
        many(4, to.grpc, || {
            flood(frame(SETTINGS, 0, 0, &[]).repeat(5_000))
        })
    }),
    ("PING flood", |to| {
        many(4, to.grpc, || {
            flood(frame(PING, 0, 0, &[0; 8]).repeat(3_000))
        })
    }),
    ("empty DATA flood", |to| {
        many(4, to.grpc, || flood(empty_data()))
    }),
    ("window stall", |to| {
        many(30, to.grpc, || stuck(stalled_window()))
    }),
    ("alias bomb by the API", |to| {
        many(4, to.admin, || repeated(alias_bomb()))
    }),
];

const GET_METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
const GET_SCORES: &[u8] = b"GET /v1/scores HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";

/// What an attacker does on one connection.
type Act = Box<dyn Fn(TcpStream) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> + Send>;

/// Does the same on `n` connections, and again on a new one whenever one ends.
fn many(
    n: usize,
    to: SocketAddr,
    act: impl Fn() -> Act,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let acts: Vec<Act> = (0..n).map(|_| act()).collect();
    Box::pin(async move {
        let mut attackers = JoinSet::new();
        for act in acts {
            attackers.spawn(async move {
                loop {
                    if let Ok(stream) = connect(to).await {
                        // An attacker that is thrown out comes back.
                        let _ = act(stream).await;
                    }
                    sleep(Duration::from_millis(20)).await;
                }
            });
        }
        attackers.join_all().await;
    })
}

async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0)))?;
    socket.connect(to).await
}

/// Sends this and then nothing, and reads nothing.
fn stuck(bytes: Vec<u8>) -> Act {
    Box::new(move |mut stream| {
        let bytes = bytes.clone();
        Box::pin(async move {
            stream.write_all(&bytes).await?;
            loop {
                sleep(Duration::from_millis(200)).await;
                let mut byte = [0; 1];
                let peeked = timeout(Duration::from_millis(1), stream.peek(&mut byte)).await;
                if matches!(peeked, Ok(Ok(0) | Err(_))) {
                    return Ok(());
                }
            }
        })
    })
}

/// Sends this request without end, and reads nothing.
fn pipelined(request: Vec<u8>) -> Act {
    flood(request.repeat(1_000))
}

/// Sends this without end, after the preface if it is of HTTP/2, and reads nothing.
fn flood(bytes: Vec<u8>) -> Act {
    let is_http1 = bytes.starts_with(b"GET") || bytes.starts_with(b"POST");
    Box::new(move |mut stream| {
        let bytes = bytes.clone();
        Box::pin(async move {
            if !is_http1 {
                stream.write_all(&preface()).await?;
            }
            loop {
                stream.write_all(&bytes).await?;
            }
        })
    })
}

/// Sends this request again and again, and reads what is answered.
fn repeated(request: Vec<u8>) -> Act {
    Box::new(move |mut stream| {
        let request = request.clone();
        Box::pin(async move {
            let mut answer = vec![0; 64 << 10];
            loop {
                stream.write_all(&request).await?;
                if stream.read(&mut answer).await? == 0 {
                    return Ok(());
                }
            }
        })
    })
}

// === requests ===

fn unfinished_headers() -> Vec<u8> {
    let mut request = b"POST /v1/traces HTTP/1.1\r\n".to_vec();
    for number in 0..90 {
        request.extend(format!("x-{number}: {}\r\n", "x".repeat(4_000)).into_bytes());
    }
    request
}

/// A frame of an unknown kind, of which the last byte is missing.
fn unfinished_frame() -> Vec<u8> {
    let mut bytes = preface();
    let mut frame = frame(0xfa, 0, 0, &vec![0; 1 << 16]);
    frame.pop();
    bytes.extend(frame);
    bytes
}

/// As many streams as are allowed, none of which ends.
fn large_headers(encoding: &str) -> Vec<u8> {
    let mut bytes = preface();
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let filler = "x".repeat(if encoding.is_empty() { 14_000 } else { 10 });
    for stream in 0..100 {
        let mut more = vec![("content-type", "application/grpc"), ("x-filler", &filler)];
        if !encoding.is_empty() {
            more.push(("grpc-encoding", encoding));
        }
        let block = headers(path, &more);
        bytes.extend(frame(HEADERS, END_HEADERS, 2 * stream + 1, &block));
        bytes.extend(frame(DATA, 0, 2 * stream + 1, &[1, 0, 0, 16, 0, 0x28]));
    }
    bytes
}

fn all_but_a_byte(size: usize) -> Vec<u8> {
    let mut request = post("/v1/traces", "", &vec![0x0a; size]);
    request.pop();
    request
}

fn bomb() -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    // Writing to a vector does not fail.
    let _ = encoder.write_all(&vec![0; 64 << 20]);
    post(
        "/v1/traces",
        "content-encoding: gzip\r\n",
        &encoder.finish().unwrap_or_default(),
    )
}

fn nested() -> Vec<u8> {
    let mut value = Vec::new();
    for _ in 0..10_000 {
        value = field(5, &field(1, &value));
    }
    value
}

fn nested_json() -> Vec<u8> {
    let body = "[".repeat(1 << 20);
    let mut request = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend(body.as_bytes());
    request
}

/// Two lengths, which a proxy in between might understand otherwise than we do.
fn smuggled() -> Vec<u8> {
    b"POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 4\r\n\
      transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/status HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        .to_vec()
}

fn rapid_reset() -> Vec<u8> {
    let block = headers("/v1/traces", &[]);
    let streams = (0..2_000_u32).map(|stream| {
        let number = 2 * stream + 1;
        let mut bytes = frame(HEADERS, END_HEADERS, number, &block);
        bytes.extend(frame(RST_STREAM, 0, number, &[0, 0, 0, 8]));
        bytes
    });
    streams.flatten().collect()
}

fn continuations() -> Vec<u8> {
    let mut bytes = frame(HEADERS, 0, 1, &headers("/v1/traces", &[]));
    bytes.extend(frame(CONTINUATION, 0, 1, &[]).repeat(10_000));
    bytes
}

fn empty_data() -> Vec<u8> {
    let mut bytes = frame(HEADERS, END_HEADERS, 1, &headers("/v1/traces", &[]));
    bytes.extend(frame(DATA, 0, 1, &[]).repeat(10_000));
    bytes
}

/// Requests whose answers have no window to be sent in.
fn stalled_window() -> Vec<u8> {
    let mut bytes = preface();
    bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for stream in 0..100 {
        let block = headers("/v1/nothing", &[]);
        bytes.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            2 * stream + 1,
            &block,
        ));
    }
    bytes
}

fn alias_bomb() -> Vec<u8> {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let mut request = format!(
        "PUT /v1/criteria HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/yaml\r\n\
         content-length: {}\r\n\r\n",
        text.len()
    )
    .into_bytes();
    request.extend(text.into_bytes());
    request
}
