//! Tests registering, reading, replacing and deleting criteria through the API.

mod judging;

use std::sync::atomic::{AtomicU64, Ordering};

use judge::assemble::CloseReason;

use super::*;

#[tokio::test]
async fn a_criterion_is_registered_read_replaced_and_taken_out() {
    let register = register(FILE);
    let (status, etag, made) = call(&register, "PUT", "/v1/criteria/b", &[], ORDER).await;
    assert_eq!(
        (status, made["source"].as_str(), judged_by(&register)),
        (201, Some("api"), vec!["a".to_owned(), "b".to_owned()])
    );
    assert_eq!(etag, format!("\"{}\"", made["etag"].as_str().unwrap()));
    let (status, again, read) = call(&register, "GET", "/v1/criteria/b", &[], "").await;
    assert_eq!((status, &again, &read), (200, &etag, &made));
    assert_eq!(
        call(
            &register,
            "GET",
            "/v1/criteria/b",
            &[("if-none-match", &etag)],
            ""
        )
        .await
        .0,
        304
    );
    // JSON is accepted like YAML, and results in the same revision.
    let json = made["criterion"].to_string();
    let (status, _, same) = call(
        &register,
        "PUT",
        "/v1/criteria/b",
        &[("content-type", "application/json")],
        &json,
    )
    .await;
    assert_eq!((status, &same["revision"]), (200, &made["revision"]));
    // A registration replaces the file's criterion of its name.
    let (status, _, front) = call(&register, "PUT", "/v1/criteria/a", &[], ORDER).await;
    assert_eq!(
        (status, front["shadows"]["source"].as_str()),
        (200, Some("file"))
    );
    assert_eq!(
        (&front["source"], &front["file"]),
        (&"api".into(), &"spanscore.yaml".into())
    );
    assert_eq!(made.get("file"), None);
    let (_, _, shown) = call(&register, "GET", "/v1/status", &[], "").await;
    assert_eq!(shown["criteria"]["shadowing"], json!(["a"]));
    let (status, _, gone) = call(&register, "DELETE", "/v1/criteria/a", &[], "").await;
    assert_eq!(
        (status, gone["uncovered"]["source"].as_str()),
        (200, Some("file"))
    );
    let (status, _, problem) = call(&register, "DELETE", "/v1/criteria/a", &[], "").await;
    assert!(
        status == 409
            && problem["detail"]
                .as_str()
                .unwrap()
                .contains("remove it there"),
        "{problem}"
    );
    assert_eq!(
        call(&register, "DELETE", "/v1/criteria/b", &[], "").await.0,
        200
    );
    assert_eq!(
        call(&register, "DELETE", "/v1/criteria/b", &[], "").await.0,
        404
    );
    assert_eq!(judged_by(&register), ["a"]);
}

#[tokio::test]
async fn of_two_writers_with_one_etag_one_wins_and_the_other_gets_412() {
    let register = register("");
    let (_, etag, _) = call(
        &register,
        "PUT",
        "/v1/criteria/a",
        &[("if-none-match", "*")],
        ORDER,
    )
    .await;
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria/a",
            &[("if-none-match", "*")],
            ORDER
        )
        .await
        .0,
        412
    );
    let with = |tool: &str| ORDER.replace('y', tool);
    let mut racing = tokio::task::JoinSet::new();
    for writer in 0..16 {
        let (register, etag, body) = (register.clone(), etag.clone(), with(&format!("t{writer}")));
        racing.spawn(async move {
            call(
                &register,
                "PUT",
                "/v1/criteria/a",
                &[("if-match", &etag)],
                &body,
            )
            .await
            .0
        });
    }
    let mut statuses: Vec<u16> = racing.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses, [[200].as_slice(), &[412; 15]].concat());
    assert_eq!(
        call(
            &register,
            "DELETE",
            "/v1/criteria/a",
            &[("if-match", &etag)],
            ""
        )
        .await
        .0,
        412
    );
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria/b",
            &[("if-match", "*")],
            ORDER
        )
        .await
        .0,
        412
    );
    assert_eq!(
        call(
            &register,
            "DELETE",
            "/v1/criteria/a",
            &[("if-match", "*")],
            ""
        )
        .await
        .0,
        200
    );
}

#[tokio::test]
async fn a_whole_set_is_replaced_at_once_or_not_at_all() {
    let register = register(FILE);
    let (_, set_before, _) = call(&register, "GET", "/v1/criteria", &[], "").await;
    let set = "criteria:\n- { name: b, evaluate: { tool_call_order: { tool_calls_order: [y] } } }\
        \n- { name: c, evaluate: { tool_call_order: { tool_calls_order: [y] } } }\n";
    let (status, etag, done) = call(
        &register,
        "PUT",
        "/v1/criteria",
        &[("if-match", &set_before)],
        set,
    )
    .await;
    assert_eq!(
        (status, &done["added"], judged_by(&register).len()),
        (200, &json!(["b", "c"]), 3)
    );
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria",
            &[("if-match", &set_before)],
            set
        )
        .await
        .0,
        412
    );
    // One mistake prevents the whole change. Both mistakes are reported, each at its position.
    let wrong = "criteria:\n- { name: d, evaluate: { tool_call_ordr: {} } }\
        \n- { name: e, threshold: 2, evaluate: { tool_call_order: { tool_calls_order: [y] } } }\n";
    let (status, _, problem) = call(
        &register,
        "PUT",
        "/v1/criteria",
        &[("content-type", "application/yaml")],
        wrong,
    )
    .await;
    assert_eq!((status, judged_by(&register).len()), (400, 3));
    let errors = problem["errors"].as_array().unwrap();
    assert_eq!(
        (
            &errors[0]["pointer"],
            &errors[0]["line"],
            &errors[0]["column"]
        ),
        (
            &json!("/criteria/0/evaluate/tool_call_ordr"),
            &json!(2),
            &json!(26)
        )
    );
    assert_eq!(
        (&errors[1]["pointer"], &errors[1]["line"]),
        (&json!("/criteria/1/threshold"), &json!(3))
    );
    assert!(
        errors[0]["remedy"]
            .as_str()
            .unwrap()
            .contains("did you mean `tool_call_order`?"),
        "{problem}"
    );
    let (status, _, done) = call(
        &register,
        "PUT",
        "/v1/criteria",
        &[("if-match", &etag)],
        "criteria: []",
    )
    .await;
    assert_eq!(
        (status, &done["removed"], judged_by(&register)),
        (200, &json!(["b", "c"]), vec!["a".to_owned()])
    );
}

#[tokio::test]
async fn validating_changes_nothing() {
    let register = register(FILE);
    for (method, path) in [
        ("PUT", "/v1/criteria/b?validate_only=true"),
        ("DELETE", "/v1/criteria/a?validate_only=true"),
    ] {
        call(&register, method, path, &[], ORDER).await;
    }
    let (status, _, shown) = call(
        &register,
        "PUT",
        "/v1/criteria/a?validate_only=true&ttl=1h",
        &[],
        ORDER,
    )
    .await;
    assert!(
        status == 200 && shown["expires_at"].is_string() && shown["shadows"].is_object(),
        "{shown}"
    );
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria?validate_only=true",
            &[],
            "criteria: []"
        )
        .await
        .0,
        200
    );
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria/b?validate_only=true",
            &[],
            "evaluate: {}"
        )
        .await
        .0,
        400
    );
    assert_eq!(
        (
            judged_by(&register),
            register.0.set.load().registrations().len()
        ),
        (vec!["a".to_owned()], 0)
    );
}

#[tokio::test]
async fn a_list_holds_all_criteria_by_name() {
    let register = register("");
    let criteria: Vec<Value> = (0..25)
        .map(|n| {
            json!({
                "name": format!("c{n:02}"),
                "evaluate": { "tool_call_order": { "tool_calls_order": ["x"] } },
            })
        })
        .collect();
    assert_eq!(
        call(
            &register,
            "PUT",
            "/v1/criteria",
            &[],
            &json!({ "criteria": criteria }).to_string()
        )
        .await
        .0,
        200
    );
    let (_, _, list) = call(&register, "GET", "/v1/criteria", &[], "").await;
    let entries = list["criteria"].as_array().unwrap().iter();
    let seen: Vec<_> = entries
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    assert_eq!(seen.len(), 25);
    assert!(seen.is_sorted(), "{seen:?}");
}

static CLOCK: AtomicU64 = AtomicU64::new(1_795_000_000_000_000_000);

fn clock() -> Now {
    Now {
        unix_nanos: CLOCK.load(Ordering::Relaxed),
        ..sidecar::now()
    }
}

#[tokio::test]
async fn a_registration_with_a_time_to_live_cleans_up_after_itself() {
    let register = opened(FILE, clock).0;
    call(&register, "PUT", "/v1/criteria/a?ttl=90s", &[], ORDER).await;
    let (status, _, shown) = call(&register, "PUT", "/v1/criteria/b?ttl=1%68", &[], ORDER).await;
    assert_eq!(
        (status, shown["expires_at"].as_str()),
        (201, Some("2026-11-18T12:06:40Z"))
    );
    CLOCK.fetch_add(89_000_000_000, Ordering::Relaxed);
    register.expire();
    assert_eq!(register.0.set.load().registrations().len(), 2);
    CLOCK.fetch_add(1_000_000_000, Ordering::Relaxed);
    register.expire();
    assert_eq!(
        (
            register.0.set.load().registrations().len(),
            judged_by(&register).len()
        ),
        (1, 2)
    );
    assert_eq!(register.get("a").unwrap().source, "file");
    for ttl in ["0s", "soon", "9000h"] {
        assert_eq!(
            call(
                &register,
                "PUT",
                &format!("/v1/criteria/b?ttl={ttl}"),
                &[],
                ORDER
            )
            .await
            .0,
            400,
            "{ttl}"
        );
    }
}

#[tokio::test]
async fn registrations_survive_a_restart_and_a_failed_write_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{FILE}admin: {{ state_file: \"{}/state.json\" }}\n",
        folder.path().display()
    );
    let first = register(&text);
    let (_, etag, _) = call(&first, "PUT", "/v1/criteria/b", &[], ORDER).await;
    call(&first, "PUT", "/v1/criteria/c?ttl=1h", &[], ORDER).await;
    let second = register(&text);
    assert_eq!(judged_by(&second), ["a", "b", "c"]);
    let (status, same, _) = call(&second, "GET", "/v1/criteria/b", &[], "").await;
    assert_eq!((status, same), (200, etag));
    drop(folder);
    let (status, _, problem) = call(&second, "DELETE", "/v1/criteria/b", &[], "").await;
    assert!(
        status == 500
            && problem["detail"]
                .as_str()
                .unwrap()
                .contains("nothing was changed"),
        "{problem}"
    );
    assert_eq!(judged_by(&second), ["a", "b", "c"]);
}

#[tokio::test]
async fn the_openapi_document_lists_every_route_and_explains_every_status() {
    let register = register(FILE);
    let (_, _, document) = call(&register, "GET", "/v1/openapi.json", &[], "").await;
    let paths = document["paths"].as_object().unwrap();
    // The routes of the page are called by the page's tests.
    let is_of_page = |path: &str| {
        let of_page = ["/v1/runs", "/v1/history", "/v1/page"];
        of_page.iter().any(|start| path.starts_with(start))
    };
    assert_eq!(paths.len(), 13);
    const PAGE: &str = include_str!("../../../docs/criteria-api.md");
    for path in paths.keys() {
        let goes_on =
            |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || "/-_".contains(c));
        let is_there = PAGE.split(path.as_str()).skip(1).any(|rest| !goes_on(rest));
        assert!(is_there, "docs/criteria-api.md says nothing of {path}");
    }
    for (path, operations) in paths.iter().filter(|(path, _)| !is_of_page(path)) {
        for method in ["get", "put", "post", "delete"] {
            let path_of_a = path.replace("{name}", "a");
            let (status, _, answer) =
                call(&register, &method.to_uppercase(), &path_of_a, &[], "{").await;
            let operation = &operations[method];
            assert_eq!(
                status == 405,
                operation.is_null(),
                "{method} {path}: {status} {answer}"
            );
            assert!(
                operation.is_null() || operation["responses"][status.to_string()].is_object(),
                "{method} {path}: {status}"
            );
        }
    }
    // The document repeats these limits.
    let longest_name = document.pointer("/components/parameters/name/schema/maxLength");
    assert_eq!(longest_name, Some(&json!(MAX_NAME_LENGTH)));
    let description = document["info"]["description"].as_str().unwrap();
    assert!(description.contains(&format!("at most {} MiB", MAX_BODY_SIZE >> 20)));
    assert!(description.contains(&format!("at most {MAX_REGISTRATIONS} criteria")));
    let reasons = document.pointer("/components/schemas/Trajectory/properties/completeness/enum");
    let expected = CloseReason::ALL
        .map(|reason| json!(reason.as_str()))
        .into_iter();
    assert_eq!(
        reasons,
        Some(&expected.chain([Value::Null]).collect::<Value>())
    );
    // Every reference in the document must resolve.
    let text = document.to_string();
    for target in text
        .split("\"$ref\":\"#")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
    {
        assert!(document.pointer(target).is_some(), "{target}");
    }
}
