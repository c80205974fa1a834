//! Tests the guard's rule as a table, without a socket. The tests do not prove that certificates
//! are verified (rustls does that), nor that the comparison takes constant time (`subtle`
//! guarantees it).

use std::path::Path;

use axum::Router;
use axum::routing::get;
use tower::ServiceExt;

use super::*;
use crate::config::{Admin, ServerTls};

const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 13133);
const OUTSIDE: ([u8; 4], u16) = ([10, 1, 2, 3], 13133);

fn admin(token_file: Option<&Path>, client_ca: bool) -> Admin {
    let tls = ServerTls {
        cert_file: "cert".into(),
        key_file: "key".into(),
        client_ca_file: client_ca.then(|| "ca".into()),
    };
    Admin {
        token_file: token_file.map(Path::to_owned),
        tls: Some(tls),
        ..Admin::default()
    }
}

async fn send(guard: &Arc<Guard>, headers: &[(&str, &str)], certified: bool) -> (u16, String) {
    let layer = axum::middleware::from_fn_with_state(guard.clone(), guarded);
    let router = Router::new()
        .route("/v1/status", get(|| async { "in" }))
        .layer(layer);
    let mut request = Request::get("/v1/status").body(Body::empty()).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(
            header::HeaderName::try_from(*name).unwrap(),
            HeaderValue::from_str(value).unwrap(),
        );
    }
    if certified {
        request.extensions_mut().insert(CertifiedClient);
    }
    let response = router.oneshot(request).await.unwrap();
    let reason = response
        .headers()
        .get("grpc-status")
        .map(|code| format!("grpc-status {}", code.to_str().unwrap()));
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), 1 << 16)
        .await
        .unwrap();
    (
        status,
        reason.unwrap_or_else(|| String::from_utf8(body.to_vec()).unwrap()),
    )
}

fn guard(address: ([u8; 4], u16), admin: &Admin) -> Arc<Guard> {
    Arc::new(Guard::try_new(address.into(), admin, &Arc::default()).unwrap())
}

#[tokio::test]
async fn on_loopback_programs_of_this_host_pass_and_browsers_of_other_origins_do_not() {
    let guard = guard(LOOPBACK, &Admin::default());
    let passing: [&[(&str, &str)]; 8] = [
        &[("host", "localhost:13133")],
        &[("host", "LocalHost")],
        &[("host", "127.0.0.1:8080")],
        &[("host", "127.9.9.9")],
        &[("host", "[::1]:13133")],
        &[
            ("host", "localhost:13133"),
            ("origin", "http://localhost:13133"),
        ],
        &[("host", "localhost:13133"), ("sec-fetch-site", "none")],
        &[
            ("host", "localhost:13133"),
            ("sec-fetch-site", "same-origin"),
            ("origin", "http://localhost:13133"),
        ],
    ];
    for headers in passing {
        assert_eq!(
            send(&guard, headers, false).await,
            (200, "in".to_owned()),
            "{headers:?}"
        );
    }
    let refused: [&[(&str, &str)]; 12] = [
        &[],
        &[("host", "evil.example:13133")],
        &[("host", "localhost.evil.example")],
        &[("host", "10.1.2.3")],
        &[("host", "0.0.0.0:13133")],
        &[("host", "127.0.0.1.nip.io")],
        &[("host", "evil.example"), ("origin", "http://evil.example")],
        &[
            ("host", "localhost:13133"),
            ("origin", "https://evil.example"),
        ],
        &[
            ("host", "localhost:13133"),
            ("origin", "http://localhost:8000"),
        ],
        &[("host", "localhost:13133"), ("origin", "null")],
        &[
            ("host", "localhost:13133"),
            ("sec-fetch-site", "cross-site"),
        ],
        &[("host", "localhost:13133"), ("sec-fetch-site", "same-site")],
    ];
    for headers in refused {
        let (status, body) = send(&guard, headers, false).await;
        assert!(
            status == 403 && body.contains("\"detail\""),
            "{headers:?}: {status} {body}"
        );
    }
}

#[tokio::test]
async fn a_port_open_to_the_network_is_refused_with_a_remedy() {
    let guard = guard(OUTSIDE, &admin(None, false));
    let (status, body) = send(&guard, &[("host", "localhost")], false).await;
    assert_eq!(status, 403);
    assert!(
        body.contains(
            "bind `admin.listen` to 127.0.0.1, set `admin.token_file`, or set `admin.tls`"
        ),
        "{body}"
    );
    let grpc = [("host", "localhost"), ("content-type", "application/grpc")];
    assert_eq!(
        send(&guard, &grpc, false).await,
        (200, "grpc-status 7".to_owned())
    );
}

#[tokio::test]
async fn a_configured_token_is_required_and_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    for address in [LOOPBACK, OUTSIDE] {
        std::fs::write(&file, "first\n").unwrap();
        let guard = guard(address, &admin(Some(&file), false));
        let bearer = |token: &str| [("authorization", format!("Bearer {token}"))];
        let status = async |headers: &[(&str, String)]| {
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            send(&guard, &headers, false).await.0
        };
        assert_eq!(status(&bearer("first")).await, 200);
        assert_eq!(
            status(&[("authorization", "bearer first".to_owned())]).await,
            200
        );
        for wrong in ["second", "firs", "first2", ""] {
            assert_eq!(status(&bearer(wrong)).await, 401, "{wrong:?}");
        }
        assert_eq!(status(&[]).await, 401);
        assert_eq!(
            status(&[("authorization", "Basic first".to_owned())]).await,
            401
        );
        std::fs::write(&file, "second").unwrap();
        assert_eq!(
            (
                status(&bearer("first")).await,
                status(&bearer("second")).await
            ),
            (401, 200)
        );
        // A valid token does not admit web pages.
        let [token] = bearer("second");
        assert_eq!(
            status(&[
                token,
                ("host", "a".to_owned()),
                ("origin", "http://b".to_owned())
            ])
            .await,
            403
        );
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status(&bearer("second")).await, 401);
        let grpc = [("content-type", "application/grpc")];
        assert_eq!(
            send(&guard, &grpc, false).await,
            (200, "grpc-status 16".to_owned())
        );
        assert!(
            guard
                .telemetry
                .counter("spanscore_api_refused_total", &[("reason", "wrong_token")])
                >= 6
        );
    }
}

#[tokio::test]
async fn a_client_authority_requires_a_certificate_besides_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first").unwrap();
    for address in [LOOPBACK, OUTSIDE] {
        let certificates = guard(address, &admin(None, true));
        assert_eq!(
            send(&certificates, &[("host", "localhost")], false).await.0,
            403
        );
        assert_eq!(send(&certificates, &[], true).await.0, 200);
        let both = guard(address, &admin(Some(&file), true));
        assert_eq!(
            send(&both, &[("authorization", "Bearer first")], false)
                .await
                .0,
            403
        );
        assert_eq!(send(&both, &[], true).await.0, 401);
        assert_eq!(
            send(&both, &[("authorization", "Bearer first")], true)
                .await
                .0,
            200
        );
    }
}

#[test]
fn a_token_file_that_holds_no_token_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let error = || {
        Guard::try_new(LOOPBACK.into(), &admin(Some(&file), false), &Arc::default())
            .unwrap_err()
            .to_string()
    };
    assert!(error().contains("cannot be read"), "{}", error());
    for (text, what) in [
        ("\n", "is empty"),
        ("two words", "more than one word"),
        ("ü", "more than one word"),
    ] {
        std::fs::write(&file, text).unwrap();
        assert!(error().contains(what), "{}", error());
    }
    std::fs::write(&file, "a".repeat(5000)).unwrap();
    assert!(error().contains("more than one word"), "{}", error());
}

#[tokio::test]
async fn the_page_needs_no_token_and_may_be_linked_to_but_not_used_by_other_origins() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let with_token = guard(OUTSIDE, &admin(Some(&token), false));
    let with_certificate = guard(OUTSIDE, &admin(None, true));
    let (loopback, closed) = (
        guard(LOOPBACK, &Admin::default()),
        guard(OUTSIDE, &Admin::default()),
    );
    let followed: &[(&str, &str)] = &[
        ("host", "localhost:13133"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    let framed = [&followed[..3], &[("sec-fetch-dest", "iframe")]].concat();
    let included: &[(&str, &str)] = &[
        ("host", "localhost:13133"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "no-cors"),
    ];
    let rebound: &[(&str, &str)] = &[("host", "evil.example:13133")];
    let cases = [
        (&loopback, followed, 200),
        (&loopback, framed.as_slice(), 403),
        (&loopback, included, 403),
        (&loopback, rebound, 403),
        (&with_token, followed, 200),
        (&with_token, included, 403),
        (&with_certificate, followed, 403),
        (&closed, followed, 403),
    ];
    for (guard, headers, status) in cases {
        let layer = axum::middleware::from_fn_with_state(guard.clone(), guarded_page);
        let router = Router::new()
            .route("/", get(|| async { "in" }))
            .layer(layer);
        let mut request = Request::get("/").body(Body::empty()).unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(
                header::HeaderName::try_from(*name).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{headers:?}");
    }
    assert_eq!(send(&with_token, followed, false).await.0, 403, "the API");
}
