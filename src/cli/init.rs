//! A starter configuration out, to a file that is not there yet or to standard output. What it says is `config`'s business.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use super::args::Init;
use crate::config;
use crate::extract::Trajectory;

/// Writes the starter configuration. `trajectories` are those of `--from`, which the caller has read: criteria are proposed from them.
///
/// # Errors
/// `out` or `err` cannot be written to.
pub(super) fn init(args: &Init, trajectories: Option<&[Trajectory]>, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let text = config::starter(trajectories);
    if args.output == Path::new("-") {
        out.write_all(text.as_bytes())?;
        return Ok(0);
    }
    let path = args.output.display();
    // `create_new` looks and creates in one step: a file that appears in between is not overwritten.
    let opened = OpenOptions::new().write(true).create(args.force).create_new(!args.force).truncate(args.force).open(&args.output);
    match opened.and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => {
            writeln!(err, "wrote {path}; check it with `spanscore validate -c {path}`, start with `spanscore run -c {path}`")?;
            Ok(0)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            writeln!(err, "error: `{path}` is there already: give `--force` to overwrite it, or `-o FILE` for another name")?;
            Ok(2)
        }
        Err(error) => {
            writeln!(err, "error: cannot write `{path}`: {error}")?;
            Ok(2)
        }
    }
}
