//! Registrations in, the state file out, and back at the next start. Knows how a file is replaced
//! so that a crash leaves the old one or the new one; does not know what is registered.
//!
//! A file that cannot be read or written stops the start: that is a mistake of whoever deployed it.
//! One that can be read but not understood does not, since telemetry must flow: what can be used is
//! used, and the file is kept beside it as `….unusable`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::merge::Registration;
use crate::config;
use crate::text::{rfc3339, unix_nanos_from_rfc3339};

/// Most bytes that are read of it: many times what may be registered.
const MAX_SIZE: u64 = 64 << 20;

/// The form of the file.
const VERSION: u32 = 1;

/// The file that keeps what came by the API.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
}

/// Why a sidecar cannot start with its state file.
#[derive(Debug, thiserror::Error)]
#[error("cannot use `admin.state_file`: `{}` {problem}", path.display())]
pub struct StateError {
    path: PathBuf,
    problem: String,
}

/// What stood in the file.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) registrations: Vec<Registration>,
    /// What could not be used, and why; the file it stood in is kept.
    pub(super) unusable: Vec<String>,
}

#[derive(Deserialize)]
struct State {
    version: u32,
    registrations: Vec<Value>,
}

impl StateFile {
    /// Reads the file, if it is there, and makes sure that it can be written.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub(super) fn open(path: &Path) -> Result<(Self, Restored), StateError> {
        let wrong = |what: &str, error: io::Error| StateError {
            path: path.to_owned(),
            problem: format!(
                "cannot be {what}: {error}; check the path and its permissions (the folder must be writable too)"
            ),
        };
        let file = Self {
            path: path.to_owned(),
        };
        let restored = match read(path) {
            Ok(text) => restore(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Restored::default(),
            Err(error) => return Err(wrong("read", error)),
        };
        if !restored.unusable.is_empty() {
            fs::copy(path, file.beside("unusable"))
                .map_err(|error| wrong("kept beside itself", error))?;
        }
        file.write(&restored.registrations)
            .map_err(|error| wrong("written", error))?;
        Ok((file, restored))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file. Once this returns, the new one is what a crash leaves behind.
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
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        // The new name is on disk only once the folder is.
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

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(text)
}

fn restore(text: &[u8]) -> Restored {
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
                "it has version {version}, and only version {VERSION} is known"
            ));
            return restored;
        }
        Err(error) => {
            restored
                .unusable
                .push(format!("it is not what was written: {error}"));
            return restored;
        }
    };
    for (at, registration) in state.registrations.iter().enumerate() {
        match registration_of(registration) {
            Ok(registration) => restored.registrations.push(registration),
            Err(problem) => restored
                .unusable
                .push(format!("registration {}: {problem}", at + 1)),
        }
    }
    restored
}

fn registration_of(written: &Value) -> Result<Registration, String> {
    let text = written
        .get("criterion")
        .map(Value::to_string)
        .ok_or("it has no criterion")?;
    let criterion = config::criterion(&text, None).map_err(|problems| {
        problems
            .iter()
            .map(|problem| problem.title.clone())
            .collect::<Vec<_>>()
            .join("; ")
    })?;
    let expires_unix_nanos = match written.get("expires_at") {
        None => None,
        Some(expires) => {
            let expires = expires.as_str().and_then(unix_nanos_from_rfc3339);
            Some(expires.ok_or("`expires_at` is no time")?)
        }
    };
    Ok(Registration {
        criterion: criterion.into(),
        expires_unix_nanos,
    })
}

#[cfg(test)]
mod tests;
