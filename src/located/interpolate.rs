//! Replaces `${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}` in the scalars of a tree, and
//! hides secrets in its texts. Variables, files and the paths of secrets are passed as arguments.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::parse::infer;
use super::problem::{Problem, Problems};
use super::texts::{Place, Texts};
use super::tree::{Node, NodeValue, Scalar};

pub trait Files {
    /// Returns the text of a file.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be read, in words for the user.
    fn read(&self, path: &Path) -> Result<String, String>;

    /// Returns the paths below a folder that a glob matches, sorted; the folder's own name is not a
    /// pattern.
    ///
    /// # Errors
    /// Returns the reason why the glob cannot be used, in words for the user.
    fn list(&self, folder: &Path, glob: &str) -> Result<Vec<PathBuf>, String>;
}

/// The sources of the values that replace references.
pub struct Interpolation<'a> {
    pub environment: &'a BTreeMap<String, String>,
    pub files: &'a dyn Files,
    /// The folder to which paths are relative.
    pub folder: &'a Path,
    pub secrets: Secrets,
    /// Every file that was read, so that it can be watched.
    pub read: Vec<PathBuf>,
}

/// Determines which values are secrets. Only secrets may come from files.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// Returns true if the value at this path of keys is a secret. An item of a list is [`ITEM`].
    pub is_secret: fn(&[String]) -> bool,
    /// Returns true if messages hide the value at this path: it is a secret, or its key may be the
    /// misspelt key of a secret.
    pub may_be_secret: fn(&[String]) -> bool,
    /// A description of the secrets for messages, in the plural.
    pub description: &'static str,
}

/// Represents any item of a list in a path of keys.
pub const ITEM: &str = "[]";

/// The title and the label of a [`Problem`].
type Refusal = (String, String);

impl Interpolation<'_> {
    /// Replaces references in every scalar. A value that cannot be replaced is reported and
    /// removed. Secrets that the text contains directly are masked in excerpts.
    pub fn apply(&mut self, node: &mut Node, texts: &mut Texts, problems: &mut Problems) {
        self.walk(node, &mut Vec::new(), texts, problems);
    }

    /// Returns false if the node must be removed.
    fn walk(
        &mut self,
        node: &mut Node,
        path: &mut Vec<String>,
        texts: &mut Texts,
        problems: &mut Problems,
    ) -> bool {
        match &mut node.value {
            NodeValue::Scalar(scalar) => {
                let is_written_out = !scalar.text.contains("${");
                let is_hidden =
                    (self.secrets.may_be_secret)(path) || contains_credentials(&scalar.text);
                if is_written_out && is_hidden {
                    texts.hide(node.place);
                }
                let is_secret = (self.secrets.is_secret)(path);
                return self.scalar(scalar, node.place, is_secret, texts, problems);
            }
            NodeValue::List(items) => {
                path.push(ITEM.to_owned());
                for item in items {
                    if !self.walk(item, path, texts, problems) {
                        item.value = NodeValue::Gone;
                    }
                }
                path.pop();
            }
            NodeValue::Map(map) => map.retain(|entry| {
                path.push(entry.key.clone());
                let stays = self.walk(&mut entry.value, path, texts, problems);
                path.pop();
                stays
            }),
            NodeValue::Gone => {}
        }
        true
    }

    fn scalar(
        &mut self,
        scalar: &mut Scalar,
        place: Place,
        is_secret: bool,
        texts: &Texts,
        problems: &mut Problems,
    ) -> bool {
        if !scalar.text.contains("${") {
            return true;
        }
        match self.expand(&scalar.text, is_secret) {
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

    fn expand(&mut self, text: &str, is_secret: bool) -> Result<String, Refusal> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            let Some(end) = after.find('}') else { break };
            let inner = &after[..end];
            rest = &after[end + 1..];
            // `$${env:X}` is the text `${env:X}`, as in the OpenTelemetry Collector.
            if before.ends_with('$') && is_replaced(inner) {
                out.push_str(&before[..before.len() - 1]);
                out.push_str(&format!("${{{inner}}}"));
                continue;
            }
            out.push_str(before);
            if let Some(variable) = inner.strip_prefix("env:") {
                out.push_str(&self.variable(variable)?);
            } else if let Some(path) = inner.strip_prefix("file:") {
                if !is_secret {
                    return Err((
                        format!("`${{file:{path}}}` is not allowed here"),
                        format!(
                            "only {} are read from files; use `${{env:NAME}}` here",
                            self.secrets.description
                        ),
                    ));
                }
                out.push_str(&self.file(path)?);
            } else if is_variable_name(inner) {
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

    fn variable(&self, inner: &str) -> Result<String, Refusal> {
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

    /// Reads a value from a file, without the line break at its end.
    pub fn file(&mut self, path: &str) -> Result<String, Refusal> {
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

/// Returns a text that [`Interpolation`] turns back into `text`: `$${env:X}` for `${env:X}`. Every
/// text that a person may copy into a file must be escaped. Otherwise, a name from the network
/// could expand to one of that person's secrets.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains("${") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 1);
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        let Some(end) = after.find('}') else { break };
        let inner = &after[..end];
        out.push_str(before);
        if is_replaced(inner) {
            out.push('$');
        }
        out.push_str(&rest[at..at + 2 + end + 1]);
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns true if `${inner}` is replaced, or rejected as a mistake.
fn is_replaced(inner: &str) -> bool {
    inner.starts_with("env:") || inner.starts_with("file:") || is_variable_name(inner)
}

fn is_variable_name(inner: &str) -> bool {
    !inner.is_empty()
        && !starts_with_digit(inner)
        && inner
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Returns true for a URL with credentials, such as `https://user:password@host`. The URL is
/// rejected later, and the message must not show the credentials.
pub fn contains_credentials(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| {
        rest.split('/')
            .next()
            .is_some_and(|authority| authority.contains('@'))
    })
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoFiles;

    impl Files for NoFiles {
        fn read(&self, _: &Path) -> Result<String, String> {
            Err("there are no files".to_owned())
        }

        fn list(&self, _: &Path, _: &str) -> Result<Vec<PathBuf>, String> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn what_was_escaped_is_read_back_as_it_was() {
        let environment = BTreeMap::from([("X".to_owned(), "s3cr3t".to_owned())]);
        let mut interpolation = Interpolation {
            environment: &environment,
            files: &NoFiles,
            folder: Path::new(""),
            secrets: Secrets {
                is_secret: |_| false,
                may_be_secret: |_| false,
                description: "",
            },
            read: Vec::new(),
        };
        for text in [
            "${env:X}",
            "$${env:X}",
            "$$${env:X}",
            "a${X}b${file:/etc/x}${env:",
            "${x}",
            "$$",
            "$${x}",
            "${${env:X}}",
            "${a${env:X}",
            "${}",
            "${env:X:-$}${X}",
            "no",
        ] {
            assert_eq!(
                interpolation.expand(&escaped(text), false).as_deref(),
                Ok(text)
            );
        }
    }
}
