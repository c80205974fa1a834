//! What can be wrong with a call of the API, and how it is told: as `application/problem+json` to
//! REST, as a status with details to gRPC.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::config::{Problem, Problems};

/// Most mistakes told at once.
const MAX_TOLD: usize = 20;

/// Why a call did not do what it was asked to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ApiError {
    /// What was sent cannot be used: every mistake in it.
    Invalid(Problems),
    /// An argument outside the body is wrong.
    Argument {
        /// Which.
        name: &'static str,
        /// What is wrong and the remedy.
        detail: String,
    },
    /// Nothing of that name.
    NotFound(String),
    /// Something is there already.
    Exists(String),
    /// The caller's picture of what is there is out of date.
    Conflict(String),
    /// The state of things forbids it.
    Forbidden(String),
    /// A limit is reached.
    Limit(String),
    /// The body is too large.
    TooLarge(String),
    /// The body is not what it should be.
    Unsupported(String),
    /// Too much at once.
    Busy,
    /// It was not done, and that is our fault.
    Internal(String),
}

impl ApiError {
    fn code(&self) -> (StatusCode, Code) {
        match self {
            Self::Invalid(_) | Self::Argument { .. } => {
                (StatusCode::BAD_REQUEST, Code::InvalidArgument)
            }
            Self::NotFound(_) => (StatusCode::NOT_FOUND, Code::NotFound),
            Self::Exists(_) => (StatusCode::PRECONDITION_FAILED, Code::AlreadyExists),
            Self::Conflict(_) => (StatusCode::PRECONDITION_FAILED, Code::Aborted),
            Self::Forbidden(_) => (StatusCode::CONFLICT, Code::FailedPrecondition),
            Self::Limit(_) => (StatusCode::CONFLICT, Code::ResourceExhausted),
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, Code::ResourceExhausted),
            Self::Unsupported(_) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::InvalidArgument),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
            Self::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
        }
    }

    /// In one sentence.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Invalid(problems) => match problems.iter().next() {
                Some(problem) if problems.n_errors() > 1 => format!(
                    "{}; and {} more",
                    sentence(problem),
                    problems.n_errors() - 1
                ),
                Some(problem) => sentence(problem),
                None => "not valid".to_owned(),
            },
            Self::Argument { name, detail } => format!("`{name}`: {detail}"),
            Self::Busy => "too many calls at once; try again in a second".to_owned(),
            Self::NotFound(detail)
            | Self::Exists(detail)
            | Self::Conflict(detail)
            | Self::Forbidden(detail)
            | Self::Limit(detail)
            | Self::TooLarge(detail)
            | Self::Unsupported(detail)
            | Self::Internal(detail) => detail.clone(),
        }
    }

    /// The body of `application/problem+json` (RFC 9457).
    pub(super) fn to_json(&self) -> Value {
        let (status, _) = self.code();
        let mut body = Map::new();
        body.insert("title".to_owned(), json!(status.canonical_reason()));
        body.insert("status".to_owned(), json!(status.as_u16()));
        body.insert("detail".to_owned(), json!(self.detail()));
        if let Self::Invalid(problems) = self {
            let errors: Vec<Value> = problems.iter().take(MAX_TOLD).map(error_json).collect();
            body.insert("errors".to_owned(), json!(errors));
        }
        Value::Object(body)
    }

    /// The same for gRPC: each mistake is a field violation. `within` is the field of the request
    /// that holds what was read.
    pub(super) fn status(&self, within: &str) -> Status {
        let (_, code) = self.code();
        let mut details = ErrorDetails::new();
        match self {
            Self::Invalid(problems) => {
                let told = problems.iter().take(MAX_TOLD);
                let violations = told.map(|problem| {
                    FieldViolation::new(field_path(within, &problem.pointer), sentence(problem))
                });
                details.set_bad_request(violations.collect::<Vec<_>>());
            }
            Self::Argument { name, detail } => {
                details.set_bad_request([FieldViolation::new(*name, detail)]);
            }
            Self::Busy => {
                details.set_retry_info(Some(std::time::Duration::from_secs(1)));
            }
            _ => return Status::new(code, self.detail()),
        }
        Status::with_error_details(code, self.detail(), details)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, _) = self.code();
        let mut response = (status, format!("{}\n", self.to_json())).into_response();
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self == Self::Busy {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Problems> for ApiError {
    fn from(problems: Problems) -> Self {
        Self::Invalid(problems)
    }
}

fn error_json(problem: &Problem) -> Value {
    let mut error = Map::new();
    error.insert("pointer".to_owned(), json!(problem.pointer));
    if let Some(spot) = &problem.spot {
        error.insert("line".to_owned(), json!(spot.line));
        error.insert("column".to_owned(), json!(spot.column));
    }
    error.insert("message".to_owned(), json!(problem.title));
    if let Some(label) = &problem.label {
        error.insert("remedy".to_owned(), json!(label));
    }
    Value::Object(error)
}

fn sentence(problem: &Problem) -> String {
    match &problem.label {
        Some(label) => format!("{}: {label}", problem.title),
        None => problem.title.clone(),
    }
}

/// `/evaluate/tool_calls/required/0/name` as gRPC writes it:
/// `evaluate.tool_calls.required[0].name`.
fn field_path(within: &str, pointer: &str) -> String {
    let mut path = within.to_owned();
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        match token.bytes().all(|byte| byte.is_ascii_digit()) && !token.is_empty() {
            true => path.push_str(&format!("[{token}]")),
            false => {
                path.push_str(if path.is_empty() { "" } else { "." });
                path.push_str(&token);
            }
        }
    }
    path
}
