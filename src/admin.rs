//! Health, readiness and metrics over HTTP: what was counted and who is alive in, answers to probes
//! and scrapes out; and the door to the API that others serve on this port. Knows only what
//! telemetry tells; a downstream's outage is none of its business and turns no light red.

mod guard;
mod health;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::time::Instant;

use crate::telemetry::{MetricsPage, MetricsSource, Phase, Telemetry};

pub use guard::{Guard, TokenError};

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    /// Metrics and heartbeats.
    pub telemetry: Arc<Telemetry>,
    /// What others append to `/metrics`.
    pub metrics: Vec<MetricsSource>,
    /// Start of the process, Unix nanoseconds.
    pub started_unix_nanos: u64,
    /// Who may use the API.
    pub guard: Arc<Guard>,
    /// The API: what others serve here.
    pub api: Router,
}

impl Admin {
    /// The routes: `/livez`, `/readyz` and `/metrics`, open to whoever reaches the port, and the
    /// API behind its guard.
    pub fn router(self) -> Router {
        let api = self.api.clone().layer(middleware::from_fn_with_state(
            self.guard.clone(),
            guard::guarded,
        ));
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/grpc.health.v1.Health/Check", post(health::check))
            .route("/grpc.health.v1.Health/Watch", post(health::watch))
            .with_state(self)
            .merge(api)
            .fallback(not_found)
    }
}

/// Alive as long as every worker beats; also while starting and draining, else we would be killed
/// for stopping in good order.
async fn livez(State(admin): State<Admin>) -> impl IntoResponse {
    match ill(&admin.telemetry) {
        Some(ill) => (StatusCode::SERVICE_UNAVAILABLE, ill),
        None => (
            StatusCode::OK,
            format!("ok: {}\n", admin.telemetry.workers().join(", ")),
        ),
    }
}

/// Ready from the moment every port is bound until we are told to stop, as long as every worker
/// beats.
async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    match (admin.telemetry.phase(), ill(&admin.telemetry)) {
        (_, Some(ill)) => (StatusCode::SERVICE_UNAVAILABLE, ill),
        (Phase::Starting, None) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "starting: not every port is bound yet\n".to_owned(),
        ),
        (Phase::Draining, None) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "draining: told to stop\n".to_owned(),
        ),
        (Phase::Serving, None) => (StatusCode::OK, "ready\n".to_owned()),
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, MetricsPage::CONTENT_TYPE)],
        admin
            .telemetry
            .metrics_text(admin.started_unix_nanos, &admin.metrics),
    )
}

async fn not_found() -> impl IntoResponse {
    (
        StatusCode::NOT_FOUND,
        "this is spanscore's admin port; it has /livez, /readyz, /metrics and the API below /v1 (OTLP goes to 4317 and 4318)\n",
    )
}

/// Who is dead or stuck, a line each.
fn ill(telemetry: &Telemetry) -> Option<String> {
    let ill = telemetry.unhealthy(Instant::now().into_std());
    (!ill.is_empty()).then(|| {
        ill.iter()
            .map(|(name, illness)| format!("{name} {illness}\n"))
            .collect()
    })
}

#[cfg(test)]
mod tests;
