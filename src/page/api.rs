//! The API of the page: `/v1/runs`, the verdicts over time, and unrecognised spans.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use judge::extract::Trajectory;
use otlp::span::TraceId;
use serde_json::json;
use text::truncated;

use super::changes::Changes;
use super::filter::{self, RunFilter};
use super::memory::RememberedRun;
use super::{Page, attempt, stream, view};
use crate::config;
use crate::register::{ApiError, Query};

const N_RUNS: usize = 200;
const MAX_RUNS: usize = 1_000;

pub(super) fn routes(page: Page) -> Router {
    Router::new()
        .route("/v1/runs", get(list))
        .route("/v1/runs/events", get(events))
        .route("/v1/runs/evaluate", post(evaluate))
        .route("/v1/runs/{trace_id}", get(one))
        .route("/v1/runs/{trace_id}/criterion", get(criterion))
        .route("/v1/history", get(history))
        .route("/v1/page", get(settings))
        .with_state(page)
}

async fn list(State(page): State<Page>, uri: Uri) -> Result<Response, ApiError> {
    let allowed = [&filter::PARAMETERS[..], &["limit", "before", "since"]].concat();
    let mut query = Query::read(&uri, &allowed)?;
    let limit = number(&mut query, "limit", N_RUNS as u64)? as usize;
    if !(1..=MAX_RUNS).contains(&limit) {
        return Err(ApiError::Argument {
            name: "limit",
            detail: format!("must be a whole number from 1 to {MAX_RUNS}"),
        });
    }
    let before = number(&mut query, "before", u64::MAX)?;
    let since = number(&mut query, "since", 0)?;
    let filter = RunFilter::take(&mut query)?;
    let changes = Changes::read(&page, limit, since, |run| {
        run.number < before && filter.wants(run)
    });
    Ok(json_response(changes.text()))
}

async fn events(State(page): State<Page>, uri: Uri) -> Result<Response, ApiError> {
    let mut query = Query::read(&uri, &["since"])?;
    let since = number(&mut query, "since", 0)?;
    stream::stream(page, since)
}

async fn one(State(page): State<Page>, id: Id, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let run = remembered(&page, id)?;
    let detail = page
        .0
        .register
        .work(move |_| Ok(view::detail(&run)))
        .await?;
    Ok(json_response(detail.to_string()))
}

/// Returns criteria that this run passes, in the form that `spanscore init --from` writes.
async fn criterion(State(page): State<Page>, id: Id, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let run = remembered(&page, id)?;
    let trajectory = Trajectory::clone(&run.trajectory);
    if trajectory.tool_calls.len() < run.n_calls {
        return Err(ApiError::Forbidden(
            "only the first calls of this run are remembered, and its criteria would be about \
             those: `spanscore init --from` reads a recording of the whole run"
                .to_owned(),
        ));
    }
    let yaml = config::starter_criteria(std::slice::from_ref(&trajectory)).ok_or_else(|| {
        ApiError::Forbidden("this run made no call that a criterion could require".to_owned())
    })?;
    Ok(([(header::CONTENT_TYPE, "application/yaml")], yaml).into_response())
}

async fn evaluate(State(page): State<Page>, request: Request) -> Result<Response, ApiError> {
    let mut query = Query::read(request.uri(), &["name"])?;
    let name = query.take("name");
    let register = page.0.register.clone();
    let text = register.body_of(request).await?;
    let outcome = register
        .work(move |register| {
            let criterion = register.read_criterion(&text, name.as_deref())?;
            // Copy only the pointers under the lock.
            let runs: Vec<Arc<RememberedRun>> =
                page.0.runs.lock().newest_first().cloned().collect();
            Ok(attempt::attempt(&Arc::new(criterion), &runs))
        })
        .await?;
    Ok(json_response(outcome.to_string()))
}

async fn history(State(page): State<Page>, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let history = page.0.history.lock().to_json(page.unix_nanos());
    Ok(json_response(history.to_string()))
}

async fn settings(State(page): State<Page>, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let mut settings = page.unrecognised_json();
    settings["version"] = json!(env!("CARGO_PKG_VERSION"));
    settings["links"] = json!(page.0.links);
    settings["receivers"] = page.0.receivers.to_json();
    settings["max_streams"] = json!(stream::MAX_STREAMS);
    Ok(json_response(settings.to_string()))
}

// === runs ===

type Id = Result<Path<String>, PathRejection>;

fn remembered(page: &Page, id: Id) -> Result<Arc<RememberedRun>, ApiError> {
    let Path(text) = id.map_err(ApiError::from)?;
    let bytes = data_encoding::HEXLOWER_PERMISSIVE
        .decode(text.as_bytes())
        .ok();
    let trace_id = bytes.and_then(|bytes| TraceId::try_new(&bytes));
    let trace_id = trace_id.ok_or_else(|| ApiError::Argument {
        name: "trace_id",
        detail: "must be 32 hexadecimal digits".to_owned(),
    })?;
    page.0.runs.lock().get(trace_id).ok_or_else(|| {
        ApiError::NotFound(format!(
            "the run of trace `{}` is not remembered: it was not judged here, or later runs took \
             its place (`admin.page.max_size`)",
            truncated(&text, 32)
        ))
    })
}

// === queries and answers ===

fn number(query: &mut Query, name: &'static str, default: u64) -> Result<u64, ApiError> {
    let Some(text) = query.take(name) else {
        return Ok(default);
    };
    text.parse().map_err(|_| ApiError::Argument {
        name,
        detail: "must be a whole number".to_owned(),
    })
}

fn json_response(text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, text).into_response()
}
