//! Stores registrations in the state file, so that they survive a restart. The file is replaced so
//! that after a crash it has either its old or its new contents.
//!
//! An unreadable or unwritable file stops the start, because it is a deployment mistake. A file
//! that cannot be parsed does not stop the start, because telemetry must flow: the usable
//! registrations are restored, and a copy of the file stays as `….unusable`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use judge::evaluate::PatternLimits;
use serde::Deserialize;
use serde_json::{Value, json};

use super::limits::check_scope;
use super::merge::Registration;
use crate::config::{self, Config};
use crate::rfc3339::{rfc3339, unix_nanos_from_rfc3339};

/// Maximum bytes that are read from the file: many times the maximum of the API's registrations.
const MAX_SIZE: u64 = 64 << 20;

const VERSION: u32 = 1;

#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use `admin.state_file`: `{}` {problem}", path.display())]
pub struct StateError {
    path: PathBuf,
    problem: String,
}

#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) registrations: Vec<Registration>,
    /// Reasons why parts of the file are unusable. If there are any, a copy of the file is saved.
    pub(super) unusable: Vec<String>,
}

#[derive(Deserialize)]
struct State {
    version: u32,
    registrations: Vec<Value>,
}

impl StateFile {
    /// Reads the file, if it exists, and replaces it with the usable registrations, to check that
    /// it can be written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written.
    pub(super) fn open(path: &Path, config: &Config) -> Result<(Self, Restored), StateError> {
        let unusable = |what: &str, error: io::Error| StateError {
            path: path.to_owned(),
            problem: format!(
                "cannot be {what}: {error}; check the path and its permissions (the folder must \
                 be writable too)"
            ),
        };
        let file = Self {
            path: path.to_owned(),
        };
        let text = match read(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unusable("read", error)),
        };
        let restored = text.as_deref().map(|text| restore(text, config));
        let restored = restored.unwrap_or_default();
        let text = text.unwrap_or_default();
        if !restored.unusable.is_empty() {
            let copy = || create_private(&file.beside("unusable"))?.write_all(&text);
            copy().map_err(|error| unusable("copied", error))?;
        }
        file.write(&restored.registrations)
            .map_err(|error| unusable("written", error))?;
        Ok((file, restored))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file. Once this returns, the new contents survive a crash.
    pub(super) fn write<'a>(
        &self,
        registrations: impl IntoIterator<Item = &'a Registration>,
    ) -> io::Result<()> {
        let registrations: Vec<Value> = registrations
            .into_iter()
            .map(
                |Registration {
                     criterion,
                     expires_unix_nanos,
                 }| match expires_unix_nanos {
                    Some(expires) => {
                        json!({ "criterion": criterion, "expires_at": rfc3339(*expires) })
                    }
                    None => json!({ "criterion": criterion }),
                },
            )
            .collect();
        let text = format!(
            "{:#}\n",
            json!({ "version": VERSION, "registrations": registrations })
        );
        let temporary = self.beside("tmp");
        let mut file = create_private(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        // The rename is on disk only after the folder is synced.
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }

    fn beside(&self, extension: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".");
        name.push(extension);
        name.into()
    }
}

/// Creates a file that only our user can read, because criteria can reveal what a team guards
/// against. Replaces an existing file. A link that an attacker placed under this name is removed
/// and not followed.
fn create_private(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    options.mode(0o600);
    options.open(path)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(text)
}

fn restore(text: &[u8], config: &Config) -> Restored {
    let mut restored = Restored::default();
    let state: State = match serde_json::from_slice(text) {
        Ok(State {
            version: VERSION,
            registrations,
        }) => State {
            version: VERSION,
            registrations,
        },
        Ok(State { version, .. }) => {
            restored.unusable.push(format!(
                "the file has version {version}; only version {VERSION} is supported"
            ));
            return restored;
        }
        Err(error) => {
            restored
                .unusable
                .push(format!("the file cannot be parsed: {error}"));
            return restored;
        }
    };
    for (at, registration) in state.registrations.iter().enumerate() {
        match registration_of(registration, config) {
            Ok(registration) => restored.registrations.push(registration),
            Err(problem) => restored
                .unusable
                .push(format!("registration {}: {problem}", at + 1)),
        }
    }
    restored
}

fn registration_of(written: &Value, config: &Config) -> Result<Registration, String> {
    let text = written
        .get("criterion")
        .map(Value::to_string)
        .ok_or("`criterion` is missing")?;
    let criterion = config::criterion(&text, None, PatternLimits::FILE).map_err(|problems| {
        problems
            .iter()
            .map(|problem| problem.title.clone())
            .collect::<Vec<_>>()
            .join("; ")
    })?;
    check_scope(config, &criterion)?;
    let expires_unix_nanos = match written.get("expires_at") {
        None => None,
        Some(expires) => {
            let expires = expires.as_str().and_then(unix_nanos_from_rfc3339);
            Some(expires.ok_or("`expires_at` is not a time")?)
        }
    };
    Ok(Registration {
        criterion: criterion.into(),
        expires_unix_nanos,
    })
}

#[cfg(test)]
mod tests;
