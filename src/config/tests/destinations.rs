//! Tests of destinations and memory shares. They do not prove that a destination answers.

use super::super::runtime::{LEAST_CONNECTIONS, OWN_USE};
use super::super::{Budgets, Config, Endpoint, Off, Protocol, Shape, Signal};
use super::config;
use Protocol::{Grpc, HttpProtobuf};

#[test]
fn an_endpoint_says_its_protocol_and_port_or_leaves_them_to_be_guessed() {
    let cases = [
        ("http://localhost:4317", None, "http://localhost:4317", Grpc),
        (
            "http://localhost:4318",
            None,
            "http://localhost:4318",
            HttpProtobuf,
        ),
        (
            "http://localhost:4318",
            Some(Grpc),
            "http://localhost:4318",
            Grpc,
        ),
        ("http://collector", None, "http://collector:4317", Grpc),
        ("http://collector/", None, "http://collector:4317", Grpc),
        (
            "http://collector",
            Some(HttpProtobuf),
            "http://collector:4318",
            HttpProtobuf,
        ),
        (
            "https://otlp.example.com",
            None,
            "https://otlp.example.com:443",
            Grpc,
        ),
        (
            "https://otlp.example.com/otlp/",
            None,
            "https://otlp.example.com:443/otlp",
            HttpProtobuf,
        ),
        (
            "HTTPS://otlp.example.com:8443/a/b",
            None,
            "https://otlp.example.com:8443/a/b",
            HttpProtobuf,
        ),
        ("http://[::1]:4317", None, "http://[::1]:4317", Grpc),
        (
            "http://[2001:db8::1]",
            Some(HttpProtobuf),
            "http://[2001:db8::1]:4318",
            HttpProtobuf,
        ),
        (
            " http://my_host-1.svc.cluster.local:55680 ",
            None,
            "http://my_host-1.svc.cluster.local:55680",
            Grpc,
        ),
    ];
    for (text, given, url, protocol) in cases {
        let (endpoint, found) =
            Endpoint::parse(text, given).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (endpoint.to_string().as_str(), found),
            (url, protocol),
            "{text}"
        );
    }
    assert_eq!(
        Endpoint::parse("http://[::1]:4317", None).unwrap().0.host,
        "::1"
    );
    for text in [
        "",
        "localhost:4317",
        "http://",
        "http://a:0",
        "http://a:70000",
        "http://a:x",
        "http://[::1",
        "http://a b",
        "http://a/b c",
        "http://u@a",
        "unix:///a",
        "http://a:",
    ] {
        assert!(Endpoint::parse(text, None).is_err(), "{text}");
    }
}

#[test]
fn without_an_endpoint_nothing_is_sent_and_each_shape_says_why() {
    let config = Config::default();
    assert!(config.forward_destination().is_none());
    let why = config.score_destination(Shape::Event).unwrap_err();
    assert_eq!(why, Off::NoEndpoint(Shape::Event));
    insta::assert_snapshot!(why, @"there is no endpoint: set `forward.endpoint`, \
        `scores.endpoint` or `scores.event.endpoint`");
}

#[test]
fn scores_follow_forward_for_the_signals_it_takes() {
    let config = config(
        "forward: { endpoint: \"http://a:4317\", signals: [traces], compression: zstd, \
         timeout: 3s, headers: { K: v } }\nscores: { metrics: { enabled: false } }",
    );
    let span = config.score_destination(Shape::Span).unwrap();
    assert_eq!(Some(&span), config.forward_destination().as_ref());
    assert_eq!(span.origin, "forward.endpoint (spanscore.yaml:1)");
    assert_eq!(span.headers[0].0, "k");
    insta::assert_snapshot!(
        config.score_destination(Shape::Event).unwrap_err(),
        @"`forward.signals` does not have `logs`: give `scores.event` an endpoint of its own, or \
            switch it off",
    );
    insta::assert_snapshot!(
        config.score_destination(Shape::Metrics).unwrap_err(),
        @"`scores.metrics.enabled` is false",
    );
}

#[test]
fn a_shape_takes_its_own_then_the_one_of_scores_then_that_of_forward() {
    let config = config(
        r#"
forward: { endpoint: "http://a:4317", protocol: grpc, signals: [traces], compression: zstd,
  timeout: 3s, headers: { k: a } }
scores:
  endpoint: http://b:4317
  headers: { k: b }
  timeout: 4s
  tls: { server_name: b }
  span: { endpoint: "http://c:4318/base", protocol: http/protobuf, compression: none, headers: {} }
  event: { timeout: 5s }
"#,
    );
    let span = config.score_destination(Shape::Span).unwrap();
    assert_eq!(span.origin, "scores.span.endpoint (spanscore.yaml:9)");
    assert_eq!(span.endpoint.to_string(), "http://c:4318/base");
    assert_eq!(span.protocol, HttpProtobuf);
    assert!(span.headers.is_empty());
    assert_eq!(span.timeout.as_secs(), 4);
    assert_eq!(span.tls.server_name.as_deref(), Some("b"));
    // `scores` has its own endpoint, so the signals that `forward` accepts do not matter.
    let event = config.score_destination(Shape::Event).unwrap();
    assert_eq!(event.origin, "scores.endpoint (spanscore.yaml:5)");
    assert_eq!(
        (
            event.protocol,
            event.timeout.as_secs(),
            event.headers[0].1.expose()
        ),
        (Grpc, 5, "b")
    );
    assert_eq!(event.compression, super::super::Compression::Zstd);
    let metrics = config.score_destination(Shape::Metrics).unwrap();
    assert_eq!(
        (metrics.timeout.as_secs(), Shape::Metrics.signal()),
        (4, Signal::Metrics)
    );
}

#[test]
fn memory_is_divided_by_percent_after_our_own_share() {
    let mib = 1 << 20;
    let budgets = Config::default().budgets(None);
    assert_eq!(budgets.limit, 488 * mib);
    assert_eq!(budgets.forward_queue, 488 * mib / 100 * 30);
    assert_eq!(budgets.in_flight, 488 * mib / 100 * 10);
    assert_eq!(budgets.open, 488 * mib / 100 * 20);
    assert_eq!(
        (
            budgets.recent + budgets.page,
            budgets.scores,
            budgets.scoring_queue
        ),
        (budgets.in_flight, budgets.in_flight, budgets.in_flight)
    );
    assert_eq!(
        (budgets.connections, budgets.admin_connections),
        (
            (488 * mib / 100 * 10 + 2 * mib) / 4 * 3,
            (488 * mib / 100 * 10 + 2 * mib) / 4
        )
    );
    // An eighth of the cgroup's limit stays unused.
    assert_eq!(
        Config::default().budgets(Some(128 * mib)).limit,
        (128 - 16 - 24) * mib
    );
    // At least 16 MiB stay unused.
    assert_eq!(
        Config::default().budgets(Some(64 * mib)).limit,
        (64 - 16 - 24) * mib
    );
    // Even in a tiny cgroup the limit is usable.
    assert_eq!(Config::default().budgets(Some(mib)).limit, 8 * mib);
    let config = config(
        "memory: { limit: 224MiB }\nforward: { queue: { max_size: 64MiB } }\
         \nassemble: { open: { max_size: 10MiB } }",
    );
    let budgets = config.budgets(Some(mib));
    assert_eq!(
        (budgets.limit, budgets.forward_queue, budgets.open),
        (200 * mib, 64 * mib, 10 * mib)
    );
}

/// All counted memory and the memory of the process itself add up to the limit: the table in
/// docs/design.md#memory.
#[test]
fn the_shares_add_up_to_the_limit() {
    let mib = 1 << 20;
    let limits = [32, 64, 112, 128, 512, 4096].into_iter();
    for (limit, only_reads) in limits.flat_map(|limit| [(limit, false), (limit, true)]) {
        let mut config = config(&format!("memory: {{ limit: {limit}MiB }}"));
        config.kafka.read.enabled = only_reads;
        // Kafka's queue takes its share from the forward queue, so the sum stays the same.
        config.kafka.write.enabled = !only_reads && limit % 128 == 0;
        let Budgets {
            limit: shared,
            forward_queue,
            kafka,
            in_flight,
            open,
            recent,
            scores,
            scoring_queue,
            connections,
            admin_connections,
            page,
        } = config.budgets(None);
        let own = OWN_USE - LEAST_CONNECTIONS;
        let counted = forward_queue
            + kafka
            + in_flight
            + open
            + recent
            + scores
            + scoring_queue
            + connections
            + admin_connections
            + page;
        assert_eq!(shared + OWN_USE, limit * mib);
        assert_eq!(forward_queue + in_flight == 0, only_reads);
        let spare = (limit * mib).checked_sub(own + counted);
        // Percentages are rounded down.
        assert!(
            spare.is_some_and(|spare| spare < 1_000),
            "{limit} MiB: {spare:?}"
        );
    }
}

#[test]
fn one_trace_gets_at_most_a_quarter_of_the_budget() {
    let config = config("assemble: { open: { max_size: 10MiB }, restart_guard: 0, inactive: 90s }");
    let settings = config.assemble_settings(&config.budgets(None));
    assert_eq!(settings.size_limit, 10 << 18);
    assert_eq!(settings.max_open_size, 10 << 20);
    assert_eq!(settings.restart_guard, None);
    assert_eq!(settings.inactive.as_secs(), 90);
    assert_eq!(settings.settle.as_secs(), 5);
    let settings = Config::default().assemble_settings(&Config::default().budgets(Some(4 << 30)));
    assert_eq!(settings.size_limit, 16 << 20);
    assert_eq!(
        settings.restart_guard.map(|guard| guard.as_secs()),
        Some(120)
    );
}
