//! The API as gRPC: messages in, the same documents as REST takes to [`Register`], its answers back
//! as messages. Knows the descriptors that `build.rs` compiled; has no code of its own for any
//! field, but for the one that the file writes as a pair ([`spelling`]).

mod spelling;
#[cfg(test)]
mod tests;

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{any, post};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, Value as Field,
};
use serde_json::{Value, json};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, ServerStreamingService, UnaryService};

use super::judge::Question;
use super::problem::ApiError;
use super::rest::{MAX_PAGE_SIZE, PAGE_SIZE, check_ttl, page_after};
use super::{Applied, Change, Condition, MAX_BODY_SIZE, Register, Tags, frugal};

use crate::text::rfc3339;

/// `spanscore.v1`, `grpc.health.v1` and what they import, as `build.rs` compiled them.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spanscore_descriptors.bin"));

/// Longest time from a call's beginning to its answer.
const PATIENCE: Duration = Duration::from_secs(60);

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS)
        .expect("build.rs wrote a descriptor set that it had compiled")
});

/// Where [`services`] answer.
const PATHS: [&str; 3] = [
    "/spanscore.v1.CriteriaService/{method}",
    "/grpc.reflection.v1.ServerReflection/{method}",
    "/grpc.reflection.v1alpha.ServerReflection/{method}",
];

/// The services, which are made when they are called for the first time: what descriptors decode to
/// is a tenth of an idle sidecar's memory.
pub(super) fn routes(register: Register) -> Router {
    let services = Arc::new(LazyLock::new(move || services(register)));
    let late = move |request: Request| {
        let mut services = Router::clone(&services);
        async move { services.call(request).await }
    };
    PATHS.into_iter().fold(Router::new(), |router, path| {
        router.route(path, any(late.clone()))
    })
}

fn services(register: Register) -> Router {
    let mut router = Router::new()
        .fallback(async || Status::unimplemented("no such method").into_http::<Body>());
    let service = POOL
        .get_service_by_name("spanscore.v1.CriteriaService")
        .expect("it is in the descriptor set");
    for method in service.methods() {
        let path = format!("/{}/{}", service.full_name(), method.name());
        let call = Call {
            register: register.clone(),
            method,
        };
        router = router.route(
            &path,
            post(move |request: Request| async move { call.serve(request).await }),
        );
    }
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1();
    let older = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1alpha();
    if let (Ok(reflection), Ok(older)) = (reflection, older) {
        router = router
            .route_service("/grpc.reflection.v1.ServerReflection/{method}", reflection)
            .route_service("/grpc.reflection.v1alpha.ServerReflection/{method}", older);
    }
    router
}

/// One method of the service, for one call.
#[derive(Clone)]
struct Call {
    register: Register,
    method: MethodDescriptor,
}

impl Call {
    async fn serve(self, request: Request) -> Response {
        let mut grpc = Grpc::new(Dynamic(self.method.input()))
            .apply_max_message_size_config(Some(MAX_BODY_SIZE), None);
        // Messages are held while they come in, so only some may come in at once.
        let register = self.register.clone();
        let _permit = register.0.bodies.acquire().await;
        let answer = async {
            match self.method.is_server_streaming() {
                true => grpc.server_streaming(self, request).await,
                false => grpc.unary(self, request).await,
            }
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(response) => response.map(Body::new),
            Err(_) => {
                Status::deadline_exceeded(format!("not done within {} s", PATIENCE.as_secs()))
                    .into_http()
            }
        }
    }

    /// The answer, as REST would give it.
    async fn answer(&self, request: DynamicMessage) -> Result<Value, ApiError> {
        let register = &self.register;
        let asked = Asked::new(&request)?;
        match self.method.name() {
            "Get" => register.get(asked.text("name")),
            "List" => {
                let page_size = match asked.0["page_size"].as_u64().unwrap_or_default() {
                    0 => PAGE_SIZE,
                    size => usize::try_from(size)
                        .unwrap_or(MAX_PAGE_SIZE)
                        .min(MAX_PAGE_SIZE),
                };
                let after = Some(asked.text("page_token"))
                    .filter(|token| !token.is_empty())
                    .map(page_after)
                    .transpose()?;
                Ok(register.list(page_size, after.as_deref()))
            }
            "Upsert" => {
                let (change, text) = (asked.change()?, asked.document("criterion"));
                register
                    .work(move |register| register.upsert(None, &text, &change))
                    .await
                    .map(|(registered, _)| registered)
            }
            "Delete" => {
                let (change, name) = (asked.change()?, asked.text("name").to_owned());
                register
                    .work(move |register| register.delete(&name, &change))
                    .await
            }
            "Replace" => {
                let change = asked.change()?;
                let text = json!({ "criteria": asked.0.get("criteria").cloned().unwrap_or_else(|| json!([])) }).to_string();
                register
                    .work(move |register| register.replace(&text, &change))
                    .await
            }
            "Evaluate" => {
                // Spans stay protobuf: their ids are bytes, and nobody needs them as JSON on the
                // way.
                let traces = request
                    .has_field_by_name("traces")
                    .then(|| request.get_field_by_name("traces"))
                    .flatten();
                let traces =
                    traces.and_then(|field| field.as_message().map(DynamicMessage::encode_to_vec));
                let mut question = asked.0.clone();
                if let Some(fields) = question.as_object_mut() {
                    fields.shift_remove("traces");
                }
                register
                    .work(move |register| register.evaluate_with(&question.to_string(), traces))
                    .await
            }
            _ => Err(ApiError::NotFound("no such method".to_owned())),
        }
    }
}

impl Register {
    fn evaluate_with(&self, text: &str, traces: Option<Vec<u8>>) -> Result<Value, ApiError> {
        let question = frugal(|| Question::read(text))?.with_protobuf(traces);
        self.judge(question)
    }
}

/// A request as JSON, spelled as the file spells it.
struct Asked(Value);

impl Asked {
    fn new(request: &DynamicMessage) -> Result<Self, ApiError> {
        let mut request = request.clone();
        // Read apart.
        if let Some(Field::Message(_)) = request
            .get_field_by_name("traces")
            .as_deref()
            .filter(|_| request.has_field_by_name("traces"))
        {
            request.clear_field_by_name("traces");
        }
        let shown = spelling::to_json(&request).map_err(|error| ApiError::Argument {
            name: "request",
            detail: error.to_string(),
        })?;
        Ok(Self(shown))
    }

    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    /// A part of it as the text of a document of its own.
    fn document(&self, key: &str) -> String {
        self.0
            .get(key)
            .map_or_else(|| "{}".to_owned(), Value::to_string)
    }

    fn change(&self) -> Result<Change, ApiError> {
        let if_match = match self.text("if_match") {
            "" => None,
            "*" => Some(Tags::Any),
            tag => Some(Tags::These(vec![tag.to_owned()])),
        };
        let create_only = self.0["create_only"].as_bool().unwrap_or_default();
        let ttl = self.0.get("ttl").map(|ttl| {
            let seconds = ttl
                .as_str()
                .and_then(|text| text.strip_suffix('s')?.parse::<f64>().ok());
            let ttl = seconds
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .unwrap_or_default();
            check_ttl(ttl)
        });
        Ok(Change {
            condition: Condition {
                if_match,
                if_none_match: create_only.then_some(Tags::Any),
            },
            ttl: ttl.transpose()?,
            validate_only: self.0["validate_only"].as_bool().unwrap_or_default(),
        })
    }
}

// === tonic's two kinds of calls ===

impl UnaryService<DynamicMessage> for Call {
    type Response = DynamicMessage;
    type Future = BoxFuture<tonic::Response<DynamicMessage>, Status>;

    fn call(&mut self, request: tonic::Request<DynamicMessage>) -> Self::Future {
        let call = self.clone();
        Box::pin(async move {
            let within = if call.method.name() == "Upsert" {
                "criterion"
            } else {
                ""
            };
            let answer = call
                .answer(request.into_inner())
                .await
                .map_err(|error| error.status(within))?;
            message(&answer, call.method.output()).map(tonic::Response::new)
        })
    }
}

impl ServerStreamingService<DynamicMessage> for Call {
    type Response = DynamicMessage;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<DynamicMessage, Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: tonic::Request<DynamicMessage>) -> Self::Future {
        let Ok(permit) = Arc::clone(&self.register.0.watchers).try_acquire_owned() else {
            return ready(Err(Status::resource_exhausted("too many watchers already")));
        };
        // Subscribed before the set in force is looked at: one that comes in between is told twice,
        // never not at all.
        let applied = BroadcastStream::new(self.register.0.applied.subscribe());
        let now = self.register.in_force_now();
        let output = self.method.output();
        let told = applied.map(|applied| match applied {
            Ok(applied) => applied.to_json(),
            Err(BroadcastStreamRecvError::Lagged(n_missed)) => json!({ "n_missed": n_missed }),
        });
        let all = tokio_stream::once(now).chain(told).map(move |shown| {
            let _held_as_long_as_somebody_watches = &permit;
            message(&shown, output.clone())
        });
        ready(Ok(tonic::Response::new(Box::pin(all))))
    }
}

impl Register {
    fn in_force_now(&self) -> Value {
        let registered = self.0.registered.load();
        json!({
            "revision": registered.revision(),
            "n_criteria": registered.len(),
            "cause": "now",
            "applied_at": rfc3339((self.0.clock)().unix_nanos),
        })
    }
}

impl Applied {
    fn to_json(&self) -> Value {
        json!({
            "revision": self.revision,
            "n_criteria": self.n_criteria,
            "cause": self.cause,
            "applied_at": rfc3339(self.unix_nanos),
            "added": self.changes.added,
            "changed": self.changes.changed,
            "removed": self.changes.removed,
        })
    }
}

fn message(shown: &Value, descriptor: MessageDescriptor) -> Result<DynamicMessage, Status> {
    spelling::from_json(shown, descriptor)
        .map_err(|error| Status::internal(format!("an answer that is no message: {error}")))
}

// === Dynamic ===

/// Messages by their descriptor.
struct Dynamic(MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = DynamicEncoder;
    type Decoder = DynamicDecoder;

    fn encoder(&mut self) -> DynamicEncoder {
        DynamicEncoder
    }

    fn decoder(&mut self) -> DynamicDecoder {
        DynamicDecoder(self.0.clone())
    }
}

struct DynamicEncoder;

impl Encoder for DynamicEncoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(
        &mut self,
        message: DynamicMessage,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        message
            .encode(buffer)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

struct DynamicDecoder(MessageDescriptor);

impl Decoder for DynamicDecoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.0.clone(), buffer);
        message.map(Some).map_err(|error| {
            Status::invalid_argument(format!("not a {}: {error}", self.0.full_name()))
        })
    }
}
