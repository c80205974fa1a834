//! The gRPC API: a route for each method, with generated messages. Documents inside messages
//! (criteria, trajectories) become JSON text, so that files, REST and gRPC share one reader and its
//! located errors.

mod json;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodRouter, any, post};
use judge::evaluate::Criterion;
use prost::Message;
use prost_types::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstEncoder;

use super::error::ApiError;
use super::evaluate;
use super::limits::{MAX_BODY_SIZE, check_ttl};
use super::set::{ChangeOptions, EtagMatch, Precondition, Register};
use super::view::{DeletedView, RegistrationView};
use messages::evaluate_request::Subject;
use messages::{
    DeleteRequest, DeleteResponse, EvaluateRequest, EvaluateResponse, GetRequest, ListRequest,
    ListResponse, Registration, ReplaceRequest, ReplaceResponse, Shadowed, UpsertRequest,
};

#[rustfmt::skip]
#[expect(
    unreachable_pub,
    reason = "generated from proto/spanscore/v1/criteria.proto by proto/check"
)]
mod messages;

/// `spanscore.v1` and its imports, for reflection.
const DESCRIPTORS: &[u8] = include_bytes!("grpc/descriptors.bin");

/// Timeout of a call, which begins when the call gets a slot.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn routes(register: &Register) -> Router {
    let unimplemented =
        async || Status::unimplemented("unknown method of this service").into_http::<Body>();
    Router::new()
        .route("/spanscore.v1.CriteriaService/Get", unary(register, get))
        .route("/spanscore.v1.CriteriaService/List", unary(register, list))
        .route(
            "/spanscore.v1.CriteriaService/Upsert",
            unary(register, upsert),
        )
        .route(
            "/spanscore.v1.CriteriaService/Delete",
            unary(register, delete),
        )
        .route(
            "/spanscore.v1.CriteriaService/Replace",
            unary(register, replace),
        )
        .route(
            "/spanscore.v1.CriteriaService/Evaluate",
            unary(register, evaluate),
        )
        .route(
            "/spanscore.v1.CriteriaService/{method}",
            post(unimplemented),
        )
        .merge(reflection())
}

// === methods ===

async fn get(register: Register, request: GetRequest) -> Result<Registration, Status> {
    register.get(&request.name)?.try_into()
}

async fn list(register: Register, _: ListRequest) -> Result<ListResponse, Status> {
    let list = register.list();
    Ok(ListResponse {
        criteria: list
            .criteria
            .into_iter()
            .map(Registration::try_from)
            .collect::<Result<_, _>>()?,
        revision: list.revision,
        etag: list.etag,
    })
}

async fn upsert(register: Register, request: UpsertRequest) -> Result<Registration, Status> {
    let options = ChangeOptions {
        precondition: precondition(request.if_match, request.create_only),
        ttl: ttl(request.ttl)?,
        validate_only: request.validate_only,
    };
    let text = document(&request.criterion.unwrap_or_default())?;
    let upserted = register
        .work(move |register| register.upsert(None, &text, &options))
        .await
        .map_err(|error| error.status("criterion"))?;
    upserted.registration.try_into()
}

async fn delete(register: Register, request: DeleteRequest) -> Result<DeleteResponse, Status> {
    let options = ChangeOptions {
        precondition: precondition(request.if_match, false),
        ttl: None,
        validate_only: request.validate_only,
    };
    let DeletedView {
        revision,
        uncovered,
    } = register
        .work(move |register| register.delete(&request.name, &options))
        .await?;
    Ok(DeleteResponse {
        revision,
        uncovered: uncovered.map(Registration::try_from).transpose()?,
    })
}

async fn replace(register: Register, request: ReplaceRequest) -> Result<ReplaceResponse, Status> {
    let options = ChangeOptions {
        precondition: precondition(request.if_match, false),
        ttl: ttl(request.ttl)?,
        validate_only: request.validate_only,
    };
    let text = document(&CriteriaDocument {
        criteria: &request.criteria,
    })?;
    let replaced = register
        .work(move |register| register.replace(&text, &options))
        .await?;
    Ok(ReplaceResponse {
        revision: replaced.revision,
        etag: replaced.etag,
        added: replaced.added,
        changed: replaced.changed,
        removed: replaced.removed,
    })
}

async fn evaluate(
    register: Register,
    request: EvaluateRequest,
) -> Result<EvaluateResponse, Status> {
    let (trajectory, traces) = match request.subject {
        Some(Subject::Trajectory(trajectory)) => (Some(trajectory), None),
        Some(Subject::Traces(traces)) => (None, Some(traces.encode_to_vec())),
        None => (None, None),
    };
    let text = document(&EvaluateDocument {
        trajectory: trajectory.as_ref(),
        criteria: &request.criteria,
        names: &request.names,
    })?;
    let view = register
        .work(move |register| {
            let request = evaluate::EvaluateRequest::read(&text).map_err(ApiError::Invalid)?;
            register.evaluate(request.with_protobuf(traces))
        })
        .await?;
    let evaluations = view.evaluations.into_iter().map(evaluation);
    Ok(EvaluateResponse {
        evaluations: evaluations.collect::<Result<_, _>>()?,
    })
}

// === documents ===

#[derive(Serialize)]
struct CriteriaDocument<'a> {
    criteria: &'a [messages::Criterion],
}

/// The document that [`evaluate::EvaluateRequest`] is read from. Spans stay protobuf, because their
/// ids are bytes.
#[derive(Serialize)]
struct EvaluateDocument<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    trajectory: Option<&'a messages::Trajectory>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    criteria: &'a [messages::Criterion],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    names: &'a [String],
}

fn document(message: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(message).map_err(|error| ApiError::Argument {
        name: "request",
        detail: error.to_string(),
    })
}

fn precondition(if_match: String, create_only: bool) -> Precondition {
    Precondition {
        if_match: match if_match.as_str() {
            "" => None,
            "*" => Some(EtagMatch::Any),
            _ => Some(EtagMatch::OneOf(vec![if_match])),
        },
        if_none_match: create_only.then_some(EtagMatch::Any),
    }
}

fn ttl(ttl: Option<prost_types::Duration>) -> Result<Option<Duration>, ApiError> {
    // A negative duration becomes zero, which is refused, too.
    ttl.map(|ttl| check_ttl(ttl.try_into().unwrap_or_default()))
        .transpose()
}

// === views as messages ===

impl TryFrom<RegistrationView> for Registration {
    type Error = Status;

    fn try_from(view: RegistrationView) -> Result<Self, Status> {
        Ok(Self {
            name: view.name,
            criterion: Some(criterion(&view.criterion)?),
            revision: view.revision,
            source: view.source.to_owned(),
            file: view.file.as_deref().unwrap_or_default().to_owned(),
            expires_at: view.expires_at.map(timestamp),
            shadows: view.shadows.map(|shadowed| Shadowed {
                source: shadowed.source.to_owned(),
                revision: shadowed.revision,
            }),
            etag: view.etag,
            warnings: view.warnings,
        })
    }
}

fn criterion(criterion: &Criterion) -> Result<messages::Criterion, Status> {
    serde_json::to_value(criterion)
        .and_then(serde_json::from_value)
        .map_err(not_a_message)
}

fn evaluation(line: Map<String, Value>) -> Result<messages::Evaluation, Status> {
    serde_json::from_value(Value::Object(line)).map_err(not_a_message)
}

fn not_a_message(error: serde_json::Error) -> Status {
    Status::internal(format!("the response does not fit its message: {error}"))
}

fn timestamp(unix_nanos: u64) -> Timestamp {
    Timestamp {
        seconds: (unix_nanos / 1_000_000_000) as i64,
        nanos: (unix_nanos % 1_000_000_000) as i32,
    }
}

// === routes ===

#[derive(Clone)]
struct Method<F> {
    register: Register,
    function: F,
}

fn unary<F, Q, A, R>(register: &Register, function: F) -> MethodRouter
where
    F: Fn(Register, Q) -> A + Copy + Send + Sync + 'static,
    A: Future<Output = Result<R, Status>> + Send + 'static,
    Q: Message + Default + 'static,
    R: Message + 'static,
{
    let register = register.clone();
    post(move |request: Request| {
        let register = register.clone();
        async move {
            let method = Method {
                register: register.clone(),
                function,
            };
            let mut grpc = grpc();
            let response = grpc.unary(method, request);
            in_time(&register, response).await
        }
    })
}

impl<F, Q, A, R> UnaryService<Q> for Method<F>
where
    F: Fn(Register, Q) -> A,
    A: Future<Output = Result<R, Status>> + Send + 'static,
{
    type Response = R;
    type Future = BoxFuture<tonic::Response<R>, Status>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let response = (self.function)(self.register.clone(), request.into_inner());
        Box::pin(async move { response.await.map(tonic::Response::new) })
    }
}

async fn in_time(
    register: &Register,
    response: impl Future<Output = Response<tonic::body::Body>>,
) -> Response {
    // Messages are in memory while they arrive, so only a few may arrive concurrently.
    let _permit = register.0.slots.bodies.acquire().await;
    match tokio::time::timeout(CALL_TIMEOUT, response).await {
        Ok(response) => response.map(Body::new),
        Err(_) => {
            let seconds = CALL_TIMEOUT.as_secs();
            Status::deadline_exceeded(format!("not done within {seconds} s")).into_http()
        }
    }
}

/// Returns the routes of reflection, in both of its versions. The services are created at their
/// first call: the decoded descriptors would use a tenth of an idle sidecar's memory.
fn reflection() -> Router {
    let services = Arc::new(LazyLock::new(|| {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
        };
        let mut router = Router::new();
        if let (Ok(v1), Ok(v1alpha)) = (builder().build_v1(), builder().build_v1alpha()) {
            router = router
                .route_service("/grpc.reflection.v1.ServerReflection/{method}", v1)
                .route_service(
                    "/grpc.reflection.v1alpha.ServerReflection/{method}",
                    v1alpha,
                );
        }
        router
    }));
    let serve = move |request: Request| {
        let mut services = Router::clone(&services);
        async move { Service::<Request>::call(&mut services, request).await }
    };
    Router::new()
        .route(
            "/grpc.reflection.v1.ServerReflection/{method}",
            any(serve.clone()),
        )
        .route(
            "/grpc.reflection.v1alpha.ServerReflection/{method}",
            any(serve),
        )
}

// === ProstCodec ===

fn grpc<Q, R>() -> Grpc<ProstCodec<Q, R>>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
{
    Grpc::new(ProstCodec(PhantomData)).apply_max_message_size_config(Some(MAX_BODY_SIZE), None)
}

/// tonic's codec, except that bytes that cannot be decoded are the caller's mistake
/// (INVALID_ARGUMENT), not ours (INTERNAL).
struct ProstCodec<Q, R>(PhantomData<(Q, R)>);

impl<Q, R> Codec for ProstCodec<Q, R>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
{
    type Encode = R;
    type Decode = Q;
    type Encoder = ProstEncoder<R>;
    type Decoder = RequestDecoder<Q>;

    fn encoder(&mut self) -> ProstEncoder<R> {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> RequestDecoder<Q> {
        RequestDecoder(PhantomData)
    }
}

struct RequestDecoder<Q>(PhantomData<Q>);

impl<Q: Message + Default> Decoder for RequestDecoder<Q> {
    type Item = Q;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Q>, Status> {
        Q::decode(buffer).map(Some).map_err(|error| {
            Status::invalid_argument(format!("cannot decode the request: {error}"))
        })
    }
}
