//! Runs a fuzz target on its committed corpus, which `fuzz/run --keep` reduces to few inputs that
//! together reach the same code. Proves nothing about other inputs.

use std::fs;
use std::path::Path;

/// Checks every stored input of a target. Each line of the target's file is one input, in
/// hexadecimal.
pub(crate) fn replay(target: &str, check: impl Fn(&[u8])) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(format!("{}.hex", target.replace("::", ".")));
    let text = fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}; see fuzz/run --keep", file.display()));
    let inputs: Vec<Vec<u8>> = text.lines().map(bytes).collect();
    assert!(inputs.len() > 5, "{} has few inputs", file.display());
    inputs.iter().for_each(|input| check(input));
}

fn bytes(line: &str) -> Vec<u8> {
    assert!(line.len().is_multiple_of(2), "`{line}` ends in half a byte");
    let pairs = line.as_bytes().chunks_exact(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}
