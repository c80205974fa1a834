//! Tests the admin port's routes, without a socket, on tokio's paused clock. The tests do not prove
//! that a probe reaches them.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use tower::ServiceExt;

use super::*;

async fn get(admin: &AdminPort, path: &str) -> (u16, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = admin.clone().router().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    (
        status,
        String::from_utf8(
            to_bytes(response.into_body(), 1 << 20)
                .await
                .unwrap()
                .to_vec(),
        )
        .unwrap(),
    )
}

fn admin() -> AdminPort {
    let telemetry = Arc::default();
    let guard = Arc::new(
        Guard::try_new(
            ([0, 0, 0, 0], 13133).into(),
            &crate::config::Admin::default(),
            &telemetry,
        )
        .unwrap(),
    );
    AdminPort {
        telemetry,
        metrics: Vec::new(),
        scrapes: Arc::default(),
        started_unix_nanos: 1_795_000_000_000_000_000,
        otlp: OtlpAddresses {
            grpc: None,
            http: Some(([10, 0, 0, 7], 14318).into()),
        },
        guard,
        api: Router::new(),
        page: Router::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_the_phases_and_liveness_does_not() {
    let admin = admin();
    let _heartbeat = admin
        .telemetry
        .heartbeat("pipeline", Instant::now().into_std());
    let cases = [
        (
            None,
            503,
            "starting: a port is not bound yet, or a Kafka group not joined\n",
        ),
        (Some(Phase::Serving), 200, "ready\n"),
        (Some(Phase::Draining), 503, "draining: told to stop\n"),
    ];
    for (phase, status, text) in cases {
        if let Some(phase) = phase {
            admin.telemetry.enter(phase);
        }
        assert_eq!(get(&admin, "/readyz").await, (status, text.to_owned()));
        assert_eq!(
            get(&admin, "/livez").await,
            (200, "ok: pipeline\n".to_owned())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stuck_worker_fails_both_probes_within_ten_seconds_until_its_next_beat() {
    let admin = admin();
    admin.telemetry.enter(Phase::Serving);
    let stuck = admin
        .telemetry
        .heartbeat("pipeline", Instant::now().into_std());
    let beating = admin
        .telemetry
        .heartbeat("forward", Instant::now().into_std());
    tokio::time::advance(Duration::from_secs(10)).await;
    beating.beat(Instant::now().into_std());
    for path in ["/livez", "/readyz"] {
        assert_eq!(
            get(&admin, path).await,
            (503, "pipeline has been stuck for 10 s\n".to_owned())
        );
    }
    stuck.beat(Instant::now().into_std());
    assert_eq!(
        get(&admin, "/livez").await,
        (200, "ok: pipeline, forward\n".to_owned())
    );
    drop(beating);
    for path in ["/livez", "/readyz"] {
        assert_eq!(
            get(&admin, path).await,
            (503, "forward has ended\n".to_owned())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_are_open_metrics_with_those_of_further_sources() {
    let mut admin = admin();
    admin
        .metrics
        .push(Arc::new(|page| page.gauge("more", "More", 1)));
    let response = admin
        .clone()
        .router()
        .oneshot(Request::get("/metrics").body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        response.headers()["content-type"],
        MetricsPage::CONTENT_TYPE
    );
    let (status, text) = get(&admin, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "spanscore_receiver_accepted_spans_total 0\n",
        "process_start_time_seconds 1795000000.0\n",
        "more 1\n# EOF\n",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let cpu_seconds = text
        .lines()
        .find_map(|line| line.strip_prefix("process_cpu_seconds_total "))
        .unwrap();
    assert!(cpu_seconds.parse::<f64>().unwrap() > 0.0);
}

#[tokio::test(start_paused = true)]
async fn telemetry_sent_here_is_told_where_it_goes_and_counted() {
    let admin = admin();
    let (status, text) = get(&admin, "/v1/traces").await;
    assert_eq!(status, 404);
    assert!(text.contains("send OTLP to 10.0.0.7:14318\n"), "{text}");
    let n_misdirected = || {
        let name = "spanscore_receiver_misdirected_requests_total";
        admin.telemetry.counter(name, &[("reason", "port")])
    };
    assert_eq!(n_misdirected(), 0, "a look with a browser is no mistake");
    let export = Request::post("/v1/traces").body(Body::empty()).unwrap();
    let response = admin.clone().router().oneshot(export).await.unwrap();
    assert_eq!((response.status().as_u16(), n_misdirected()), (404, 1));
}
