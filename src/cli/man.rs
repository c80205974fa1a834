//! `spanscore man`: writes the manual pages, one for each subcommand.

use std::fs;
use std::io;

use clap::CommandFactory;

use super::args::{Cli, ManualPages};
use super::{Exit, Streams};

/// Writes the manual pages to the folder.
///
/// # Errors
/// Returns an error if printing a message failed.
pub(super) fn man(args: &ManualPages, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let folder = &args.folder;
    let written =
        fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    match written {
        Ok(()) => Ok(Exit::Fine),
        Err(error) => {
            streams.complain(&format!("cannot write to `{}`: {error}", folder.display()))?;
            Ok(Exit::Usage)
        }
    }
}
