//! Inserts environment variables and flags into the tree of a configuration. The environment is an
//! argument.

use std::collections::BTreeMap;

use located::{
    Kind, Map, MapEntry, Node, NodeValue, OnConflict, Place, Problem, Problems, Scalar, TextKind,
    Texts, contains_credentials, infer, parse,
};
use text::nearest;

use super::Config;
use super::keys::{self, Key};
use super::refused_keys;
use super::secrets::may_be_secret;

const PREFIX: &str = "SPANSCORE_";

/// OpenTelemetry's variables that set a key of `forward` (OTLP exporter configuration of the
/// OpenTelemetry specification).
const OTEL: &[(&str, &[&str])] = &[
    ("OTEL_EXPORTER_OTLP_ENDPOINT", &["forward", "endpoint"]),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", &["forward", "protocol"]),
    ("OTEL_EXPORTER_OTLP_HEADERS", &["forward", "headers"]),
    (
        "OTEL_EXPORTER_OTLP_COMPRESSION",
        &["forward", "compression"],
    ),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", &["forward", "timeout"]),
    (
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
        &["forward", "tls", "ca_file"],
    ),
    (
        "OTEL_EXPORTER_OTLP_CLIENT_KEY",
        &["forward", "tls", "key_file"],
    ),
    (
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        &["forward", "tls", "cert_file"],
    ),
];

/// Inserts OpenTelemetry's variables for keys that the file does not have; `null` in the file is a
/// value.
pub(super) fn put_otel(
    root: &mut Node,
    environment: &BTreeMap<String, String>,
    texts: &mut Texts,
    problems: &mut Problems,
) {
    for (variable, path) in OTEL {
        // The specification treats an empty value as a missing one.
        let Some(text) = environment
            .get(*variable)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
        else {
            continue;
        };
        if root.find(path).is_some() {
            continue;
        }
        let path_of_keys: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
        let secret = may_be_secret(&path_of_keys) || contains_credentials(text);
        let source = texts.add(
            *variable,
            text,
            if secret { TextKind::SecretVariable } else { TextKind::Variable },
        );
        let place = Place {
            source,
            start: 0,
            end: text.len(),
        };
        let value = match *variable {
            "OTEL_EXPORTER_OTLP_HEADERS" => headers(text, place, texts, problems),
            "OTEL_EXPORTER_OTLP_TIMEOUT" => match text.parse::<u64>() {
                Ok(millis) => Some(scalar(format!("{millis}ms"), place)),
                Err(_) => {
                    let problem = Problem::new(
                        format!("`{text}` is not a number of milliseconds"),
                        Some(texts.spot(place)),
                    );
                    problems.push(
                        problem.label("expected a whole number without a unit, such as `10000`"),
                    );
                    None
                }
            },
            _ => Some(scalar(text.to_owned(), place)),
        };
        if let Some(value) = value {
            root.put(
                &path.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>(),
                place,
                value,
                OnConflict::Keep,
            );
        }
    }
}

/// Warns of OpenTelemetry's endpoint variables for single signals if there is no downstream. These
/// variables are not read, because all signals have the same downstream.
pub(super) fn mention_unread(
    config: &Config,
    environment: &BTreeMap<String, String>,
    warnings: &mut Problems,
) {
    if config.forward.endpoint.is_some() {
        return;
    }
    for signal in ["TRACES", "LOGS", "METRICS"] {
        let variable = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
        if environment
            .get(&variable)
            .is_some_and(|value| !value.trim().is_empty())
        {
            let problem = Problem::warning(
                format!("`{variable}` is not read, and nothing is forwarded"),
                None,
            );
            warnings.push(problem.label(
                "set `SPANSCORE_FORWARD__ENDPOINT`, \
                 `OTEL_EXPORTER_OTLP_ENDPOINT` or `forward.endpoint`",
            ));
        }
    }
}

/// Inserts variables such as `SPANSCORE_FORWARD__ENDPOINT`, which override the file.
pub(super) fn put_own(
    root: &mut Node,
    environment: &BTreeMap<String, String>,
    texts: &mut Texts,
    problems: &mut Problems,
) {
    for (variable, text) in environment
        .iter()
        .filter(|(_, text)| !text.trim().is_empty())
    {
        let Some(name) = variable.strip_prefix(PREFIX) else {
            continue;
        };
        if is_service_link(name) {
            continue;
        }
        let known = keys::known();
        let path: Vec<String> = name.split("__").map(str::to_lowercase).collect();
        match spelled(known, &path) {
            Some(path) => put(root, &path, variable, text.trim(), texts, problems),
            None => {
                let names: Vec<String> = known
                    .iter()
                    .map(|key| key.path.join("__").to_uppercase())
                    .collect();
                let problem = Problem::new(format!("unknown variable `{variable}`"), None);
                problems.push(match nearest(name, names.iter().map(String::as_str)) {
                    Some(candidate) => problem.label(format!(
                        "did you mean \
                         `{PREFIX}{candidate}`?"
                    )),
                    None => problem.label(format!(
                        "variables are `{PREFIX}` and the key in upper case with `__` between \
                         levels: `SPANSCORE_FORWARD__ENDPOINT`"
                    )),
                });
            }
        }
    }
}

/// Inserts flags such as `--set forward.endpoint=…`, which override all other sources.
pub(super) fn put_flags(
    root: &mut Node,
    flags: &[(String, String)],
    texts: &mut Texts,
    problems: &mut Problems,
) {
    for (key, text) in flags {
        let known = keys::known();
        let path: Vec<String> = key.split('.').map(str::to_owned).collect();
        match spelled(known, &path) {
            Some(path) => put(
                root,
                &path,
                &format!("--set {key}"),
                text.trim(),
                texts,
                problems,
            ),
            None => {
                let names: Vec<String> = known.iter().map(|key| key.path.join(".")).collect();
                let problem = Problem::new(format!("unknown key `{key}` in `--set {key}=…`"), None);
                if let Some(remedy) = refused_keys::remedy_of(key) {
                    problems.push(problem.label(remedy));
                    continue;
                }
                problems.push(match nearest(key, names.iter().map(String::as_str)) {
                    Some(candidate) => problem.label(format!("did you mean `{candidate}`?")),
                    None => problem.label("`spanscore validate --print` lists every key"),
                });
            }
        }
    }
}

/// Returns the variable of a key: `SPANSCORE_FORWARD__ENDPOINT` for `forward.endpoint`.
#[cfg(test)]
pub(super) fn variable_of(path: &[String]) -> String {
    format!("{PREFIX}{}", path.join("__").to_uppercase())
}

/// Returns the path in the spelling of the configuration. Below a map with user-defined names
/// (headers), `_` means `-`, which a variable cannot contain.
fn spelled(known: &[Key], path: &[String]) -> Option<Vec<String>> {
    if known.iter().any(|key| key.path == path) {
        return Some(path.to_vec());
    }
    let (last, front) = path.split_last()?;
    known
        .iter()
        .any(|key| key.open && key.path == front)
        .then(|| [front, &[last.replace('_', "-")]].concat())
}

fn put(
    root: &mut Node,
    path: &[String],
    name: &str,
    text: &str,
    texts: &mut Texts,
    problems: &mut Problems,
) {
    // A list of writers may contain API keys.
    let secret = path.iter().any(|key| key == "writers")
        || may_be_secret(path)
        || contains_credentials(text);
    let source = texts.add(
        name,
        text,
        if secret { TextKind::SecretVariable } else { TextKind::Variable },
    );
    let place = Place {
        source,
        start: 0,
        end: text.len(),
    };
    // Parse only a list or a map in brackets as YAML; any other text is a literal, even if it
    // contains `#` or `: `.
    let value = if text.starts_with(['[', '{']) {
        parse(texts, source, problems)
    } else {
        Some(scalar(text.to_owned(), place))
    };
    if let Some(value) = value {
        root.put(path, place, value, OnConflict::Replace);
    }
}

fn scalar(text: String, place: Place) -> Node {
    let kind = infer(&text);
    Node {
        place,
        value: NodeValue::Scalar(Scalar {
            text,
            kind,
            substituted: true,
        }),
    }
}

/// Parses `key1=value1,key2=value2` with percent-encoded values (W3C Baggage, as in the
/// OpenTelemetry specification).
fn headers(text: &str, place: Place, texts: &Texts, problems: &mut Problems) -> Option<Node> {
    let mut map = Map::default();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let decoded = pair.split_once('=').and_then(|(key, value)| {
            Some((percent_decoded(key.trim())?, percent_decoded(value.trim())?))
        });
        let Some((key, value)) = decoded.filter(|(key, _)| !key.is_empty()) else {
            let problem = Problem::new(
                "a header that is not `name=value`, percent-encoded",
                Some(texts.spot(place)),
            );
            problems.push(problem.label(
                "write `name1=value1,name2=value2`, with `%20` for a space and `%2C` for a comma",
            ));
            return None;
        };
        let value = Node {
            place,
            value: NodeValue::Scalar(Scalar {
                text: value,
                kind: Kind::Text,
                substituted: false,
            }),
        };
        map.entries.push(MapEntry {
            key,
            key_place: place,
            value,
        });
    }
    Some(Node {
        place,
        value: NodeValue::Map(map),
    })
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns true for the name of a variable that Kubernetes may have set in a pod beside a Service
/// named `spanscore` (or `spanscore-…`): `SPANSCORE_SERVICE_HOST`, `SPANSCORE_PORT_4317_TCP_ADDR`
/// and so on.
fn is_service_link(name: &str) -> bool {
    if name.contains("__") {
        return false;
    }
    let words: Vec<&str> = name.split('_').collect();
    words
        .windows(2)
        .any(|pair| matches!(pair, ["SERVICE", "HOST" | "PORT"]))
        || words.last() == Some(&"PORT")
        || words.windows(3).any(|run| {
            run[0] == "PORT"
                && run[1].bytes().all(|b| b.is_ascii_digit())
                && matches!(run[2], "TCP" | "UDP" | "SCTP")
        })
}
