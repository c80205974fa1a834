//! Reads recordings as OTLP request bodies. A recording is a `.pb` or `.json` body, OTLP JSON
//! lines, or a segment of a journal, from a file or standard input, also compressed with gzip or
//! zstd.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use flate2::read::MultiGzDecoder;
use otlp::json;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::config::Signal;
use crate::journal;

/// The recordings to read.
#[derive(Debug, Clone, Args)]
pub(super) struct Recordings {
    /// Recordings, read in the order given: OTLP JSON lines, or .json and .pb request bodies, also
    /// as .gz and .zst; a folder means all files in it; - is standard input.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) files: Vec<PathBuf>,
    /// Signal of a request body if neither its file name nor its content shows it.
    #[arg(long, default_value = "traces", value_parser = signals())]
    pub(super) signal: Signal,
}

fn signals() -> impl TypedValueParser<Value = Signal> {
    let values = Signal::ALL.map(|signal| {
        let help = match signal {
            Signal::Traces => "Spans",
            Signal::Logs => "Log records",
            Signal::Metrics => "Metric points; read and ignored",
        };
        PossibleValue::new(signal.as_str()).help(help)
    });
    PossibleValuesParser::new(values).map(|name| {
        let signal = Signal::ALL.into_iter().find(|it| it.as_str() == name);
        signal.expect("only the names of signals are possible values")
    })
}

/// One recorded request body, as protobuf.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) signal: Signal,
    /// The encoded `Export*ServiceRequest`.
    pub(super) body: Bytes,
    /// The file, and the line or number of the request if the file can contain several; for
    /// messages.
    pub(super) place: String,
}

/// A recording that cannot be read: the position and the reason.
#[derive(Debug)]
pub(super) struct Unreadable {
    place: String,
    why: String,
}

impl Unreadable {
    pub(super) fn new(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            why: why.into(),
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

/// Returns the given files, and the files in the given folders, sorted by name. Skips hidden files
/// in folders.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Unreadable> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let place = path.display().to_string();
        let unreadable = |error: io::Error| Unreadable::new(&place, explain(&error));
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            let is_hidden = file
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if !is_hidden && file.is_file() {
                inside.push(file);
            }
        }
        // A journal's folder `requests` also contains the file `cursor`, which is not a segment.
        let is_segment = |file: &PathBuf| file.extension().is_some_and(|end| end == "seg");
        if inside.iter().any(is_segment) {
            inside.retain(is_segment);
        }
        if inside.is_empty() {
            return Err(Unreadable::new(place, "is a folder without recordings"));
        }
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}

/// Reads the request bodies of one file, in order; `-` is standard input. `signal` is the signal of
/// a body if neither its file name nor its content shows it.
pub(super) fn read(path: &Path, signal: Signal) -> Result<Vec<Request>, Unreadable> {
    let path = &*path.to_string_lossy();
    let raw = if path == "-" { read_all(io::stdin().lock()) } else { std::fs::read(path) };
    let raw = raw.map_err(|error| Unreadable::new(path, explain(&error)))?;
    let content = decompress(raw)
        .map_err(|error| Unreadable::new(path, format!("cannot be decompressed: {error}")))?;
    let named = signal_of_name(path);
    let first = content
        .iter()
        .copied()
        .find(|byte| !byte.is_ascii_whitespace());
    match first {
        None => Err(Unreadable::new(
            path,
            "is empty; expected OTLP request bodies or OTLP JSON lines",
        )),
        Some(_) if journal::is_segment(&content) => read_segment(path, content.into()),
        // No OTLP request in protobuf starts with `{` or `[`: these bytes would start a group,
        // which OTLP does not use.
        Some(b'{' | b'[') => read_json(path, &content, named),
        Some(_) => Ok(vec![Request {
            signal: named.unwrap_or(signal),
            body: content.into(),
            place: path.to_owned(),
        }]),
    }
}

/// Reads the requests in a segment of a journal, including delivered ones.
fn read_segment(path: &str, content: Bytes) -> Result<Vec<Request>, Unreadable> {
    let Some(requests) = journal::segment_requests(&content) else {
        return Err(Unreadable::new(
            path,
            "is a segment of a journal whose head is damaged, or of another version of spanscore",
        ));
    };
    let requests = requests.into_iter().enumerate();
    let requests = requests.map(|(idx, (signal, body))| Request {
        signal: Signal::of_number(signal),
        body,
        place: format!("{path}, request {}", idx + 1),
    });
    Ok(requests.collect())
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

fn read_all(mut reader: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    reader.read_to_end(&mut content)?;
    Ok(content)
}

/// Decompresses the content. Recognises the format by the first bytes, because standard input has
/// no name and names can be wrong.
fn decompress(raw: Vec<u8>) -> io::Result<Vec<u8>> {
    if raw.starts_with(&[0x1f, 0x8b]) {
        read_all(MultiGzDecoder::new(raw.as_slice()))
    } else if raw.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        read_all(zstd::Decoder::new(raw.as_slice())?)
    } else {
        Ok(raw)
    }
}

fn signal_of_name(path: &str) -> Option<Signal> {
    let name = path.rsplit('/').next().unwrap_or(path);
    Signal::ALL.into_iter().find(|signal| {
        let word = signal.as_str();
        name.contains(&format!(".{word}.")) || name.starts_with(&format!("{word}."))
    })
}

/// Reads the JSON values of a file, each of them one body: usually a single one, or one per line.
fn read_json(
    path: &str,
    content: &[u8],
    signal: Option<Signal>,
) -> Result<Vec<Request>, Unreadable> {
    let mut requests = Vec::new();
    let mut values = serde_json::Deserializer::from_slice(content).into_iter::<IgnoredAny>();
    let (mut start, mut line) = (0, 1);
    loop {
        let skipped = content[start..]
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
        line += n_line_ends(&content[start..start + skipped]);
        let place = format!("{path}:{line}");
        match values.next() {
            None => return Ok(requests),
            Some(Err(error)) => {
                return Err(Unreadable::new(
                    format!("{path}:{}", error.line()),
                    format!("is not JSON: {error}"),
                ));
            }
            Some(Ok(_)) => {
                let end = values.byte_offset();
                let value = &content[start + skipped..end];
                let signal = signal.or_else(|| signal_of_json(value)).ok_or_else(|| {
                    Unreadable::new(
                        &place,
                        "is JSON but not OTLP: it has none of `resourceSpans`, `resourceLogs`, \
                 `resourceMetrics`; Jaeger and Zipkin exports are not supported",
                    )
                })?;
                let transcode = match signal {
                    Signal::Traces => json::traces,
                    Signal::Logs => json::logs,
                    Signal::Metrics => json::metrics,
                };
                let body = transcode(value).map_err(|error| {
                    Unreadable::new(&place, format!("is not OTLP/JSON: {error}"))
                })?;
                requests.push(Request {
                    signal,
                    body: body.into(),
                    place,
                });
                line += n_line_ends(value);
                start = end;
            }
        }
    }
}

fn n_line_ends(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

#[derive(Deserialize)]
struct TopKeys {
    #[serde(alias = "resourceSpans", rename = "resource_spans")]
    spans: Option<IgnoredAny>,
    #[serde(alias = "resourceLogs", rename = "resource_logs")]
    logs: Option<IgnoredAny>,
    #[serde(alias = "resourceMetrics", rename = "resource_metrics")]
    metrics: Option<IgnoredAny>,
}

fn signal_of_json(value: &[u8]) -> Option<Signal> {
    let keys: TopKeys = serde_json::from_slice(value).ok()?;
    match (keys.spans, keys.logs, keys.metrics) {
        (Some(_), _, _) => Some(Signal::Traces),
        (_, Some(_), _) => Some(Signal::Logs),
        (_, _, Some(_)) => Some(Signal::Metrics),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_is_read_off_the_file_name() {
        assert_eq!(signal_of_name("runs/001.traces.pb"), Some(Signal::Traces));
        assert_eq!(signal_of_name("001.logs.json.gz"), Some(Signal::Logs));
        assert_eq!(signal_of_name("traces.pb"), Some(Signal::Traces));
        assert_eq!(
            signal_of_name("my.traces/run.pb"),
            None,
            "a folder's name tells nothing"
        );
    }

    #[test]
    fn every_json_line_is_a_request_of_its_own() {
        let content = b"{\"resourceSpans\":[]}\n\n{\"resourceLogs\":[]}\n";
        let requests = read_json("runs.jsonl", content, None).unwrap();
        let seen: Vec<_> = requests
            .iter()
            .map(|request| (request.signal, request.place.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (Signal::Traces, "runs.jsonl:1"),
                (Signal::Logs, "runs.jsonl:3")
            ]
        );
    }

    #[test]
    fn json_that_is_not_otlp_is_refused_with_its_line() {
        let error =
            read_json("runs.jsonl", b"{\"resourceSpans\":[]}\n{\"data\":[]}", None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "runs.jsonl:2: is JSON but not OTLP: it has none of `resourceSpans`, `resourceLogs`, \
             `resourceMetrics`; Jaeger and Zipkin exports are not supported"
        );
    }
}
