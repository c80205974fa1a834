//! Tests TLS, logins and permissions with the real program and a real broker that requires them. A
//! refusal is logged with its remedy and without the secret, requests wait, and everything resumes
//! when the permission is granted. `tests/kafka/run` runs these tests. Does not test client
//! certificates.

use std::path::PathBuf;
use std::process::Command;

use crate::kafka_judges::{Bench, end, line_with, parts_of, send_parts};
use crate::support::program::http;
use crate::support::spans::request;

const PASSWORD: &str = "secret";
const WRONG: &str = "wrong-horse";

/// Reads an environment variable that `tests/kafka/run` sets.
#[expect(clippy::disallowed_methods, reason = "the script names its broker")]
fn set(name: &str) -> String {
    std::env::var(name).expect("tests/kafka/run sets it")
}

/// A login for the broker's listener that requires a login.
struct Login {
    user: &'static str,
    mechanism: &'static str,
    password: &'static str,
    authority: &'static str,
}

impl Login {
    fn of(user: &'static str) -> Self {
        Self {
            user,
            mechanism: "SCRAM-SHA-512",
            password: PASSWORD,
            authority: "ca.pem",
        }
    }

    fn settings(&self) -> Vec<String> {
        let Self {
            user,
            mechanism,
            password,
            authority,
        } = self;
        let authority = folder().join("tls").join(authority);
        vec![
            format!(
                "kafka.brokers=[\"{}\"]",
                set("SPANSCORE_TEST_SECURE_BROKER")
            ),
            format!("kafka.tls.ca_file={}", authority.display()),
            format!("kafka.sasl.mechanism={mechanism}"),
            format!("kafka.sasl.username={user}"),
            format!("kafka.sasl.password={password}"),
        ]
    }
}

fn folder() -> PathBuf {
    PathBuf::from(set("SPANSCORE_TEST_BROKER_FOLDER"))
}

fn grant(bench: &Bench, user: &str, kind: &str, operations: &[&str]) {
    let port = bench.brokers.rsplit(':').next().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kafka/broker");
    let status = Command::new(script)
        .arg("grant")
        .arg(folder())
        .args([port, user, kind, &bench.topic])
        .args(operations)
        .status();
    assert!(status.unwrap().success());
}

fn refs(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

pub(crate) fn is_ready(admin: &str) -> bool {
    http(admin, "GET /readyz", &[]).starts_with("HTTP/1.1 200")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn spans_are_written_and_judged_over_tls_with_a_login() {
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let bench = Bench::new(&format!("login-{mechanism}")).await;
        grant(&bench, "writer", "topic", &["Write", "Describe"]);
        grant(&bench, "judge", "topic", &["Read", "Describe"]);
        grant(&bench, "judge", "group", &["Read"]);
        let login = |user| Login {
            mechanism,
            ..Login::of(user)
        };
        let (writer, otlp) = bench.writer_with(&refs(&login("writer").settings()));
        for part in 0..2 {
            send_parts(&otlp, 1..=20, part);
        }
        let (judge, admin) = bench.judge_with(&refs(&login("judge").settings()));
        assert_eq!(bench.all_judged(1..=20, &[&admin]).await, 0);
        end(writer);
        end(judge);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_wrong_password_or_authority_is_told_without_the_secret() {
    let bench = Bench::new("refused").await;
    let wrong_password = |user, mechanism| Login {
        password: WRONG,
        mechanism,
        ..Login::of(user)
    };
    let untrusted = |user| Login {
        authority: "other.pem",
        ..Login::of(user)
    };
    let by_password = "the brokers do not accept user `judge` with ";
    let by_authority = "TLS with the brokers failed, see `kafka.tls`";
    for (login, expected) in [
        (wrong_password("judge", "SCRAM-SHA-512"), by_password),
        (wrong_password("judge", "PLAIN"), by_password),
        (untrusted("judge"), by_authority),
    ] {
        let (mut judge, admin) = bench.judge_at_start(&refs(&login.settings()));
        let line = line_with(&mut judge, "cannot read from Kafka");
        is_told(&line["why"], expected, login.mechanism);
        assert!(!is_ready(&admin), "{line}");
        end(judge);
    }
    let by_password = "the brokers do not accept user `writer` with ";
    for (login, expected) in [
        (wrong_password("writer", "SCRAM-SHA-512"), by_password),
        (untrusted("writer"), by_authority),
    ] {
        let settings = login.settings();
        let mut settings = refs(&settings);
        settings.push("shutdown.deadline=1s");
        let (mut writer, otlp) = bench.writer_with(&settings);
        let body = request(parts_of(1).concat());
        assert!(http(&otlp, "POST /v1/traces", &body).starts_with("HTTP/1.1 200"));
        let line = line_with(&mut writer, "paused");
        is_told(&line["message"], expected, login.mechanism);
    }
}

fn is_told(why: &serde_json::Value, expected: &str, mechanism: &str) {
    let why = why.as_str().unwrap();
    assert!(why.contains(expected), "{why}");
    assert!(
        expected.starts_with("TLS") || why.contains(mechanism),
        "{why}"
    );
    let address = set("SPANSCORE_TEST_SECURE_BROKER");
    assert!(why.contains(&address), "{why} at {address}");
    assert!(!why.contains(WRONG) && !why.contains(PASSWORD), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_writer_without_rights_keeps_its_spans_until_it_has_them() {
    let bench = Bench::new("may-not-write").await;
    let settings = Login::of("writer").settings();
    let mut settings = refs(&settings);
    settings.push("forward.retry.initial_interval=100ms");
    let (mut writer, otlp) = bench.writer_with(&settings);
    for part in 0..2 {
        send_parts(&otlp, 1..=10, part);
    }
    let line = line_with(&mut writer, "paused");
    let expected = format!(
        "`writer` may not write `{}`: it needs WRITE and DESCRIBE on the topic",
        bench.topic
    );
    assert!(
        line["message"].as_str().unwrap().contains(&expected),
        "{line}"
    );
    grant(&bench, "writer", "topic", &["Write", "Describe"]);
    line_with(&mut writer, "resumed");
    end(writer);
    let (judge, admin) = bench.judge();
    assert_eq!(bench.all_judged(1..=10, &[&admin]).await, 0);
    end(judge);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_judge_without_rights_begins_once_it_has_them() {
    type Right = (&'static str, &'static [&'static str]);
    let topic: Right = ("topic", &["Read", "Describe"]);
    let group: Right = ("group", &["Read"]);
    let describe: Right = ("topic", &["Describe"]);
    for (name, has, lacks) in [
        ("no-rights", [].as_slice(), [topic, group].as_slice()),
        ("no-group", &[topic], &[group]),
        ("no-topic", &[describe, group], &[topic]),
    ] {
        let bench = Bench::new(name).await;
        for (kind, operations) in has {
            grant(&bench, "judge", kind, operations);
        }
        let (writer, otlp) = bench.writer();
        for part in 0..2 {
            send_parts(&otlp, 1..=10, part);
        }
        end(writer);
        let (mut judge, admin) = bench.judge_at_start(&refs(&Login::of("judge").settings()));
        let line = line_with(&mut judge, "cannot read from Kafka");
        let expected = format!(
            "`judge` may not read `{0}`: it needs READ and DESCRIBE on the topic, READ on group \
             `{0}`",
            bench.topic
        );
        assert_eq!(line["why"], expected, "{name}");
        // A judge that lacks only the permission to read the topic joins the group and gets
        // partitions, so it is ready.
        assert!(!is_ready(&admin) || name == "no-topic", "{name}");
        for (kind, operations) in lacks {
            grant(&bench, "judge", kind, operations);
        }
        assert_eq!(bench.all_judged(1..=10, &[&admin]).await, 0);
        assert!(is_ready(&admin), "{name}");
        end(judge);
    }
}
