//! The API as REST: requests in, answers and `application/problem+json` out. Knows paths, headers
//! and bodies; what they ask for is done by
//! [`Register`].

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
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::problem::ApiError;
use super::watch::Outcome;
use super::{Change, Condition, MAX_BODY_SIZE, MAX_TTL, Register, Tags, openapi};
use crate::config;
use crate::text::truncated;

/// Longest time that a body may take to come in.
const PATIENCE: Duration = Duration::from_secs(20);

/// Criteria on a page, unless asked otherwise, and at most.
pub(super) const PAGE_SIZE: usize = 100;
pub(super) const MAX_PAGE_SIZE: usize = 1_000;

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

/// The name in the address.
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
    let mut query = Query::read(&uri, &["page_size", "page_token"])?;
    let page_size = match query.take("page_size") {
        None => PAGE_SIZE,
        Some(text) => text
            .parse()
            .ok()
            .filter(|size| (1..=MAX_PAGE_SIZE).contains(size))
            .ok_or_else(|| ApiError::Argument {
                name: "page_size",
                detail: format!("a whole number from 1 to {MAX_PAGE_SIZE}"),
            })?,
    };
    let after = query
        .take("page_token")
        .filter(|token| !token.is_empty())
        .map(|token| page_after(&token))
        .transpose()?;
    shown(&headers, register.list(page_size, after.as_deref()))
}

async fn get_one(
    State(register): State<Register>,
    name: Name,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    shown(&headers, register.get(&name?.0)?)
}

async fn upsert(
    State(register): State<Register>,
    name: Name,
    request: Request,
) -> Result<Response, ApiError> {
    let Path(name) = name?;
    let (change, text) = change_and_text(&register, request).await?;
    let (criterion, is_new) = register
        .work(move |register| register.upsert(Some(&name), &text, &change))
        .await?;
    let mut response = shown(&HeaderMap::new(), criterion)?;
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
    let change = change_of(request.headers(), request.uri(), false)?;
    let gone = register
        .work(move |register| register.delete(&name, &change))
        .await?;
    Ok(json(gone))
}

async fn replace(State(register): State<Register>, request: Request) -> Result<Response, ApiError> {
    let (change, text) = change_and_text(&register, request).await?;
    let replaced = register
        .work(move |register| register.replace(&text, &change))
        .await?;
    shown(&HeaderMap::new(), replaced)
}

async fn evaluate(
    State(register): State<Register>,
    request: Request,
) -> Result<Response, ApiError> {
    Query::read(request.uri(), &[])?;
    let text = text(&register, request).await?;
    Ok(json(
        register
            .work(move |register| register.evaluate(&text))
            .await?,
    ))
}

async fn status(State(register): State<Register>, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    Ok(json(register.status()))
}

async fn openapi(uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    Ok(json(openapi::document().clone()))
}

async fn reload(State(register): State<Register>, uri: Uri) -> Result<Response, ApiError> {
    Query::read(&uri, &[])?;
    let outcome = register
        .reload()
        .await
        .map_err(|stopped| ApiError::Internal(stopped.to_string()))?;
    match outcome {
        Outcome::Refused { problems } => Err(ApiError::Forbidden(format!(
            "the last good configuration stays in force: {problems}"
        ))),
        Outcome::NoFile => Err(ApiError::Forbidden(
            "there is no configuration file to read again".to_owned(),
        )),
        applied @ Outcome::Applied { .. } => Ok(json(applied.to_json())),
    }
}

async fn wrong_method() -> Response {
    let problem = serde_json::json!({ "title": "Method Not Allowed", "status": 405, "detail": "see GET /v1/openapi.json for what can be asked" });
    (
        StatusCode::METHOD_NOT_ALLOWED,
        [(CONTENT_TYPE, "application/problem+json")],
        format!("{problem}\n"),
    )
        .into_response()
}

// === answers ===

fn json(value: Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}

/// What has an ETag, or that the caller has it already.
fn shown(headers: &HeaderMap, value: Value) -> Result<Response, ApiError> {
    let etag = format!("\"{}\"", value["etag"].as_str().unwrap_or_default());
    let condition = tags(headers, &IF_NONE_MATCH)?;
    let has_it = match &condition {
        Some(Tags::Any) => true,
        Some(Tags::These(tags)) => tags.iter().any(|tag| format!("\"{tag}\"") == etag),
        None => false,
    };
    let mut response = if has_it {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        json(value)
    };
    if let Ok(etag) = HeaderValue::try_from(etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    Ok(response)
}

// === questions ===

/// The name behind which a page begins.
pub(super) fn page_after(token: &str) -> Result<String, ApiError> {
    let name = data_encoding::BASE64URL_NOPAD
        .decode(token.as_bytes())
        .ok()
        .and_then(|name| String::from_utf8(name).ok());
    name.ok_or_else(|| ApiError::Argument {
        name: "page_token",
        detail: "not a token of an earlier page".to_owned(),
    })
}

async fn change_and_text(
    register: &Register,
    request: Request,
) -> Result<(Change, String), ApiError> {
    let change = change_of(request.headers(), request.uri(), true)?;
    Ok((change, text(register, request).await?))
}

fn change_of(headers: &HeaderMap, uri: &Uri, may_end: bool) -> Result<Change, ApiError> {
    let mut query = Query::read(
        uri,
        if may_end {
            &["validate_only", "ttl"]
        } else {
            &["validate_only"]
        },
    )?;
    let validate_only = match query.take("validate_only").as_deref() {
        None | Some("false") => false,
        Some("true" | "") => true,
        Some(_) => {
            return Err(ApiError::Argument {
                name: "validate_only",
                detail: "`true` or `false`".to_owned(),
            });
        }
    };
    let ttl = query.take("ttl").map(|text| ttl_of(&text)).transpose()?;
    let condition = Condition {
        if_match: tags(headers, &IF_MATCH)?,
        if_none_match: tags(headers, &IF_NONE_MATCH)?,
    };
    Ok(Change {
        condition,
        ttl,
        validate_only,
    })
}

fn ttl_of(text: &str) -> Result<Duration, ApiError> {
    let ttl = config::Duration::parse(text)
        .map_err(|detail| ApiError::Argument {
            name: "ttl",
            detail,
        })?
        .0;
    check_ttl(ttl)
}

/// A time that is neither nothing nor for ever.
pub(super) fn check_ttl(ttl: Duration) -> Result<Duration, ApiError> {
    match ttl.is_zero() || ttl > MAX_TTL {
        true => Err(ApiError::Argument {
            name: "ttl",
            detail: "more than nothing, and at most 366 days; leave it out to keep it for good"
                .to_owned(),
        }),
        false => Ok(ttl),
    }
}

/// ETags are compared as strong ones.
fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, ApiError> {
    let mut tags = Vec::new();
    for value in headers.get_all(name) {
        let value = value.to_str().unwrap_or_default();
        if value.trim() == "*" {
            return Ok(Some(Tags::Any));
        }
        for tag in value.split(',').map(str::trim) {
            let tag = tag.strip_prefix("W/").unwrap_or(tag);
            let Some(tag) = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) else {
                let which = if *name == IF_MATCH {
                    "if-match"
                } else {
                    "if-none-match"
                };
                return Err(ApiError::Argument {
                    name: which,
                    detail: "an ETag stands in double quotes, or is `*`".to_owned(),
                });
            };
            tags.push(tag.to_owned());
        }
    }
    Ok((!tags.is_empty()).then_some(Tags::These(tags)))
}

/// The body as text: YAML or JSON, which is YAML.
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
                "`{kind}` is not taken: send application/json or application/yaml (curl: -H 'content-type: application/yaml')"
            )));
        }
    }
    // Bodies are held while they come in, so only some may come in at once.
    let _permit = register
        .0
        .bodies
        .acquire()
        .await
        .map_err(|_| ApiError::Busy)?;
    let body = tokio::time::timeout(
        PATIENCE,
        Limited::<Body>::new(request.into_body(), MAX_BODY_SIZE).collect(),
    )
    .await;
    let body = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err(ApiError::TooLarge(format!(
                "a body has at most {} MiB",
                MAX_BODY_SIZE >> 20
            )));
        }
        Ok(Err(error)) => {
            return Err(ApiError::Argument {
                name: "body",
                detail: format!("it broke off: {error}"),
            });
        }
        Err(_) => {
            return Err(ApiError::Argument {
                name: "body",
                detail: format!("it did not come in within {} s", PATIENCE.as_secs()),
            });
        }
    };
    String::from_utf8(body.into()).map_err(|error| ApiError::Argument {
        name: "body",
        detail: format!(
            "it is not UTF-8 from byte {} on",
            error.utf8_error().valid_up_to()
        ),
    })
}

/// The arguments behind the `?`.
struct Query(Vec<(String, String)>);

impl Query {
    fn read(uri: &Uri, known: &[&str]) -> Result<Self, ApiError> {
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
            let wrong = match () {
                () if !known.contains(&key.as_str()) => "is not known here",
                () if pairs[..at].iter().any(|(other, _)| other == key) => "is given twice",
                () => continue,
            };
            let key = truncated(key, 60);
            return Err(ApiError::Argument {
                name: "query",
                detail: format!("`{key}` {wrong}; known: {}", known.join(", ")),
            });
        }
        Ok(Self(pairs))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.swap_remove(at).1)
    }
}
