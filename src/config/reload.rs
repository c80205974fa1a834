//! Merges a configuration that was read again into the running one, and names the changes that need
//! a restart. Knows which keys may change while the sidecar runs (docs/design.md#configuration).

use std::collections::BTreeMap;

use serde_json::Value;

use super::Config;
use super::units::Secret;

/// The keys that a reload applies. Everything else is bound, connected or sized at the start.
const RELOADED: [&str; 5] = [
    "criteria",
    "criteria_files",
    "tools",
    "explain",
    "expectations",
];

impl Config {
    /// This configuration with the keys that a reload may change, and the changed keys that need a
    /// restart.
    pub fn reloaded(&self, new: Self) -> (Self, Vec<String>) {
        let mut needs_restart = Vec::new();
        compare("", &plain(self), &plain(&new), &mut needs_restart);
        for ((key, old), (_, new)) in self.secrets().into_iter().zip(new.secrets()) {
            if old != new && !needs_restart.iter().any(|named| named.starts_with(&key)) {
                needs_restart.push(key);
            }
        }
        let Self {
            criteria,
            criteria_files,
            expectations,
            tools,
            explain,
            ..
        } = new;
        (
            Self {
                criteria,
                criteria_files,
                expectations,
                tools,
                explain,
                ..self.clone()
            },
            needs_restart,
        )
    }

    /// The keys that a reload applies and that differ from an earlier configuration's, except the
    /// criteria.
    pub fn changed_settings(&self, earlier: &Self) -> Vec<String> {
        let (mut now, mut before) = (self.to_value(), earlier.to_value());
        let settings = RELOADED.iter().filter(|key| !key.starts_with("criteria"));
        let changed = settings.filter(|key| now[**key].take() != before[**key].take());
        changed.map(|key| (*key).to_owned()).collect()
    }

    /// Values that are printed as `****`, so that two of them look equal.
    fn secrets(&self) -> Vec<(String, Vec<Secret>)> {
        let headers = self.otlp_peers().into_iter().map(|peer| {
            let headers = peer.headers.into_iter().flat_map(BTreeMap::values);
            (
                format!("{}.headers", peer.section),
                headers.cloned().collect(),
            )
        });
        let of_writers = self.scores.writers.iter().flat_map(|writer| {
            let headers = writer.peer().headers.values().cloned();
            headers.chain(writer.credentials().map(|(_, secret)| secret))
        });
        headers
            .chain([("scores.writers".to_owned(), of_writers.collect())])
            .collect()
    }
}

fn plain(config: &Config) -> Value {
    let mut config = config.to_value();
    if let Some(fields) = config.as_object_mut() {
        fields.retain(|key, _| !RELOADED.contains(&key.as_str()));
    }
    config
}

fn compare(path: &str, old: &Value, new: &Value, differing: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new))
            if old.len() == new.len() && old.keys().all(|key| new.contains_key(key)) =>
        {
            for (key, old) in old {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                compare(&path, old, &new[key], differing);
            }
        }
        (old, new) if old != new => differing.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;

    #[test]
    fn criteria_and_tools_are_taken_over_and_all_else_is_named() {
        let old = config("forward: { endpoint: \"http://a:4317\", headers: { key: \"1\" } }\n");
        let new = config(
            "forward: { endpoint: \"http://b:4317\", headers: { key: \"2\" }, timeout: 1s \
             }\ntools: { ignore: [x] }\nexplain: { values: true }\n\
             criteria: [{ name: a, evaluate: { tool_call_order: { tool_calls_order: [a] } } }]\n",
        );
        let (next, needs_restart) = old.reloaded(new);
        assert_eq!(
            needs_restart,
            ["forward.endpoint", "forward.timeout", "forward.headers"]
        );
        assert_eq!(
            (
                next.criteria.len(),
                next.tools.ignore.as_slice(),
                next.explain.values
            ),
            (1, ["x".to_owned()].as_slice(), true)
        );
        assert_eq!(next.forward.endpoint.as_deref(), Some("http://a:4317"));
        assert_eq!(next.changed_settings(&old), ["tools", "explain"]);
        let (_, needs_restart) = next.reloaded(next.clone());
        assert_eq!(needs_restart, [""; 0]);
        assert_eq!(next.changed_settings(&next), [""; 0]);
    }
}
