//! Merges a new configuration into the running one, and names the changes that need a restart
//! (docs/design.md#configuration).

use std::collections::BTreeMap;

use serde_json::Value;

use super::Config;
use super::units::Secret;

/// The keys that a reload applies, in addition to the secrets of `forward` and `scores`. All other
/// settings are used only at the start, for example to bind ports.
const RELOADED: [&str; 5] = [
    "criteria",
    "criteria_files",
    "tools",
    "explain",
    "expectations",
];

impl Config {
    /// Returns this configuration with the reloadable keys of `new`, and the changed keys that need
    /// a restart. New secrets apply only if no other key of `forward` or `scores` needs a restart;
    /// otherwise the credentials of a new endpoint would be sent to the old one.
    pub fn reloaded(&self, new: Self) -> (Self, Vec<String>) {
        let mut needs_restart = Vec::new();
        compare("", &plain(self), &plain(&new), &mut needs_restart);
        let renews_secrets = !needs_restart.iter().any(|key| is_of_destinations(key));
        for key in new.changed_secrets(self) {
            let is_applied = renews_secrets && is_of_destinations(&key);
            if !is_applied && !needs_restart.iter().any(|named| named.starts_with(&key)) {
                needs_restart.push(key);
            }
        }
        let Self {
            criteria,
            criteria_files,
            expectations,
            tools,
            explain,
            forward,
            scores,
            origins,
            ..
        } = new;
        let mut next = Self {
            origins: self.origins.with_criteria_of(&origins),
            criteria,
            criteria_files,
            expectations,
            tools,
            explain,
            ..self.clone()
        };
        if renews_secrets {
            // Only the secrets differ.
            (next.forward, next.scores) = (forward, scores);
        }
        (next, needs_restart)
    }

    /// Returns the reloadable keys that differ from `earlier`, except criteria and secrets.
    pub fn changed_settings(&self, earlier: &Self) -> Vec<String> {
        let (mut now, mut before) = (self.to_value(), earlier.to_value());
        let settings = RELOADED.iter().filter(|key| !key.starts_with("criteria"));
        let changed = settings.filter(|key| now[**key].take() != before[**key].take());
        changed.map(|key| (*key).to_owned()).collect()
    }

    /// Returns the keys whose secrets differ from `earlier`.
    pub fn changed_secrets(&self, earlier: &Self) -> Vec<String> {
        let pairs = self.secrets().into_iter().zip(earlier.secrets());
        pairs
            .filter(|((_, now), (_, before))| now != before)
            .map(|((key, _), _)| key)
            .collect()
    }

    /// Returns the secrets, to compare them. In the printed configuration all secrets are `****`,
    /// so a changed secret would look equal.
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
        let of_kafka = self.kafka.sasl.iter().map(|sasl| sasl.password.clone());
        headers
            .chain([
                ("scores.writers".to_owned(), of_writers.collect()),
                ("kafka.sasl.password".to_owned(), of_kafka.collect()),
            ])
            .collect()
    }
}

fn is_of_destinations(key: &str) -> bool {
    ["forward", "scores"].contains(&key.split('.').next().unwrap_or_default())
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
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
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

    /// Secrets may be rotated at any time, so a reload applies them without a restart.
    #[test]
    fn secrets_are_taken_over_unless_their_destinations_change() {
        let with = |key: &str, more: &str| {
            config(&format!(
                "forward: {{ endpoint: \"http://a:4317\", headers: {{ key: \"{key}\" }} }}\n\
                 scores: {{ writers: [{{ phoenix: {{ endpoint: \"http://p\", api_key: \
                 \"{key}\"{more} }} }}] }}\n"
            ))
        };
        let old = with("1", "");
        let (next, needs_restart) = old.reloaded(with("2", ""));
        assert_eq!(needs_restart, [""; 0]);
        assert_eq!(
            next.changed_secrets(&old),
            ["forward.headers", "scores.writers"]
        );
        let sent = |config: &crate::config::Config| {
            let forward = config.forward_destination().unwrap().headers;
            forward[0].1.expose().to_owned()
        };
        assert_eq!(sent(&next), "2");

        let (next, needs_restart) = old.reloaded(with("2", ", timeout: 1s"));
        assert_eq!(needs_restart, ["scores.writers", "forward.headers"]);
        assert_eq!(sent(&next), "1");
        assert_eq!(next.changed_secrets(&old), [""; 0]);
    }

    #[test]
    fn a_new_kafka_password_needs_a_restart() {
        let with = |password: &str| {
            config(&format!(
                "kafka: {{ brokers: [\"a:9092\"], sasl: {{ mechanism: PLAIN, username: u, \
                 password: {password} }} }}\n"
            ))
        };
        let (_, needs_restart) = with("one").reloaded(with("two"));
        assert_eq!(needs_restart, ["kafka.sasl.password"]);
    }
}
