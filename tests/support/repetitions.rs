//! The number of repetitions of a test: small in `cargo test`, large in `.ci/extended`.

/// Returns `usual`, unless the environment variable `name` sets another number.
#[expect(
    clippy::disallowed_methods,
    reason = "how this run of the tests was asked for"
)]
pub(crate) fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}
