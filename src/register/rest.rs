//! The REST API: paths, headers and bodies of HTTP requests.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use judge::evaluate::Criterion;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use text::truncated;

use super::error::ApiError;
use super::evaluate::EvaluateRequest;
use super::limits::{MAX_BODY_SIZE, PATTERN_LIMITS, check_criterion, check_runs, check_ttl};
use super::openapi;
use super::set::{ChangeOptions, EtagMatch, Precondition, Register, ReloadOutcome, UpsertOutcome};
use crate::config;

const BODY_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn routes(register: Register) -> Router {
    Router::new()
        .route("/v1/criteria", get(list).put(replace))
        .route(
            "/v1/criteria/{name}",
            get(get_one).put(upsert).delete(delete),
        )
        .route("/v1/evaluate", post(evaluate))
        .route("/v1/status", get(status))
        .route("/v1/openapi.json", get(openapi))
        .route("/-/reload", post(reload))
        .method_not_allowed_fallback(wrong_method)
        .with_state(register)
}

type Name = Result<Path<String>, PathRejection>;

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::Argument {
            name: "name",
            detail: rejection.body_text(),
        }
    }
}

async fn list(
    State(register): State<Register>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let list = register.list();
    tagged(&headers, &list.etag, &list)
}

async fn get_one(
    State(register): State<Register>,
    name: Name,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let registration = register.get(&name?.0)?;
    tagged(&headers, &registration.etag, &registration)
}

async fn upsert(
    State(register): State<Register>,
    name: Name,
    request: Request,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    let options = change_options(request.headers(), request.uri(), &["validate_only", "ttl"])?;
    let text = text(&register, request).await?;
    let UpsertOutcome {
        registration,
        is_new,
    } = register
        .work(move |register| register.upsert(Some(&name), &text, &options))
        .await?;
    let mut response = tagged(&HeaderMap::new(), &registration.etag, &registration)?;
    if is_new {
        *response.status_mut() = StatusCode::CREATED;
    }
    Ok(response)
}

async fn delete(
    State(register): State<Register>,
    name: Name,
    request: Request,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    let options = change_options(request.headers(), request.uri(), &["validate_only"])?;
    let deleted = register
        .work(move |register| register.delete(&name, &options))
        .await?;
    Ok(json(&deleted))
}

async fn replace(State(register): State<Register>, request: Request) -> Result<Response, ApiError> {
    let options = change_options(request.headers(), request.uri(), &["validate_only", "ttl"])?;
    let text = text(&register, request).await?;
    let replaced = register
        .work(move |register| register.replace(&text, &options))
        .await?;
    tagged(&HeaderMap::new(), &replaced.etag, &replaced)
}

async fn evaluate(
    State(register): State<Register>,
    request: Request,
) -> Result<Response, ApiError> {
    Query::read(request.uri(), &[])?;
    let text = text(&register, request).await?;
    let evaluations = register
        .work(move |register| {
            let request = EvaluateRequest::read(&text).map_err(ApiError::Invalid)?;
            // Free the body early: it may be large, and its content is copied several times to
            // build a trajectory.
            drop(text);
            register.evaluate(request)
        })
        .await?;
    Ok(json(&evaluations))
}

async fn status(State(register): State<Register>, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    Ok(json(&register.status()))
}

async fn openapi(uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    Ok(json(openapi::document()))
}

async fn reload(State(register): State<Register>, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let outcome = register
        .reload()
        .await
        .map_err(|stopped| ApiError::Internal(stopped.to_string()))?;
    match outcome {
        ReloadOutcome::Refused { problems } => Err(ApiError::Forbidden(format!(
            "the configuration is invalid; the last valid one stays in force: {problems}"
        ))),
        ReloadOutcome::NoFile => Err(ApiError::Forbidden(
            "there is no configuration file to reload".to_owned(),
        )),
        applied @ ReloadOutcome::Applied { .. } => Ok(json(&applied.to_json())),
    }
}

async fn wrong_method() -> Response {
    let problem = serde_json::json!({
        "title": "Method Not Allowed",
        "status": 405,
        "detail": "GET /v1/openapi.json lists the methods of each path",
    });
    (
        StatusCode::METHOD_NOT_ALLOWED,
        [(CONTENT_TYPE, "application/problem+json")],
        format!("{problem}\n"),
    )
        .into_response()
}

// === responses ===

fn json(value: &impl Serialize) -> Response {
    let value = serde_json::json!(value);
    ([(CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}

/// Returns a response with an ETag, or 304 if the caller already has this version.
fn tagged(headers: &HeaderMap, etag: &str, view: &impl Serialize) -> Result<Response, ApiError> {
    let is_known = match etags(headers, &IF_NONE_MATCH)? {
        Some(EtagMatch::Any) => true,
        Some(EtagMatch::OneOf(tags)) => tags.iter().any(|tag| tag == etag),
        None => false,
    };
    let mut response = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { json(view) };
    if let Ok(etag) = HeaderValue::try_from(format!("\"{etag}\"")) {
        response.headers_mut().insert(ETAG, etag);
    }
    Ok(response)
}

// === requests ===

fn change_options(
    headers: &HeaderMap,
    uri: &Uri,
    allowed: &[&str],
) -> Result<ChangeOptions, ApiError> {
    let mut query = Query::read(uri, allowed)?;
    let validate_only = match query.take("validate_only").as_deref() {
        None | Some("false") => false,
        Some("true" | "") => true,
        Some(_) => {
            return Err(ApiError::Argument {
                name: "validate_only",
                detail: "must be `true` or `false`".to_owned(),
            });
        }
    };
    let ttl = query.take("ttl").map(|text| parse_ttl(&text)).transpose()?;
    let precondition = Precondition {
        if_match: etags(headers, &IF_MATCH)?,
        if_none_match: etags(headers, &IF_NONE_MATCH)?,
    };
    Ok(ChangeOptions {
        precondition,
        ttl,
        validate_only,
    })
}

fn parse_ttl(text: &str) -> Result<Duration, ApiError> {
    let ttl = config::Duration::parse(text)
        .map_err(|detail| ApiError::Argument {
            name: "ttl",
            detail,
        })?
        .0;
    check_ttl(ttl)
}

/// Parses the ETags of a header. Weak ETags compare like strong ones.
fn etags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<EtagMatch>, ApiError> {
    let mut tags = Vec::new();
    for value in headers.get_all(name) {
        let value = value.to_str().unwrap_or_default();
        if value.trim() == "*" {
            return Ok(Some(EtagMatch::Any));
        }
        for tag in value.split(',').map(str::trim) {
            let tag = tag.strip_prefix("W/").unwrap_or(tag);
            let Some(tag) = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) else {
                return Err(ApiError::Argument {
                    name: if *name == IF_MATCH { "if-match" } else { "if-none-match" },
                    detail: "an ETag must be in double quotes, or be `*`".to_owned(),
                });
            };
            tags.push(tag.to_owned());
        }
    }
    Ok((!tags.is_empty()).then_some(EtagMatch::OneOf(tags)))
}

/// Returns the body as text. The text is YAML, of which JSON is a subset.
async fn text(register: &Register, request: Request) -> Result<String, ApiError> {
    if let Some(kind) = request.headers().get(CONTENT_TYPE) {
        let kind = kind
            .to_str()
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        let is_known = [
            "application/json",
            "application/yaml",
            "application/x-yaml",
            "text/yaml",
            "text/x-yaml",
        ]
        .contains(&kind.as_str());
        if !is_known {
            return Err(ApiError::Unsupported(format!(
                "unsupported content type `{kind}`: send application/json or application/yaml \
                 (curl: -H 'content-type: application/yaml')"
            )));
        }
    }
    // Bodies are in memory while they arrive, so only a few may arrive concurrently.
    let _permit = register
        .0
        .slots
        .bodies
        .acquire()
        .await
        .map_err(|_| ApiError::Busy)?;
    let body = tokio::time::timeout(
        BODY_TIMEOUT,
        Limited::<Body>::new(request.into_body(), MAX_BODY_SIZE).collect(),
    )
    .await;
    let body = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err(ApiError::TooLarge(format!(
                "the body is larger than {} MiB",
                MAX_BODY_SIZE >> 20
            )));
        }
        Ok(Err(error)) => {
            return Err(ApiError::Argument {
                name: "body",
                detail: format!("cut off: {error}"),
            });
        }
        Err(_) => {
            return Err(ApiError::Argument {
                name: "body",
                detail: format!("did not arrive within {} s", BODY_TIMEOUT.as_secs()),
            });
        }
    };
    String::from_utf8(body.into()).map_err(|error| ApiError::Argument {
        name: "body",
        detail: format!(
            "not UTF-8 from byte {} on",
            error.utf8_error().valid_up_to()
        ),
    })
}

impl Register {
    pub(crate) async fn body_of(&self, request: Request) -> Result<String, ApiError> {
        text(self, request).await
    }

    /// Reads a criterion that is tried but not registered. The limits of registrations apply.
    pub(crate) fn read_criterion(
        &self,
        text: &str,
        name: Option<&str>,
    ) -> Result<Criterion, ApiError> {
        let criterion = config::criterion(text, name, PATTERN_LIMITS)?;
        check_criterion(&criterion)?;
        check_runs(&criterion)?;
        Ok(criterion)
    }
}

/// The query parameters of a URL; each may be given only once.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the query of a URL. A parameter that is not `allowed` is an error.
    pub(crate) fn read(uri: &Uri, allowed: &[&str]) -> Result<Self, ApiError> {
        let pairs = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty());
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let pairs: Vec<(String, String)> = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (decoded(key), decoded(value)))
            .collect();
        for (at, (key, _)) in pairs.iter().enumerate() {
            let mistake = match () {
                () if !allowed.contains(&key.as_str()) => "is not a parameter of this path",
                () if pairs[..at].iter().any(|(earlier, _)| earlier == key) => "is given twice",
                () => continue,
            };
            let key = truncated(key, 60);
            return Err(ApiError::Argument {
                name: "query",
                detail: match allowed {
                    [] => format!("`{key}` {mistake}, which has none"),
                    _ => format!(
                        "`{key}` {mistake}; the parameters are {}",
                        allowed.join(", ")
                    ),
                },
            });
        }
        Ok(Self(pairs))
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.swap_remove(at).1)
    }
}
