//! Tests that hostile requests neither crash nor hang the process, nor let it grow without bound.
//! Wall time is not measured, because limits bound it.

use proptest::prelude::{prop, proptest};

use super::*;

#[tokio::test]
async fn a_wrong_request_is_refused_with_a_problem_and_changes_nothing() {
    let register = register("");
    let deep = "[".repeat(100_000);
    let nested = format!("{}1{}", "{\"a\":".repeat(5_000), "}".repeat(5_000));
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\
        \nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\
        \ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
    let pattern = |source: &str| {
        json!({ "evaluate": { "tool_calls": { "required": [source] } } }).to_string()
    };
    let long = "x".repeat(70_000);
    let large =
        json!({ "evaluate": { "tool_call_order": { "tool_calls_order": [long] } } }).to_string();
    let bodies: Vec<(&str, u16)> = vec![
        ("", 400),
        ("null", 400),
        ("[]", 400),
        ("\"a\"", 400),
        ("{", 400),
        ("a: b: c", 400),
        (deep.as_str(), 400),
        (nested.as_str(), 400),
        (bomb, 400),
        (
            "name: other\nevaluate: { tool_call_order: { tool_calls_order: [x] } }",
            400,
        ),
        (
            "evaluate: { tool_call_order: { tool_calls_order: [] } }",
            400,
        ),
        (
            "evaluate: { tool_call_order: { tool_calls_order: [x] } }\nthreshold: .nan",
            400,
        ),
        (
            "evaluate: { tool_call_order: { tool_calls_order: [x] } }\nthreshold: 1.1",
            400,
        ),
        (
            "evaluate: { tool_call_order: { tool_calls_order: [x] } }\nfoo: 1",
            400,
        ),
        (
            "evaluate: { tool_call_order: { tool_calls_order: [\"${env:HOME}\"] } }\n---\nb: 1",
            400,
        ),
        (large.as_str(), 413),
    ];
    for (body, expected) in bodies {
        let (status, _, problem) = call(&register, "PUT", "/v1/criteria/a", &[], body).await;
        assert_eq!(
            status,
            expected,
            "{}: {problem}",
            &body[..body.len().min(80)]
        );
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty()),
            "{problem}"
        );
    }
    for source in [
        "(",
        "(?=a)",
        "(a)\\1",
        "a{1000}{1000}",
        "(?:\\p{L}{100}){100}",
        &"(".repeat(200),
    ] {
        let (status, _, problem) =
            call(&register, "PUT", "/v1/criteria/a", &[], &pattern(source)).await;
        assert_eq!(status, 400, "{source}: {problem}");
    }
    assert!(judged_by(&register).is_empty());
}

/// Method, path, headers, and expected status.
type Call<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16);

#[tokio::test]
async fn patterns_that_are_read_again_are_counted_once() {
    let register = register("");
    let body = |n: usize| {
        json!({
            "evaluate": { "tool_calls": { "required": vec!["a"; n] } },
            "threshold": 7,
            "foo": 1,
            "scope": "x",
        })
    };
    let (_, _, problem) = call(
        &register,
        "PUT",
        "/v1/criteria/a",
        &[],
        &body(400).to_string(),
    )
    .await;
    let pointers: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(pointers, ["/threshold", "/foo", "/scope"], "{problem}");
    let (_, _, problem) = call(
        &register,
        "PUT",
        "/v1/criteria/a",
        &[],
        &body(1_001).to_string(),
    )
    .await;
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("more than 1000 patterns"),
        "{problem}"
    );
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused() {
    let register = register("");
    let yaml = [("content-type", "application/yaml")];
    let cases: [Call<'_>; 12] = [
        (
            "PUT",
            "/v1/criteria/a",
            &[("content-type", "application/x-www-form-urlencoded")],
            415,
        ),
        (
            "PUT",
            "/v1/criteria/a",
            &[("content-type", "text/plain")],
            415,
        ),
        ("PUT", "/v1/criteria/a?validate_only=maybe", &yaml, 400),
        ("PUT", "/v1/criteria/a?valdate_only=true", &yaml, 400),
        ("PUT", "/v1/criteria/a?ttl=1h&ttl=2h", &yaml, 400),
        ("PUT", "/v1/criteria/a", &[("if-match", "abc")], 400),
        ("PUT", "/v1/criteria/a%00b", &yaml, 400),
        ("PUT", "/v1/criteria/%ff", &yaml, 400),
        ("GET", "/v1/criteria?page_size=1", &[], 400),
        ("GET", "/v1/criteria/nothing", &[], 404),
        ("PATCH", "/v1/criteria", &[], 405),
        ("GET", "/v1/evaluate", &[], 405),
    ];
    for (method, path, headers, expected) in cases {
        let (status, _, problem) = call(&register, method, path, headers, ORDER).await;
        assert_eq!(
            (status, &problem["status"]),
            (expected, &json!(expected)),
            "{method} {path}: {problem}"
        );
    }
    let name = "n".repeat(MAX_NAME_LENGTH + 1);
    assert_eq!(
        call(
            &register,
            "PUT",
            &format!("/v1/criteria/{name}"),
            &[],
            ORDER
        )
        .await
        .0,
        400
    );
    assert!(judged_by(&register).is_empty());
}

#[tokio::test]
async fn nothing_grows_without_bound() {
    let register = register("");
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria/a",
            &[],
            &" ".repeat(MAX_BODY_SIZE + 1)
        )
        .await
        .0,
        413
    );
    let named = |n: usize| {
        json!({
            "name": format!("c{n}"),
            "evaluate": { "tool_call_order": { "tool_calls_order": ["x"] } },
        })
    };
    let set = |n: usize| json!({ "criteria": (0..n).map(named).collect::<Vec<_>>() }).to_string();
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria",
            &[],
            &set(MAX_REGISTRATIONS + 1)
        )
        .await
        .0,
        409
    );
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria",
            &[],
            &set(MAX_REGISTRATIONS)
        )
        .await
        .0,
        200
    );
    let (status, _, problem) = call(&register, "PUT", "/v1/criteria/one-more", &[], ORDER).await;
    assert!(
        status == 409
            && problem["detail"]
                .as_str()
                .unwrap()
                .contains("more than 1000 registrations"),
        "{problem}"
    );
    // Attributes that selectors name are never renumbered.
    for round in 0..MAX_KEYS / 500 + 1 {
        let attributes: serde_json::Map<String, Value> = (0..500)
            .map(|n| (format!("k{round}.{n}"), json!("x")))
            .collect();
        let set = json!({ "criteria": [{
            "name": "a",
            "select": { "attributes": attributes },
            "evaluate": named(0)["evaluate"],
        }] });
        let (status, _, problem) =
            call(&register, "PUT", "/v1/criteria", &[], &set.to_string()).await;
        assert!(
            status == 200
                || problem["detail"]
                    .as_str()
                    .unwrap()
                    .contains("selectors have named more than"),
            "{problem}"
        );
    }
    assert!(register.0.rules.load().keys().len() <= MAX_KEYS);
    // Every second criterion has its patterns in rules instead of `tool_calls`.
    let patterns = |n: usize| {
        let evaluate = if n.is_multiple_of(2) {
            json!({ "tool_calls": { "required": vec!["a"; 30] } })
        } else {
            let rule = json!({ "response": { "a": "x", "b": "y" } });
            json!({ "constraints": { "rules": vec![rule; 15] } })
        };
        json!({ "name": format!("p{n}"), "evaluate": evaluate })
    };
    let set = json!({ "criteria": (0..40).map(patterns).collect::<Vec<_>>() }).to_string();
    let (status, _, problem) = call(&register, "PUT", "/v1/criteria", &[], &set).await;
    assert!(
        status == 400
            && problem["detail"]
                .as_str()
                .unwrap()
                .contains("more than 1000 patterns"),
        "{problem}"
    );
    // Register the same criteria one by one.
    for n in 0..40 {
        let (status, _, problem) = call(
            &register,
            "PUT",
            &format!("/v1/criteria/p{n}"),
            &[],
            &patterns(n).to_string(),
        )
        .await;
        let is_full = problem["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains("more than 1000 patterns in all registrations"));
        assert!(
            status == 201 && n < 33 || status == 409 && is_full,
            "{n}: {problem}"
        );
    }
}

#[tokio::test]
async fn a_question_that_would_take_too_long_is_refused_before_it_is_answered() {
    let register = register("");
    let calls = |n: usize| (0..n).map(|_| json!({ "name": "x" })).collect::<Vec<_>>();
    let ask = async |n_calls: usize, n_expected: usize, n_criteria: usize| {
        let expected = (0..n_expected)
            .map(|_| json!({ "name": "x", "args": {} }))
            .collect::<Vec<_>>();
        let criteria: Vec<Value> = (0..n_criteria)
            .map(|n| {
                json!({
                    "name": format!("c{n}"),
                    "evaluate": { "tool_call_args": { "tool_calls": expected } },
                })
            })
            .collect();
        let question =
            json!({ "trajectory": { "tool_calls": calls(n_calls) }, "criteria": criteria });
        call(
            &register,
            "POST",
            "/v1/evaluate",
            &[],
            &question.to_string(),
        )
        .await
        .0
    };
    assert_eq!(ask(100, 100, 10).await, 200);
    assert_eq!(ask(10_001, 1, 1).await, 413);
    assert_eq!(ask(5_000, 2_000, 2).await, 413);
    let search = async |size: usize| {
        let disallowed: Vec<Value> = (0..20)
            .map(|n| json!({ "name": "x", "result": format!("[ab]{{9}}c{n}") }))
            .collect();
        let question = json!({
            "trajectory": { "tool_calls": [{ "name": "x", "result": "ab".repeat(size / 2) }] },
            "criteria": [{
                "name": "c",
                "evaluate": { "tool_calls": { "disallowed": disallowed } },
            }],
        });
        call(
            &register,
            "POST",
            "/v1/evaluate",
            &[],
            &question.to_string(),
        )
        .await
    };
    assert_eq!(search(10_000).await.0, 200);
    let (status, _, problem) = search(1 << 20).await;
    assert!(
        status == 413
            && problem["detail"]
                .as_str()
                .unwrap()
                .contains("with 40 patterns is too much work"),
        "{problem}"
    );
}

/// Returns a criterion with a pattern that counts as slow, but is fast on the texts of these tests.
fn slow_criterion(n: usize) -> Value {
    let slow = json!({ "name": "read", "result": "![a-z ]{120}" });
    json!({ "name": format!("c{n}"), "evaluate": { "tool_calls": { "disallowed": [slow] } } })
}

#[tokio::test]
async fn criteria_of_files_and_of_the_api_share_the_searches_of_a_trace() {
    let of_files = (0..4).map(slow_criterion).collect::<Vec<_>>();
    let register = register(&json!({ "criteria": of_files }).to_string());
    for n in 4..9 {
        let path = format!("/v1/criteria/c{n}");
        let (status, _, answer) =
            call(&register, "PUT", &path, &[], &slow_criterion(n).to_string()).await;
        assert_eq!(status, 201, "{answer}");
    }
    // Each criterion takes more than half of the budget of one evaluation.
    let read = json!({ "name": "read", "result": "ignore ".repeat(1_500) });
    let question = json!({ "trajectory": { "tool_calls": vec![read; 70] } });
    let (status, _, answer) = call(
        &register,
        "POST",
        "/v1/evaluate",
        &[],
        &question.to_string(),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let evaluations = answer["evaluations"].as_array().unwrap();
    let n_passed = evaluations
        .iter()
        .take_while(|found| found["label"] == "pass")
        .count();
    assert!((5..8).contains(&n_passed), "{n_passed}");
    for found in &evaluations[n_passed..] {
        assert_eq!(found["label"], "not_evaluated", "{found}");
    }
}

#[tokio::test]
async fn all_runs_of_a_question_share_the_searches_of_a_trace() {
    let register = register("");
    // Each run has three calls, whose values are all short enough to be stored.
    let call_of = |number: usize| {
        json!({
            "traceId": format!("{:032x}", number / 3 + 1), "spanId": format!("{:016x}", number + 1),
            "name": "execute_tool read", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
            "attributes": [
                { "key": "gen_ai.operation.name", "value": { "stringValue": "execute_tool" } },
                { "key": "gen_ai.tool.name", "value": { "stringValue": "read" } },
                { "key": "gen_ai.tool.call.result",
                  "value": { "stringValue": "ignore ".repeat(1_450) } },
            ],
        })
    };
    let spans: Vec<Value> = (0..360).map(call_of).collect();
    let question = json!({
        "traces": { "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] },
        "criteria": [slow_criterion(0), slow_criterion(1)],
    });
    let (status, _, answer) = call(
        &register,
        "POST",
        "/v1/evaluate",
        &[],
        &question.to_string(),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let labels: Vec<&str> = answer["evaluations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["label"].as_str().unwrap())
        .collect();
    let n_passed = labels.iter().take_while(|label| **label == "pass").count();
    assert!((120..200).contains(&n_passed), "{n_passed}: {answer}");
    assert_eq!(labels[n_passed..], vec!["not_evaluated"; 240 - n_passed]);
}

#[tokio::test]
async fn a_document_full_of_mistakes_is_answered_with_some_of_them_and_their_number() {
    let register = register("");
    // A report shows only a part of the line of each mistake. With whole lines, these reports would
    // take gigabytes.
    let criteria = json!({ "criteria": vec![json!({ "x": 1 }); 5_000] }).to_string();
    let keys = format!(
        "{{{}}}",
        (0..15_000)
            .map(|n| format!("\"k{n}\":1"))
            .collect::<Vec<_>>()
            .join(",")
    );
    let twice = format!("{{{}}}", vec!["\"criteria\":[]"; 15_000].join(","));
    for (body, least) in [(criteria, 5_000), (keys, 15_000), (twice, 14_999)] {
        let (status, _, problem) = call(&register, "PUT", "/v1/criteria", &[], &body).await;
        assert_eq!(
            (status, problem["errors"].as_array().unwrap().len()),
            (400, 20)
        );
        let detail = problem["detail"].as_str().unwrap();
        let n_more: usize = detail
            .strip_suffix(" more")
            .and_then(|detail| detail.rsplit(' ').next())
            .unwrap()
            .parse()
            .unwrap();
        assert!(n_more + 1 >= least, "{detail}");
        assert!(problem.to_string().len() < 20_000);
    }
}

proptest! {
    /// Any text gets a response, and never a server error.
    #[test]
    fn any_body_gets_an_answer(
        body in ".{0,200}",
        path in prop::sample::select(vec!["/v1/criteria/a", "/v1/criteria", "/v1/evaluate"]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let register = register("");
            let method = if path == "/v1/evaluate" { "POST" } else { "PUT" };
            let (status, _, problem) = call(&register, method, path, &[], &body).await;
            assert!((400..500).contains(&status), "{status} {problem}");
        });
    }
}
