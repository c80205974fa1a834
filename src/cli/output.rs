//! Writes a file for `--output`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Writes a file. Overwrites an existing file only with `force`. `create_new` checks and creates in
/// one step, so a file that is created in the meantime is not overwritten.
pub(super) fn write(path: &Path, text: &str, force: bool) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(force)
        .create_new(!force)
        .truncate(force)
        .open(path)?
        .write_all(text.as_bytes())
}
