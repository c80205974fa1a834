//! A tree with `${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}` in, the same tree with the
//! values in their place out. Knows the spelling; variables and files are handed in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::{Place, Problem, Problems, Texts};
use super::load::Files;
use super::tree::{Entry, Kind, Map, Node, Scalar, Value, infer};

/// Where the values come from.
pub(super) struct Interpolation<'a> {
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) files: &'a dyn Files,
    /// Paths are meant from here.
    pub(super) folder: &'a Path,
    /// Every file that was read, so that it can be read again.
    pub(super) read: Vec<PathBuf>,
}

/// Where in the tree we are, as far as it matters: only header values and the keys of writers may
/// come from files, and they are secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Anything,
    Headers,
    Header,
    /// The list of writers, an item of it, and what it says of its backend.
    Writers,
    Writer,
    WriterKeys,
}

impl Interpolation<'_> {
    /// Replaces in every scalar; what cannot be replaced is reported and taken out. Header values
    /// that stand in the text itself are masked where their line is shown.
    pub(super) fn apply(&mut self, node: &mut Node, texts: &mut Texts, problems: &mut Problems) {
        self.walk(node, Within::Anything, texts, problems);
    }

    fn walk(
        &mut self,
        node: &mut Node,
        within: Within,
        texts: &mut Texts,
        problems: &mut Problems,
    ) -> bool {
        match &mut node.value {
            Value::Scalar(scalar) => {
                return self.scalar(scalar, node.place, within, texts, problems);
            }
            Value::List(items) => {
                let within = match within {
                    Within::Header => within,
                    Within::Writers => Within::Writer,
                    _ => Within::Anything,
                };
                for item in items {
                    if !self.walk(item, within, texts, problems) {
                        item.value = Value::Gone;
                    }
                }
            }
            Value::Gone => {}
            Value::Map(map) => {
                map.retain(|entry| {
                    let within = match (within, entry.key.as_str()) {
                        (Within::Anything | Within::WriterKeys, "headers") => Within::Headers,
                        (Within::Headers | Within::Header, _) => Within::Header,
                        (Within::Anything, "writers") => Within::Writers,
                        (Within::Writer, _) => Within::WriterKeys,
                        (Within::WriterKeys, "api_key" | "public_key" | "secret_key") => {
                            Within::Header
                        }
                        _ => Within::Anything,
                    };
                    self.walk(&mut entry.value, within, texts, problems)
                });
                if within == Within::WriterKeys {
                    self.read_key_files(map, texts, problems);
                }
            }
        }
        true
    }

    /// `api_key_file: PATH` is another way to write `api_key: ${file:PATH}`.
    fn read_key_files(&mut self, map: &mut Map, texts: &mut Texts, problems: &mut Problems) {
        let (mut read, mut unreadable) = (Vec::new(), Vec::new());
        for Entry {
            key,
            key_place,
            value,
        } in &map.entries
        {
            let (Some(name), Value::Scalar(path)) = (
                key.strip_suffix("_file")
                    .filter(|name| name.ends_with("_key")),
                &value.value,
            ) else {
                continue;
            };
            if value.is_null() {
                continue;
            }
            if map
                .entries
                .iter()
                .any(|entry| entry.key == name && !entry.value.is_null())
            {
                let problem = Problem::new(
                    format!("`{name}` and `{key}` are both given"),
                    Some(texts.spot(*key_place)),
                );
                problems.push(problem.label("give one of them"));
                continue;
            }
            match self.file(&path.text) {
                Ok(text) => {
                    let value = Node {
                        place: value.place,
                        value: Value::Scalar(Scalar {
                            text,
                            kind: Kind::Text,
                            substituted: true,
                        }),
                    };
                    read.push(Entry {
                        key: name.to_owned(),
                        key_place: *key_place,
                        value,
                    });
                }
                Err((title, label)) => {
                    problems.push(Problem::new(title, Some(texts.spot(value.place))).label(label));
                    unreadable.push(key.clone());
                }
            }
        }
        map.retain(|entry| !unreadable.contains(&entry.key));
        map.entries
            .retain(|entry| read.iter().all(|read| read.key != entry.key));
        map.entries.extend(read);
    }

    fn scalar(
        &mut self,
        scalar: &mut Scalar,
        place: Place,
        within: Within,
        texts: &mut Texts,
        problems: &mut Problems,
    ) -> bool {
        if !scalar.text.contains("${") {
            if within == Within::Header || holds_credentials(&scalar.text) {
                texts.hide(place);
            }
            return true;
        }
        match self.expand(&scalar.text, within == Within::Header) {
            Ok(text) => {
                if text != scalar.text {
                    let quoted = texts.slice(place).starts_with(['"', '\'']);
                    let kind = if quoted { scalar.kind } else { infer(&text) };
                    *scalar = Scalar {
                        text,
                        kind,
                        substituted: true,
                    };
                }
                true
            }
            Err((title, label)) => {
                problems.push(Problem::new(title, Some(texts.spot(place))).label(label));
                false
            }
        }
    }

    fn expand(&mut self, text: &str, is_header: bool) -> Result<String, (String, String)> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            let Some(end) = after.find('}') else { break };
            let inner = &after[..end];
            rest = &after[end + 1..];
            // `$${env:X}` is the text `${env:X}`, as for the Collector.
            if before.ends_with('$') && (inner.starts_with("env:") || inner.starts_with("file:")) {
                out.push_str(&before[..before.len() - 1]);
                out.push_str(&format!("${{{inner}}}"));
                continue;
            }
            out.push_str(before);
            if let Some(variable) = inner.strip_prefix("env:") {
                out.push_str(&self.variable(variable)?);
            } else if let Some(path) = inner.strip_prefix("file:") {
                if !is_header {
                    return Err((
                        format!("`${{file:{path}}}` outside a header value"),
                        "only values of `headers` and keys of writers are read from files; use `${env:NAME}` here".to_owned(),
                    ));
                }
                out.push_str(&self.file(path)?);
            } else if !inner.is_empty()
                && inner
                    .chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
                && !starts_with_digit(inner)
            {
                return Err((
                    format!("`${{{inner}}}` is not replaced by anything"),
                    format!("write `${{env:{inner}}}`"),
                ));
            } else {
                out.push_str(&format!("${{{inner}}}"));
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    fn variable(&self, inner: &str) -> Result<String, (String, String)> {
        let (name, default) = inner
            .split_once(":-")
            .map_or((inner, None), |(name, default)| (name, Some(default)));
        match (
            self.environment.get(name).filter(|value| !value.is_empty()),
            default,
        ) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(default)) => Ok(default.to_owned()),
            (None, None) => Err((
                format!("the environment has no variable `{name}`"),
                format!("set it, or give a default: `${{env:{name}:-…}}`"),
            )),
        }
    }

    fn file(&mut self, path: &str) -> Result<String, (String, String)> {
        let path = self.folder.join(path);
        match self.files.read(&path) {
            Ok(text) => {
                self.read.push(path);
                Ok(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            Err(error) => Err((
                format!("cannot read `{}`: {error}", path.display()),
                "the value is read from this file".to_owned(),
            )),
        }
    }
}

/// `https://user:password@host`: refused later, and the message must not show it.
pub(super) fn holds_credentials(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| {
        rest.split('/')
            .next()
            .is_some_and(|authority| authority.contains('@'))
    })
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}
