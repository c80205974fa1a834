//! Checks the section `kafka`.

use super::Check;
use crate::config::{Config, SaslMechanism, Signal};

impl Check<'_> {
    pub(super) fn kafka(&mut self) {
        let kafka = &self.config.kafka;
        for broker in kafka.brokers.clone() {
            let is_address = broker
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            if !is_address || broker.contains("//") {
                self.wrong(
                    &["kafka.brokers"],
                    format!("`{broker}` is not the address of a broker"),
                    "write `host:port`, without a scheme",
                );
            }
        }
        let roles = [
            ("kafka.write", "kafka.write.enabled", kafka.write.enabled),
            ("kafka.read", "kafka.read.enabled", kafka.read.enabled),
        ];
        for (role, enabled, is_enabled) in roles {
            if !is_enabled {
                continue;
            }
            if !cfg!(feature = "kafka") {
                self.wrong(
                    &[enabled],
                    "this program is built without Kafka",
                    "build it with `cargo build --release --features kafka`",
                );
            }
            if kafka.brokers.is_empty() {
                self.wrong(
                    &["kafka.brokers", enabled],
                    format!("`{role}` has no brokers"),
                    "name at least one: `brokers: [\"kafka:9092\"]`",
                );
            }
        }
        if !kafka.write.enabled && !kafka.read.enabled {
            return;
        }
        let sends_password = kafka
            .sasl
            .as_ref()
            .is_some_and(|sasl| sasl.mechanism == SaslMechanism::Plain);
        if sends_password && kafka.tls.is_none() {
            self.doubtful(
                &["kafka.sasl.mechanism"],
                "the mechanism PLAIN sends the password in clear text",
                "set `kafka.tls: {}`, or use SCRAM-SHA-512",
            );
        }
        self.kafka_write();
        self.kafka_read();
    }

    fn kafka_write(&mut self) {
        let Config { kafka, forward, .. } = self.config;
        if !kafka.write.enabled {
            return;
        }
        let enabled = "kafka.write.enabled";
        if kafka.write.topic.is_empty() {
            self.wrong(
                &["kafka.write.topic"],
                "`kafka.write.topic` is empty",
                "expected the name of a topic",
            );
        }
        if forward.endpoint.is_some() && !forward.signals.contains(&Signal::Traces) {
            self.doubtful(
                &[enabled, "forward.signals"],
                "`forward.signals` has no `traces`",
                "spans are written to Kafka only",
            );
        }
    }

    fn kafka_read(&mut self) {
        let Config {
            kafka,
            journal,
            scoring,
            assemble,
            ..
        } = self.config;
        if !kafka.read.enabled {
            return;
        }
        let enabled = "kafka.read.enabled";
        for (key, value) in [
            ("kafka.read.topic", &kafka.read.topic),
            ("kafka.read.group", &kafka.read.group),
        ] {
            if value.is_empty() {
                self.wrong(&[key], format!("`{key}` is empty"), "expected a name");
            }
        }
        if kafka.read.set_aside_topic.as_ref() == Some(&kafka.read.topic) {
            self.wrong(
                &["kafka.read.set_aside_topic", "kafka.read.topic"],
                "`kafka.read.set_aside_topic` is the topic that is read",
                "name another topic: records that are set aside would be read again",
            );
        }
        if journal.directory.is_some() {
            self.wrong(
                &["journal.directory", enabled],
                "a judge that reads from Kafka needs no `journal`: the topic is its journal",
                "remove `journal.directory`",
            );
        }
        if !scoring.enabled {
            self.wrong(
                &["scoring.enabled", enabled],
                "`scoring.enabled` is false, so nothing that is read would be judged",
                "remove it, or `kafka.read`",
            );
        }
        if assemble.peers.is_some() {
            self.doubtful(
                &["assemble.peers", enabled],
                "`assemble.peers` has no effect on what is read from Kafka",
                "remove it: all spans of a trace are in one partition",
            );
        }
    }
}
