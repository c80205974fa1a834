//! Keys and values that users may try in the section `kafka` and that spanscore rejects, each with
//! the remedy.

/// Dotted paths, each with its remedy.
const KEYS: &[(&str, &str)] = &[
    (
        "kafka.write.logs_topic",
        "log records are not written to Kafka: for agents that send model messages as log records, \
         run a sidecar without `kafka.write` and judge there",
    ),
    (
        "kafka.read.topics",
        "a judge reads one topic: write `topic`, and start other judges for other topics",
    ),
    (
        "kafka.read.threads",
        "write `scoring.threads`: those threads share the partitions",
    ),
    (
        "kafka.read.commit_interval",
        "leave it out: the reading position is committed every second",
    ),
    (
        "kafka.tls.server_name",
        "remove it: the Kafka client always checks the certificate against the broker's host name",
    ),
];

pub(super) fn remedy_of(path: &str) -> Option<&'static str> {
    let (_, remedy) = KEYS.iter().find(|(refused, _)| *refused == path)?;
    Some(remedy)
}

pub(super) fn remedy_of_mechanism(word: &str) -> Option<&'static str> {
    let is_known = ["OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"].contains(&word);
    is_known.then_some(
        "log in with SCRAM-SHA-512, or with a certificate: `kafka.tls.cert_file` and `key_file` \
         instead of `kafka.sasl`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;

    #[test]
    fn no_key_that_we_have_is_refused() {
        for known in keys::known() {
            assert_eq!(remedy_of(&known.path.join(".")), None);
        }
    }
}
