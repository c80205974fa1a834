//! Reads configuration files, and combines them with environment variables and flags.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::global::Global;
use super::terminal;
use crate::config::{AtStart, Config, Files, Loaded, Problems, Sources};
use crate::export::score_line::Look;

/// The default configuration file, read if it exists.
pub(super) const DEFAULT_FILE: &str = "spanscore.yaml";

/// The reason why the configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// The file cannot be read.
    #[error("error: cannot read `{path}`: {error}")]
    Unreadable { path: String, error: String },
    /// A value in the file, in a variable or in a flag is invalid.
    #[error("{0}")]
    Wrong(Problems),
}

impl Unusable {
    pub(super) fn print(&self, out: &mut dyn Write, look: Look) -> io::Result<()> {
        match self {
            Self::Unreadable { .. } => writeln!(out, "{self}"),
            Self::Wrong(problems) => write!(out, "{}", terminal::rendered(problems, look)),
        }
    }
}

/// Loads the configuration from the file, the variables and the flags. Also returns the path of the
/// file, if there is one.
///
/// # Errors
/// Returns an error if the file is unreadable, and otherwise all problems of all sources.
pub(super) fn load(
    global: &Global,
    environment: &BTreeMap<String, String>,
) -> Result<(Loaded, Option<PathBuf>), Unusable> {
    let path = global
        .config
        .clone()
        .or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()));
    load_file(path.as_deref(), global, environment).map(|loaded| (loaded, path))
}

/// Loads the valid part of the configuration. `None` unless this part contains `reload.at_start:
/// forward` and a downstream: without a downstream, telemetry would be acknowledged and lost.
pub(super) fn load_sound(
    global: &Global,
    environment: &BTreeMap<String, String>,
) -> Option<(Loaded, PathBuf)> {
    let path = global
        .config
        .clone()
        .unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    let text = Disk.read(&path).ok();
    let sources = Sources {
        file: text.as_deref().map(|text| (path.as_path(), text)),
        environment,
        flags: &global.set,
        files: &Disk,
    };
    let loaded = Config::load_sound(&sources).ok()?;
    let config = &loaded.config;
    (config.reload.at_start == AtStart::Forward && config.forward_destination().is_some())
        .then_some((loaded, path))
}

/// Like [`load`], for a given file.
///
/// # Errors
/// Returns an error if the file is unreadable, and otherwise all problems of all sources.
pub(super) fn load_file(
    path: Option<&Path>,
    global: &Global,
    environment: &BTreeMap<String, String>,
) -> Result<Loaded, Unusable> {
    let text = match path {
        Some(path) => {
            let text = Disk.read(path).map_err(|error| Unusable::Unreadable {
                path: path.display().to_string(),
                error,
            })?;
            Some((path, text))
        }
        None => None,
    };
    let file = text.as_ref().map(|(path, text)| (*path, text.as_str()));
    Config::load(&Sources {
        file,
        environment,
        flags: &global.set,
        files: &Disk,
    })
    .map_err(Unusable::Wrong)
}

/// The files on the disk.
#[derive(Debug, Clone, Copy)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> Result<String, String> {
        let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|error| {
            let n_valid = error.utf8_error().valid_up_to();
            not_utf8(error.as_bytes(), n_valid)
        })
    }

    fn list(&self, folder: &Path, glob: &str) -> Result<Vec<PathBuf>, String> {
        let pattern = if Path::new(glob).is_absolute() || folder.as_os_str().is_empty() {
            glob.to_owned()
        } else {
            Path::new(&glob::Pattern::escape(&folder.to_string_lossy()))
                .join(glob)
                .to_string_lossy()
                .into_owned()
        };
        let paths = glob::glob(&pattern).map_err(|error| error.to_string())?;
        paths
            .map(|path| path.map_err(|error| error.to_string()))
            .collect()
    }
}

/// Returns a message with the encoding of a file, or with the position of its first byte that is
/// not UTF-8.
fn not_utf8(bytes: &[u8], n_valid: usize) -> String {
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return "it is UTF-16; save it as UTF-8".to_owned();
    }
    let before = String::from_utf8_lossy(&bytes[..n_valid]);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    format!("line {line}, column {column} is not UTF-8; save the file as UTF-8")
}

#[cfg(test)]
mod tests {
    use super::not_utf8;

    #[test]
    fn a_file_in_another_encoding_is_named_with_its_place_and_remedy() {
        for (bytes, message) in [
            (&b"\xFF\xFEl\0o\0"[..], "it is UTF-16; save it as UTF-8"),
            (b"\xFE\xFF\0l\0o", "it is UTF-16; save it as UTF-8"),
            (
                b"log: {}\n# gr\xF6\xDFe\n",
                "line 2, column 5 is not UTF-8; save the file as UTF-8",
            ),
        ] {
            let error = String::from_utf8(bytes.to_vec()).unwrap_err();
            let found = not_utf8(bytes, error.utf8_error().valid_up_to());
            assert_eq!(found, message);
        }
    }
}
