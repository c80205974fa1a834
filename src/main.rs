//! Passes arguments and environment to the program, and turns a command's outcome into an exit
//! code.

use std::collections::BTreeMap;
use std::process::ExitCode;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(spanscore::cli::main(std::env::args_os(), &environment()))
}

/// The environment is read once, here, so that tests can pass any environment to all other code.
/// Variables that are not UTF-8 are skipped, because all variables of spanscore are UTF-8.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the environment"
)]
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
