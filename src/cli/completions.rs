//! `spanscore completions`: prints a shell's completion script.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::args::{Cli, NoConfiguration};

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
pub(super) fn completions(args: &Completions, out: &mut dyn Write) -> io::Result<u8> {
    // The generator panics if it cannot write. Writing to memory first avoids a panic on a closed
    // pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "spanscore", &mut script);
    out.write_all(&script)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_subcommands() {
        for shell in [
            Shell::Bash,
            Shell::Zsh,
            Shell::Fish,
            Shell::PowerShell,
            Shell::Elvish,
        ] {
            let mut out = Vec::new();
            assert_eq!(
                completions(
                    &Completions {
                        shell,
                        no_configuration: NoConfiguration
                    },
                    &mut out
                )
                .unwrap(),
                0
            );
            let script = String::from_utf8(out).unwrap();
            assert!(
                script.contains("replay") && script.contains("validate"),
                "{shell}"
            );
        }
    }
}
