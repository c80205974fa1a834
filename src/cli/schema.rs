//! `spanscore schema`: prints the JSON Schema of the configuration, for editors.

use std::io::{self, Write};

use crate::config;

/// Prints the schema.
///
/// # Errors
/// Returns an error if writing to `out` failed.
pub(super) fn schema(out: &mut dyn Write) -> io::Result<u8> {
    writeln!(out, "{:#}", config::schema())?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_one_json_document() {
        let mut out = Vec::new();
        assert_eq!(schema(&mut out).unwrap(), 0);
        let schema: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(schema["title"], "configuration of spanscore");
    }
}
