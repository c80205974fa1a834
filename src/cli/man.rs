//! `spanscore man`: writes the manual pages, one for each subcommand.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command, ValueHint};

use super::global::NoConfiguration;
use super::{Exit, Streams};

/// Options of `man`.
#[derive(Debug, Args)]
pub(super) struct ManualPages {
    /// The folder, created if it does not exist.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) folder: PathBuf,
    #[command(flatten)]
    pub(super) no_configuration: NoConfiguration,
}

/// Writes the manual pages to the folder.
///
/// # Errors
/// Returns an error if printing a message failed.
pub(super) fn man(
    args: &ManualPages,
    program: Command,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let folder = &args.folder;
    let written =
        fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(program, folder));
    match written {
        Ok(()) => Ok(Exit::Fine),
        Err(error) => {
            streams.complain(&format!("cannot write to `{}`: {error}", folder.display()))?;
            Ok(Exit::Usage)
        }
    }
}
