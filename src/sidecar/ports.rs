//! Binds the ports, limits their connections, and opens and closes them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Addresses, StartError, now};
use crate::config::{Bound, Budgets, Config};
use crate::listen::{ConnectionLimits, ConnectionSlots, Handler, Port};
use crate::telemetry::Telemetry;
use crate::tls::PortTls;

/// Every port, bound before any request is answered.
pub(super) struct Ports {
    pub(super) grpc: Option<Port>,
    pub(super) http: Option<Port>,
    pub(super) admin: Port,
}

impl Ports {
    pub(super) async fn bind(
        config: &Config,
        budgets: &Budgets<Bound>,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, StartError> {
        let [slots, admin_slots] = slots(budgets);
        let otlp = &config.receivers.otlp;
        let tls = otlp
            .tls
            .as_ref()
            .map(|tls| PortTls::try_new(tls, telemetry))
            .transpose()?
            .map(Arc::new);
        let bind = async |is_enabled: bool, address, setting| {
            if !is_enabled || config.kafka.only_reads() {
                return Ok(None);
            }
            Port::bind(address, setting, tls.clone(), &slots)
                .await
                .map(Some)
        };
        let (grpc, http) = (&otlp.grpc, &otlp.http);
        let grpc = bind(grpc.enabled, grpc.listen, "receivers.otlp.grpc.listen").await?;
        let http = bind(http.enabled, http.listen, "receivers.otlp.http.listen").await?;
        // Probes and scrapers have no certificate, so the guard decides which requests need one.
        let tls = config
            .admin
            .tls
            .as_ref()
            .map(|tls| PortTls::with_optional_clients(tls, telemetry))
            .transpose()?
            .map(Arc::new);
        Ok(Self {
            grpc,
            http,
            admin: Port::bind(config.admin.listen, "admin.listen", tls, &admin_slots).await?,
        })
    }

    pub(super) fn addresses(&self) -> io::Result<Addresses> {
        let of = |port: &Option<Port>| port.as_ref().map(Port::address).transpose();
        Ok(Addresses {
            grpc: of(&self.grpc)?,
            http: of(&self.http)?,
            admin: self.admin.address()?,
        })
    }
}

/// Maximum number of connections of senders. An agent opens few.
const MAX_CONNECTIONS: usize = 4096;

/// Maximum number of connections to the admin port: probes, scrapers, listeners, API clients.
const MAX_ADMIN_CONNECTIONS: usize = 64;

/// Number of file descriptors that are reserved for the admin port, destinations and files.
const KEPT_DESCRIPTORS: usize = 256;

/// Returns the connection slots of senders, and separate slots of the admin port.
fn slots(budgets: &Budgets<Bound>) -> [Arc<ConnectionSlots>; 2] {
    let descriptors = getrlimit(Resource::Nofile)
        .current
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX);
    let of_senders = ConnectionLimits {
        memory: budgets.connections.clone(),
        connections: descriptors
            .saturating_sub(KEPT_DESCRIPTORS)
            .clamp(1, MAX_CONNECTIONS),
        streams: 100,
    };
    let of_admin = ConnectionLimits {
        memory: budgets.admin_connections.clone(),
        connections: MAX_ADMIN_CONNECTIONS,
        streams: 16,
    };
    [of_senders, of_admin].map(ConnectionSlots::new)
}

/// The served ports, and the signal that closes them.
pub(super) struct Doors {
    serving: JoinSet<()>,
    closing: watch::Sender<bool>,
}

impl Doors {
    pub(super) fn new() -> Self {
        Self {
            serving: JoinSet::new(),
            closing: watch::Sender::new(false),
        }
    }

    pub(super) fn open(&mut self, port: Port, handler: Handler, telemetry: &Arc<Telemetry>) {
        let mut closing = self.closing.subscribe();
        let heartbeat = telemetry.heartbeat(port.setting(), now().instant);
        let shutdown = async move {
            // If the sender was dropped, the ports are closed, too.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        self.serving
            .spawn(port.serve(handler, shutdown, heartbeat, telemetry.clone()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.serving.is_empty()
    }

    /// Accepts no further connections. Requests in progress may be completed within the grace
    /// period.
    pub(super) async fn close(mut self, grace: Duration) {
        self.closing.send_replace(true);
        let all = async { while self.serving.join_next().await.is_some() {} };
        // Dropping the set aborts unfinished requests. Their senders still have the data.
        let _ = tokio::time::timeout(grace, all).await;
    }
}
