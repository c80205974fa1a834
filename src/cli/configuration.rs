//! Reads the configuration files and loads them with variables and flags. Knows nothing of their
//! keys, which `config` checks.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::args::Global;
use crate::config::{Config, Files, Loaded, Problems, Sources};

/// The file that is read without `--config`, if it exists.
pub const DEFAULT_FILE: &str = "spanscore.yaml";

/// Why the configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file itself cannot be read.
    #[error("error: cannot read `{path}`: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        error: String,
    },
    /// The file, a variable or a flag is invalid.
    #[error("{0}")]
    Wrong(Problems),
}

impl Unusable {
    /// Prints every problem, in colour on request.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn print(&self, out: &mut dyn Write, colour: bool) -> io::Result<()> {
        match self {
            Self::Unreadable { .. } => writeln!(out, "{self}"),
            Self::Wrong(problems) => write!(out, "{}", problems.render(colour)),
        }
    }
}

/// Loads the configuration that the flags and variables ask for. Returns it with the path of its
/// file, if there is one.
///
/// # Errors
/// Every problem of every source.
pub fn load(
    global: &Global,
    environment: &BTreeMap<String, String>,
) -> Result<(Loaded, Option<PathBuf>), Unusable> {
    let path = global
        .config
        .clone()
        .or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()));
    load_file(path.as_deref(), global, environment).map(|loaded| (loaded, path))
}

/// Like [`load`], with a given file.
///
/// # Errors
/// Every problem of every source.
pub fn load_file(
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

/// The file system.
#[derive(Debug, Clone, Copy)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> Result<String, String> {
        let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|error| {
            format!(
                "not UTF-8 from byte {} on",
                error.utf8_error().valid_up_to()
            )
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
