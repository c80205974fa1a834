//! Serves health, readiness and metrics over HTTP, and guards the API of other modules on this
//! port. Health depends only on the sidecar's own state: an outage of the downstream must not make
//! the sidecar unhealthy.

mod guard;
mod scrapes;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::time::Instant;

use crate::telemetry::{MetricsPage, MetricsSource, Phase, RequestMisdirected, Telemetry};

pub use guard::{Guard, TokenError};
pub use scrapes::Scrapes;

#[derive(Clone)]
pub struct AdminPort {
    pub telemetry: Arc<Telemetry>,
    /// Sources of metrics that are counted outside telemetry.
    pub metrics: Vec<MetricsSource>,
    pub scrapes: Arc<Scrapes>,
    pub started_unix_nanos: u64,
    /// The addresses of the OTLP ports, to name in answers to requests that were sent to this port
    /// by mistake.
    pub otlp: OtlpAddresses,
    pub guard: Arc<Guard>,
    pub api: Router,
    /// The routes of the page's files, which contain no telemetry.
    pub page: Router,
}

/// The bound addresses of the OTLP ports; `None` for a disabled port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtlpAddresses {
    pub grpc: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
}

impl AdminPort {
    /// Returns the routes. `/livez`, `/readyz` and `/metrics` are open to every caller, and the API
    /// is behind the guard. The page is behind the same guard, but without a check of the token,
    /// because the page itself prompts for the token.
    pub fn router(self) -> Router {
        let api = self.api.clone().layer(middleware::from_fn_with_state(
            self.guard.clone(),
            guard::guarded,
        ));
        let page = self.page.clone().layer(middleware::from_fn_with_state(
            self.guard.clone(),
            guard::guarded_page,
        ));
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .fallback(not_found)
            .with_state(self)
            .merge(api)
            .merge(page)
    }
}

/// Answers whether the sidecar is alive, which means that every worker sends heartbeats. The
/// sidecar is alive during the start and a drain, too; otherwise the process would be killed during
/// an orderly stop.
async fn livez(State(admin): State<AdminPort>) -> impl IntoResponse {
    match unhealthy(&admin.telemetry) {
        Some(unhealthy) => (StatusCode::SERVICE_UNAVAILABLE, unhealthy),
        None => (
            StatusCode::OK,
            format!("ok: {}\n", admin.telemetry.workers().join(", ")),
        ),
    }
}

async fn readyz(State(admin): State<AdminPort>) -> impl IntoResponse {
    match (admin.telemetry.phase(), unhealthy(&admin.telemetry)) {
        (_, Some(unhealthy)) => (StatusCode::SERVICE_UNAVAILABLE, unhealthy),
        (Phase::Starting, None) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "starting: a port is not bound yet, or a Kafka group not joined\n".to_owned(),
        ),
        (Phase::Draining, None) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "draining: told to stop\n".to_owned(),
        ),
        (Phase::Serving, None) => (StatusCode::OK, "ready\n".to_owned()),
    }
}

async fn metrics(State(admin): State<AdminPort>) -> impl IntoResponse {
    let page = admin.scrapes.page(Instant::now(), || {
        let AdminPort {
            telemetry, metrics, ..
        } = &admin;
        telemetry.metrics_text(admin.started_unix_nanos, metrics)
    });
    (
        [(header::CONTENT_TYPE, MetricsPage::CONTENT_TYPE)],
        Body::new(page),
    )
}

async fn not_found(State(admin): State<AdminPort>, request: Request) -> impl IntoResponse {
    let message = format!(
        "this is spanscore's admin port: it has /livez, /readyz, /metrics and the API below /v1; \
         {}\n",
        admin.otlp
    );
    // Browsers request unknown paths, too, but a POST usually comes from an exporter.
    if request.method() == Method::POST {
        RequestMisdirected {
            reason: "port",
            method: request.method().as_str(),
            path: request.uri().path(),
            remedy: message.trim_end(),
        }
        .emit(&admin.telemetry);
    }
    (StatusCode::NOT_FOUND, message)
}

impl fmt::Display for OtlpAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.grpc, self.http) {
            (Some(grpc), Some(http)) => {
                write!(f, "send OTLP/gRPC to {grpc} and OTLP/HTTP to {http}")
            }
            (Some(grpc), None) => write!(f, "send OTLP to {grpc}"),
            (None, Some(http)) => write!(f, "send OTLP to {http}"),
            (None, None) => write!(f, "both OTLP ports are off (`receivers.otlp`)"),
        }
    }
}

fn unhealthy(telemetry: &Telemetry) -> Option<String> {
    let workers = telemetry.unhealthy(Instant::now().into_std());
    (!workers.is_empty()).then(|| {
        workers
            .iter()
            .map(|(name, problem)| format!("{name} {problem}\n"))
            .collect()
    })
}

#[cfg(test)]
mod tests;
