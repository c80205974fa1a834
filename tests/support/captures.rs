//! Reads the captured payloads. There is one file per framework, compressed with zstd, with entries
//! of the form `scenario/file length\n<bytes>\n`. A scenario's `expected.json` describes what its
//! agent really did. All other files are request bodies in the order in which they arrived.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// One scenario of one framework.
pub(crate) struct Scenario {
    /// The name `framework/scenario`.
    pub(crate) name: String,
    /// The agent's real behaviour, from `expected.json`.
    pub(crate) expected: Value,
    /// The file name and the bytes of each request, in the order of arrival.
    pub(crate) requests: Vec<(String, Vec<u8>)>,
}

/// Returns all scenarios, sorted by name.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let folder = Path::new(crate::ROOT).join("tests/captures");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "zst"));
    files.sort();
    assert!(!files.is_empty(), "no captures in {}", folder.display());
    files.iter().flat_map(|path| framework(path)).collect()
}

fn framework(path: &Path) -> Vec<Scenario> {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let bytes = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let mut entries: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap();
        let head = std::str::from_utf8(&rest[..end]).unwrap();
        let (file, len) = head.rsplit_once(' ').unwrap();
        let (scenario, file) = file.split_once('/').unwrap();
        let body = &rest[end + 1..][..len.parse().unwrap()];
        entries
            .entry(scenario.to_owned())
            .or_default()
            .push((file.to_owned(), body.to_vec()));
        rest = &rest[end + 1 + body.len() + 1..];
    }
    let scenario = |(scenario, mut requests): (String, Vec<(String, Vec<u8>)>)| {
        let at = requests
            .iter()
            .position(|(file, _)| file == "expected.json")
            .unwrap();
        let (_, expected) = requests.remove(at);
        requests.sort();
        Scenario {
            name: format!("{name}/{scenario}"),
            expected: serde_json::from_slice(&expected).unwrap(),
            requests,
        }
    };
    entries.into_iter().map(scenario).collect()
}
