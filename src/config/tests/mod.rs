//! Tests of loading a configuration from texts and variables. Snapshots contain the messages that
//! users see; they do not prove that a remedy works.

mod destinations;
mod evaluators;
mod examples;
mod messages;
mod shipped;
mod sources;
mod writers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Config, Files, Loaded, Problems, Sources};

#[derive(Default)]
struct Folder(BTreeMap<PathBuf, String>);

impl Files for Folder {
    fn read(&self, path: &Path) -> Result<String, String> {
        self.0
            .get(path)
            .cloned()
            .ok_or_else(|| "no such file".to_owned())
    }

    fn list(&self, _: &Path, glob: &str) -> Result<Vec<PathBuf>, String> {
        let pattern = glob::Pattern::new(glob).map_err(|error| error.to_string())?;
        Ok(self
            .0
            .keys()
            .filter(|path| pattern.matches_path(path))
            .cloned()
            .collect())
    }
}

#[derive(Default)]
struct Given<'a> {
    text: &'a str,
    variables: &'a [(&'a str, &'a str)],
    flags: &'a [(&'a str, &'a str)],
    files: &'a [(&'a str, &'a str)],
}

impl Given<'_> {
    fn load(&self) -> Result<Loaded, Problems> {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        Config::load(&Sources {
            file: Some((Path::new("spanscore.yaml"), self.text)),
            environment: &owned(self.variables).into_iter().collect(),
            flags: &owned(self.flags),
            files: &Folder(
                self.files
                    .iter()
                    .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
                    .collect(),
            ),
        })
    }

    fn config(&self) -> Config {
        self.load()
            .unwrap_or_else(|problems| panic!("{problems}"))
            .config
    }

    /// Returns the mistakes, or the warnings if there are no mistakes.
    fn messages(&self) -> Problems {
        self.load()
            .map_or_else(|problems| problems, |loaded| loaded.warnings)
    }
}

pub(super) fn config(text: &str) -> Config {
    Given {
        text,
        ..Given::default()
    }
    .config()
}

fn messages(text: &str) -> Problems {
    Given {
        text,
        ..Given::default()
    }
    .messages()
}

fn titles(problems: &Problems) -> Vec<String> {
    problems
        .iter()
        .map(|problem| problem.title.clone())
        .collect()
}

fn json(config: &Config) -> Value {
    config.to_value()
}
