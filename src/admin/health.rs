//! Answers `grpc.health.v1.Health` like `/readyz`, for probes that speak gRPC. Open, since probes
//! have no token. Knows two services: the server itself, whose name is empty, and the one on this
//! port.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use tokio::sync::Semaphore;
use tokio::time::{self, Instant};
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic_prost::ProstCodec;

use super::AdminPort;
use crate::telemetry::{Heartbeat, Phase};

/// Most watchers at once, since every caller may watch.
const MAX_WATCHERS: usize = 64;

/// The services that it answers for.
const SERVICES: [&str; 2] = ["", "spanscore.v1.CriteriaService"];

static WATCHERS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(MAX_WATCHERS)));

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "Readiness", tag = "1")]
    pub(super) status: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Readiness {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

pub(super) async fn check(
    State(admin): State<AdminPort>,
    request: Request,
) -> Result<Response, Infallible> {
    Ok(Grpc::new(ProstCodec::default())
        .unary(Health(admin), request)
        .await
        .map(Body::new))
}

pub(super) async fn watch(
    State(admin): State<AdminPort>,
    request: Request,
) -> Result<Response, Infallible> {
    Ok(Grpc::new(ProstCodec::default())
        .server_streaming(Health(admin), request)
        .await
        .map(Body::new))
}

#[derive(Clone)]
struct Health(AdminPort);

impl Health {
    fn serving(&self) -> Readiness {
        let telemetry = &self.0.telemetry;
        let is_well = telemetry.phase() == Phase::Serving
            && telemetry.unhealthy(Instant::now().into_std()).is_empty();
        if is_well {
            Readiness::Serving
        } else {
            Readiness::NotServing
        }
    }
}

fn answer(status: Readiness) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

impl UnaryService<HealthCheckRequest> for Health {
    type Response = HealthCheckResponse;
    type Future = Ready<Result<tonic::Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
        let service = request.into_inner().service;
        ready(match SERVICES.contains(&service.as_str()) {
            true => Ok(tonic::Response::new(answer(self.serving()))),
            false => Err(Status::not_found("no such service on this port")),
        })
    }
}

impl ServerStreamingService<HealthCheckRequest> for Health {
    type Response = HealthCheckResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    /// The status now, then each change, looked for as often as workers beat.
    fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
        let Ok(permit) = Arc::clone(&WATCHERS).try_acquire_owned() else {
            return ready(Err(Status::resource_exhausted("too many watchers already")));
        };
        let is_known = SERVICES.contains(&request.get_ref().service.as_str());
        let (health, mut last) = (self.clone(), None);
        let changes =
            IntervalStream::new(time::interval(Heartbeat::INTERVAL)).filter_map(move |_| {
                let _held_as_long_as_somebody_watches = &permit;
                let status = if is_known {
                    health.serving()
                } else {
                    Readiness::ServiceUnknown
                };
                (last.replace(status) != Some(status)).then(|| Ok(answer(status)))
            });
        ready(Ok(tonic::Response::new(Box::pin(changes))))
    }
}
