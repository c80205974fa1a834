//! `spanscore completions`: prints a shell's completion script.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

use super::global::NoConfiguration;

/// Options of `completions`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell to generate the script for.
    pub(super) shell: Shell,
    #[command(flatten)]
    pub(super) no_configuration: NoConfiguration,
}

/// Prints the completion script of a shell.
///
/// # Errors
/// Returns an error if writing to `out` failed.
pub(super) fn completions(
    args: &Completions,
    mut program: Command,
    out: &mut dyn Write,
) -> io::Result<u8> {
    // The generator panics if it cannot write. Writing to memory first avoids a panic on a closed
    // pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "spanscore", &mut script);
    out.write_all(&script)?;
    Ok(0)
}
