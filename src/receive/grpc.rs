//! OTLP/gRPC: unary calls of the three Export services, and the standard health check. Knows gRPC's
//! framing, statuses and trailers. Written on HTTP/2 itself: tonic's codec can neither take room as
//! it decompresses nor answer RESOURCE_EXHAUSTED to what is too large.

use std::fmt::Display;

use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use prost::Message;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

use crate::config::Signal;
use crate::telemetry::Phase;

use super::body::{self, Framing, Limits};
use super::decompress::{ACCEPTED, Encoding};
use super::problem::Problem;
use super::{Answer, Format, Inner};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// A message of no bytes, uncompressed: an empty `Export…ServiceResponse`, whose `partial_success`
/// is unset.
const EMPTY_MESSAGE: &[u8] = &[0, 0, 0, 0, 0];

/// `HealthCheckResponse { status }`: SERVING (1) and NOT_SERVING (2).
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 0x08, 1];
const NOT_SERVING: &[u8] = &[0, 0, 0, 0, 2, 0x08, 2];

/// A health check names a service, no more.
const MAX_HEALTH_CHECK: usize = 4 << 10;

/// What can be called.
enum Call {
    Export(Signal),
    HealthCheck,
}

fn call(path: &str) -> Option<Call> {
    match path {
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => {
            Some(Call::Export(Signal::Traces))
        }
        "/opentelemetry.proto.collector.logs.v1.LogsService/Export" => {
            Some(Call::Export(Signal::Logs))
        }
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export" => {
            Some(Call::Export(Signal::Metrics))
        }
        "/grpc.health.v1.Health/Check" => Some(Call::HealthCheck),
        _ => None,
    }
}

pub(super) async fn answer<B>(inner: &Inner, request: Request<B>) -> Response<Answer>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let (head, mut body) = request.into_parts();
    if head.version < Version::HTTP_2 {
        return plain(
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            "gRPC needs HTTP/2; is there a proxy on the way that speaks HTTP/1.1?\n",
        );
    }
    if head.method != Method::POST {
        let mut response = plain(
            StatusCode::METHOD_NOT_ALLOWED,
            "gRPC calls are POST requests\n",
        );
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let result = match call(head.uri.path()) {
        Some(Call::Export(signal)) => match export(inner, signal, &head.headers, &mut body).await {
            Ok(()) => Ok(EMPTY_MESSAGE),
            Err((problem, n_items)) => {
                inner.refused(signal, &problem, n_items);
                Err(status(&problem))
            }
        },
        Some(Call::HealthCheck) => health(inner, &head.headers, &mut body).await,
        None => {
            body::discard(&mut body).await;
            let message = format!(
                "no method `{}`; OTLP has Export of the trace, logs and metrics services",
                head.uri.path()
            );
            Err(Status::unimplemented(message))
        }
    };
    let mut response = match result {
        Ok(message) => success(message),
        Err(status) => status.into_http(),
    };
    response
        .headers_mut()
        .insert(GRPC_ACCEPT_ENCODING, ACCEPTED);
    response
}

async fn export<B>(
    inner: &Inner,
    signal: Signal,
    headers: &HeaderMap,
    body: &mut B,
) -> Result<(), (Problem, u64)>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let encoding = match Encoding::try_new(headers.get(GRPC_ENCODING)) {
        Ok(encoding) => encoding,
        Err(problem) => {
            body::discard(body).await;
            return Err((problem, 0));
        }
    };
    let held = body::read(body, Framing::Prefixed, encoding, &inner.settings.limits)
        .await
        .map_err(|problem| (problem, 0))?;
    inner.take(signal, Format::Protobuf, held, headers).await
}

/// `grpc.health.v1.Health/Check`, for probes that speak gRPC: the same light as `/readyz`, seen
/// from a port that serves.
async fn health<B>(
    inner: &Inner,
    headers: &HeaderMap,
    body: &mut B,
) -> Result<&'static [u8], Status>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let limits = Limits {
        max_size: MAX_HEALTH_CHECK,
        ..inner.settings.limits.clone()
    };
    let encoding =
        Encoding::try_new(headers.get(GRPC_ENCODING)).map_err(|problem| status(&problem))?;
    let held = body::read(body, Framing::Prefixed, encoding, &limits)
        .await
        .map_err(|problem| status(&problem))?;
    let HealthCheckRequest { service } = HealthCheckRequest::decode(held.bytes)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    if !service.is_empty() && call(&format!("/{service}/Export")).is_none() {
        return Err(Status::not_found(format!("no service `{service}`")));
    }
    match inner.telemetry.phase() {
        Phase::Serving => Ok(SERVING),
        Phase::Starting | Phase::Draining => Ok(NOT_SERVING),
    }
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

fn success(message: &'static [u8]) -> Response<Answer> {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    let mut response = Response::new(Answer {
        data: Bytes::from_static(message),
        trailers: Some(trailers),
    });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

fn status(problem: &Problem) -> Status {
    match problem.retry_after() {
        Some(delay) => Status::with_error_details(
            problem.code(),
            problem.message(),
            ErrorDetails::with_retry_info(Some(delay)),
        ),
        None => Status::new(problem.code(), problem.message()),
    }
}

/// To a client that does not speak gRPC.
fn plain(status: StatusCode, message: &'static str) -> Response<Answer> {
    let mut response = Response::new(Answer {
        data: Bytes::from_static(message.as_bytes()),
        trailers: None,
    });
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
