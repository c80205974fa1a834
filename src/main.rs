//! Turns a command's outcome into an exit code, and hands arguments and environment on; nothing
//! else.

use std::collections::BTreeMap;
use std::process::ExitCode;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(spanscore::cli::main(std::env::args_os(), &environment()))
}

/// Read once, here, so that nothing below depends on what it cannot be handed in a test. What is
/// not UTF-8 is no variable of ours.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the environment"
)]
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
