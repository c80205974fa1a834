//! The secrets of a configuration: header values, the password for Kafka, and the API keys of
//! writers, inline or in the file that `…_key_file` names.

use located::{
    ITEM, Interpolation, Kind, Map, MapEntry, Node, NodeValue, Problem, Problems, Scalar, Secrets,
    Texts,
};
use text::nearest;

pub(super) const SECRETS: Secrets = Secrets {
    is_secret,
    may_be_secret,
    description: "values of `headers`, keys of writers and `kafka.sasl.password`",
};

fn is_secret(path: &[String]) -> bool {
    let is_header = path
        .iter()
        .position(|key| key == "headers")
        .and_then(|at| path.get(at + 1))
        .is_some_and(|name| name != ITEM);
    is_header
        || path == ["kafka", "sasl", "password"]
        || path.windows(4).any(|keys| {
            keys[0] == "writers"
                && keys[1] == ITEM
                && ["api_key", "public_key", "secret_key"].contains(&keys[3].as_str())
        })
}

/// Returns true if messages hide the value at this path, even below a misspelt key. In criteria and
/// conventions, keys such as `token` name arguments and attributes of the agent, so their values
/// are shown.
pub(super) fn may_be_secret(path: &[String]) -> bool {
    const KEYS: &[&str] = &[
        "headers",
        "authorization",
        "api_key",
        "public_key",
        "secret_key",
        "token",
        "password",
        "secret",
    ];
    let belongs_to_agent = path
        .first()
        .is_some_and(|section| ["criteria", "tools"].contains(&section.as_str()));
    let names_secret = |key: &String| {
        let is_name_of_file = key.to_ascii_lowercase().ends_with("file");
        !is_name_of_file && nearest(key, KEYS.iter().copied()).is_some()
    };
    is_secret(path) || !belongs_to_agent && path.iter().any(names_secret)
}

/// Reads the files of writers: `api_key_file: PATH` is a synonym of `api_key: ${file:PATH}`.
pub(super) fn read_key_files(
    root: &mut Node,
    interpolation: &mut Interpolation<'_>,
    texts: &Texts,
    problems: &mut Problems,
) {
    let Some(NodeValue::List(writers)) = root
        .find_mut(&["scores", "writers"])
        .map(|node| &mut node.value)
    else {
        return;
    };
    for writer in writers {
        let NodeValue::Map(kinds) = &mut writer.value else {
            continue;
        };
        for kind in &mut kinds.entries {
            if let NodeValue::Map(keys) = &mut kind.value.value {
                read_key_file(keys, interpolation, texts, problems);
            }
        }
    }
}

fn read_key_file(
    map: &mut Map,
    interpolation: &mut Interpolation<'_>,
    texts: &Texts,
    problems: &mut Problems,
) {
    let (mut read, mut unreadable) = (Vec::new(), Vec::new());
    for MapEntry {
        key,
        key_place,
        value,
    } in &map.entries
    {
        let (Some(name), NodeValue::Scalar(path)) = (
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
        match interpolation.file(&path.text) {
            Ok(text) => {
                let value = Node {
                    place: value.place,
                    value: NodeValue::Scalar(Scalar {
                        text,
                        kind: Kind::Text,
                        substituted: true,
                    }),
                };
                read.push(MapEntry {
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
