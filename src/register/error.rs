//! Errors of the API: for REST as `application/problem+json`, for gRPC as a status with details.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::config::{Problem, Problems};

/// Maximum number of mistakes in one response.
const MAX_REPORTED: usize = 20;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ApiError {
    Invalid(Problems),
    Argument {
        name: &'static str,
        /// The mistake and its remedy.
        detail: String,
    },
    NotFound(String),
    Exists(String),
    Conflict(String),
    /// The current state does not allow the call.
    Forbidden(String),
    Limit(String),
    TooLarge(String),
    /// The body's media type is not supported.
    Unsupported(String),
    /// Too many concurrent calls.
    Busy,
    /// All slots for listeners are in use.
    Full(String),
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
            Self::Busy | Self::Full(_) => (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
            Self::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
        }
    }

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
            Self::Busy => "too many calls at once; retry in a second".to_owned(),
            Self::NotFound(detail)
            | Self::Exists(detail)
            | Self::Conflict(detail)
            | Self::Forbidden(detail)
            | Self::Limit(detail)
            | Self::TooLarge(detail)
            | Self::Unsupported(detail)
            | Self::Full(detail)
            | Self::Internal(detail) => detail.clone(),
        }
    }

    /// Returns the body of `application/problem+json` (RFC 9457).
    pub(super) fn to_json(&self) -> Value {
        let (status, _) = self.code();
        let mut body = Map::new();
        body.insert("title".to_owned(), json!(status.canonical_reason()));
        body.insert("status".to_owned(), json!(status.as_u16()));
        body.insert("detail".to_owned(), json!(self.detail()));
        if let Self::Invalid(problems) = self {
            let errors: Vec<Value> = problems.iter().take(MAX_REPORTED).map(error_json).collect();
            body.insert("errors".to_owned(), json!(errors));
        }
        Value::Object(body)
    }

    /// Returns the gRPC status, with field violations for the first [`MAX_REPORTED`] mistakes.
    /// `within` is the field of the request that contains the document.
    pub(super) fn status(&self, within: &str) -> Status {
        let (_, code) = self.code();
        let mut details = ErrorDetails::new();
        match self {
            Self::Invalid(problems) => {
                let reported = problems.iter().take(MAX_REPORTED);
                let violations = reported.map(|problem| {
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

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        error.status("")
    }
}

impl From<Problems> for ApiError {
    fn from(problems: Problems) -> Self {
        Self::Invalid(problems)
    }
}

pub(super) fn not_registered(name: &str) -> ApiError {
    ApiError::NotFound(format!("no criterion is registered as `{name}`"))
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

/// Converts a JSON pointer, `/evaluate/tool_calls/required/0/name`, to a gRPC field path,
/// `evaluate.tool_calls.required[0].name`.
fn field_path(within: &str, pointer: &str) -> String {
    let mut path = within.to_owned();
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        if token.bytes().all(|byte| byte.is_ascii_digit()) && !token.is_empty() {
            path.push_str(&format!("[{token}]"))
        } else {
            path.push_str(if path.is_empty() { "" } else { "." });
            path.push_str(&token);
        }
    }
    path
}
