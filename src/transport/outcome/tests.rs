//! Tests the outcomes of codes, headers and bodies as peers send them. The tests do not prove that
//! a peer sends them.

use prost_types::Any;

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect()
}

fn word(answer: &DeliveryOutcome) -> &'static str {
    match answer {
        DeliveryOutcome::Delivered { .. } => "delivered",
        DeliveryOutcome::Retry { .. } => "retry",
        DeliveryOutcome::Partly { .. } => "partly",
        DeliveryOutcome::TooLarge { .. } => "too_large",
        DeliveryOutcome::Unknown { .. } => "unknown",
        DeliveryOutcome::Refused { reason, .. } => reason,
    }
}

#[test]
fn grpc_codes_mean_what_otlp_says() {
    let words: Vec<_> = (0..18)
        .map(|code| word(&DeliveryOutcome::of_grpc(Code::from_i32(code), "", None)))
        .collect();
    let expected = [
        "delivered",
        "retry",
        "refused",
        "invalid_argument",
        "retry",
        "refused",
        "refused",
        "permission_denied",
        "too_large",
        "refused",
        "retry",
        "too_large",
        "unimplemented",
        "refused",
        "retry",
        "retry",
        "unauthenticated",
        "refused",
    ];
    assert_eq!(words, expected);
}

#[test]
fn an_exhausted_peer_is_retried_with_a_delay_and_split_on_a_size_limit() {
    let of = |message: &str, info| {
        word(&DeliveryOutcome::of_grpc(
            Code::ResourceExhausted,
            message,
            info,
        ))
    };
    assert_eq!(of("", Some(RetryInfo::new(None))), "retry");
    assert_eq!(
        of("grpc: received message larger than max (5 vs. 4)", None),
        "too_large"
    );
    assert_eq!(of("Quota exceeded for tenant", None), "resource_exhausted");
}

#[test]
fn an_api_of_its_own_may_fail_today_and_not_know_a_span_yet() {
    let statuses = [
        200, 202, 204, 404, 408, 429, 500, 502, 503, 504, 507, 400, 401, 403, 405, 413, 415, 422,
        501, 302,
    ];
    let words = statuses.map(|status| {
        word(&DeliveryOutcome::of_api(
            status,
            &HeaderMap::new(),
            b"{\xff",
        ))
    });
    let (yes, again) = ("delivered", "retry");
    let no = [
        "invalid_argument",
        "unauthenticated",
        "permission_denied",
        "unimplemented",
        "too_large",
        "unimplemented",
        "invalid_argument",
    ];
    let expected = [
        [yes; 3].as_slice(),
        &["unknown"],
        &[again; 7],
        &no,
        &["unimplemented", "redirected"],
    ]
    .concat();
    assert_eq!(words, *expected);
    let DeliveryOutcome::Retry { after, .. } =
        DeliveryOutcome::of_api(429, &headers(&[("retry-after", "7")]), b"")
    else {
        panic!()
    };
    assert_eq!(after, Some(Duration::from_secs(7)));
}

#[test]
fn http_statuses_mean_what_otlp_says() {
    let statuses = [
        200, 202, 301, 400, 401, 403, 404, 413, 429, 500, 502, 503, 504,
    ];
    let words =
        statuses.map(|status| word(&DeliveryOutcome::of_http(status, &HeaderMap::new(), &[])));
    let expected = [
        "delivered",
        "delivered",
        "redirected",
        "invalid_argument",
        "unauthenticated",
        "permission_denied",
        "unimplemented",
        "too_large",
        "retry",
        "refused",
        "retry",
        "retry",
        "retry",
    ];
    assert_eq!(words, expected);
}

#[test]
fn retry_info_is_read_with_and_without_padding() {
    let info = RetryInfo::new(Some(Duration::from_millis(2_500)));
    let value = tonic_types::pb::RetryInfo {
        retry_delay: Some(prost_types::Duration {
            seconds: 2,
            nanos: 500_000_000,
        }),
    }
    .encode_to_vec();
    let details = vec![Any {
        type_url: RetryInfo::TYPE_URL.to_owned(),
        value,
    }];
    for message in ["", "x", "xy"] {
        let status = Status {
            code: 14,
            message: message.to_owned(),
            details: details.clone(),
        }
        .encode_to_vec();
        for encoded in [BASE64.encode(&status), BASE64_NOPAD.encode(&status)] {
            let answer = grpc_status(&headers(&[
                ("grpc-status", "14"),
                ("grpc-message", "b%C3%BCsy%"),
                ("grpc-status-details-bin", &encoded),
            ]));
            assert_eq!(
                answer,
                Some(DeliveryOutcome::Retry {
                    after: info.retry_delay,
                    why: "UNAVAILABLE: büsy%".to_owned()
                })
            );
        }
    }
}

#[test]
fn details_that_are_no_base64_do_not_hide_the_status() {
    let answer = grpc_status(&headers(&[
        ("grpc-status", "14"),
        ("grpc-status-details-bin", "***"),
    ]));
    assert_eq!(
        answer,
        Some(DeliveryOutcome::Retry {
            after: None,
            why: "UNAVAILABLE".to_owned()
        })
    );
}

#[test]
fn retry_after_is_seconds_or_a_date_by_the_peers_own_clock() {
    let after =
        |pairs: &[(&'static str, &str)]| retry_after(&headers(pairs)).map(|after| after.as_secs());
    assert_eq!(after(&[("retry-after", " 7 ")]), Some(7));
    let date = ("retry-after", "Sat, 21 Nov 2026 17:01:30 GMT");
    assert_eq!(
        after(&[date, ("date", "Sat, 21 Nov 2026 17:00:00 GMT")]),
        Some(90)
    );
    assert_eq!(
        after(&[date, ("date", "Sat, 21 Nov 2026 18:00:00 GMT")]),
        None
    );
    assert_eq!(after(&[date]), None);
    assert_eq!(after(&[("retry-after", "soon")]), None);
    assert_eq!(after(&[]), None);
}

#[test]
fn partial_success_is_read_from_protobuf_and_from_json() {
    let partial = |n_rejected, message: &str| DeliveryOutcome::Delivered {
        n_rejected,
        message: (!message.is_empty()).then(|| message.to_owned()),
    };
    assert_eq!(
        grpc_partial_success(&[0, 0, 0, 0, 4, 0x0a, 2, 8, 3]),
        partial(3, "")
    );
    assert_eq!(grpc_partial_success(&[]), partial(0, ""));
    assert_eq!(
        DeliveryOutcome::of_http(200, &HeaderMap::new(), &[0x0a, 4, 0x12, 2, b'h', b'm']),
        partial(0, "hm")
    );
    let json = headers(&[("content-type", "application/json; charset=utf-8")]);
    assert_eq!(
        DeliveryOutcome::of_http(
            200,
            &json,
            br#"{"partialSuccess":{"rejectedLogRecords":"4","errorMessage":"old"}}"#
        ),
        partial(4, "old")
    );
    assert_eq!(DeliveryOutcome::of_http(200, &json, b"{}"), partial(0, ""));
    assert_eq!(
        DeliveryOutcome::of_http(200, &headers(&[("content-type", "text/html")]), b"<html>"),
        partial(0, "")
    );
    // An invalid, negative count is read as zero.
    assert_eq!(
        grpc_partial_success(&[
            0, 0, 0, 0, 13, 0x0a, 11, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1
        ]),
        partial(0, "")
    );
}

#[test]
fn the_collectors_way_to_say_too_large_over_http_is_understood() {
    let status = Status {
        code: 3,
        message: "http: request body too large".to_owned(),
        details: Vec::new(),
    }
    .encode_to_vec();
    let answer = DeliveryOutcome::of_http(
        400,
        &headers(&[("content-type", "application/x-protobuf")]),
        &status,
    );
    assert_eq!(
        answer,
        DeliveryOutcome::TooLarge {
            why: "HTTP 400: http: request body too large".to_owned()
        }
    );
}

#[test]
fn errors_repeat_the_peers_words_on_one_short_line() {
    let why = |status, content_type: &str, body: &[u8]| match DeliveryOutcome::of_http(
        status,
        &headers(&[("content-type", content_type)]),
        body,
    ) {
        DeliveryOutcome::Refused { why, .. } => why,
        other => unreachable!("{other:?}"),
    };
    let status = Status {
        code: 3,
        message: "bad\nspan".to_owned(),
        details: Vec::new(),
    }
    .encode_to_vec();
    assert_eq!(
        why(400, "application/x-protobuf", &status),
        "HTTP 400: bad span"
    );
    assert_eq!(
        why(
            400,
            "application/json",
            br#"{"code":3,"message":"bad span"}"#
        ),
        "HTTP 400: bad span"
    );
    assert_eq!(why(400, "text/html", b"<html>"), "HTTP 400");
    assert_eq!(
        why(400, "text/plain", "é".repeat(400).as_bytes()),
        format!("HTTP 400: {}…", "é".repeat(LONGEST_WHY))
    );
}

#[test]
fn a_redirect_names_its_target_without_what_may_be_a_key() {
    let answer = DeliveryOutcome::of_http(
        308,
        &headers(&[("location", "https://backend.example/v1/traces?key=s3cret")]),
        &[],
    );
    let why = "HTTP 308: redirected to https://backend.example/v1/traces; redirects \
               are not followed, configure that endpoint instead";
    assert_eq!(
        answer,
        DeliveryOutcome::Refused {
            reason: "redirected",
            why: why.to_owned()
        }
    );
}

#[test]
fn a_peer_without_grpc_is_distinguished_from_a_busy_proxy() {
    let word = |status| {
        word(&DeliveryOutcome::of_http_instead_of_grpc(
            status,
            &HeaderMap::new(),
        ))
    };
    assert_eq!(
        [200, 204, 401, 413, 503].map(word),
        [
            "refused",
            "refused",
            "unauthenticated",
            "too_large",
            "retry"
        ]
    );
}
