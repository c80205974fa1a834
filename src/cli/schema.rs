//! Nothing in, the JSON Schema of the configuration out, for editors.

use std::io::{self, Write};

use crate::config;

/// Prints the schema.
///
/// # Errors
/// `out` cannot be written to.
pub(super) fn schema(out: &mut dyn Write) -> io::Result<u8> {
    writeln!(out, "{:#}", config::schema())?;
    Ok(0)
}
