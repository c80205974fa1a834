//! A shell's name in, its completion script out.

use std::io::{self, Write};

use clap::CommandFactory;

use super::args::{Cli, Completions};

/// Prints the script.
///
/// # Errors
/// `out` cannot be written to.
pub(super) fn completions(args: &Completions, out: &mut dyn Write) -> io::Result<u8> {
    // The generator panics where it cannot write, and a closed pipe is no reason to panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "spanscore", &mut script);
    out.write_all(&script)?;
    Ok(0)
}
