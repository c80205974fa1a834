//! How often a test repeats what it does: seldom in `cargo test`, often in `.ci/extended`.

/// The usual number, unless this run of the tests was asked for another.
#[expect(
    clippy::disallowed_methods,
    reason = "how this run of the tests was asked for"
)]
pub(crate) fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}
