//! Request bodies of real SDKs and OTLP's own examples, from tests/data. They prove nothing about
//! rare fields: `generate` covers those fields.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Logs,
    Metrics,
}

pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) signal: Signal,
    pub(crate) body: Vec<u8>,
}

/// The bodies in JSON are transcoded.
pub(crate) fn protobuf() -> Vec<Capture> {
    let mut captures = with_ending(".pb.gz");
    for mut capture in json() {
        capture.body = transcode(&capture).unwrap();
        captures.push(capture);
    }
    assert!(captures.len() >= 12);
    captures
}

pub(crate) fn json() -> Vec<Capture> {
    let captures = with_ending(".json.gz");
    assert!(captures.len() >= 8);
    captures
}

pub(crate) fn transcode(capture: &Capture) -> Result<Vec<u8>, otlp::json::JsonError> {
    match capture.signal {
        Signal::Traces => otlp::json::traces(&capture.body),
        Signal::Logs => otlp::json::logs(&capture.body),
        Signal::Metrics => otlp::json::metrics(&capture.body),
    }
}

fn with_ending(ending: &str) -> Vec<Capture> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<_> = fs::read_dir(data)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let mut captures = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let signal = match name.rsplit('.').nth(2) {
            Some("traces") => Signal::Traces,
            Some("logs") => Signal::Logs,
            Some("metrics") => Signal::Metrics,
            _ => continue,
        };
        if name.ends_with(ending) {
            let mut body = Vec::new();
            GzDecoder::new(fs::File::open(&path).unwrap())
                .read_to_end(&mut body)
                .unwrap();
            captures.push(Capture { name, signal, body });
        }
    }
    captures
}
