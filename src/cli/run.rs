//! `spanscore run`: starts the sidecar, and stops it in good order when it is told to.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::watch::Watch;
use super::{Exit, Streams, logging, rules};
use crate::config::{Config, Loaded, Shape};
use crate::export::score_line::Colour;
use crate::export::{Form, Print};
use crate::register::Origin;
use crate::sidecar::{self, Plan, Sidecar, StartError};
use crate::telemetry::{ConfigurationInForce, ProxyIgnored, Stopping};

/// Proxies that other programs would go through.
const PROXIES: [&str; 6] = [
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Runs the command.
pub(super) fn run(
    loaded: Loaded,
    origin: Option<Origin>,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let config = loaded.config;
    logging::start(&config.log, streams.err_colour);
    ConfigurationInForce {
        downstream: config
            .forward_destination()
            .map(|destination| (destination.origin.clone(), destination.endpoint.to_string())),
        n_criteria: config.criteria.len(),
        scoring: config.scoring.enabled,
    }
    .emit();
    if let Some(variable) = PROXIES.into_iter().find(|name| {
        environment
            .get(*name)
            .is_some_and(|value| !value.is_empty())
    }) {
        ProxyIgnored { variable }.emit();
    }
    let plan = Plan {
        rules: rules(&config),
        cgroup_limit: sidecar::memory_limit(|file| std::fs::read_to_string(file).ok()),
        print: print(&config, streams.colour),
        observer: Some(Watch::new(io::stdout().is_terminal()).observer()),
        origin,
        config,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            return streams
                .complain(&format!("cannot start: {error}"))
                .map(|()| Exit::NoStart);
        }
    };
    let exit = match runtime.block_on(until_stopped(plan)) {
        Ok(exit) => exit,
        Err(error) => {
            streams.complain(&error.to_string())?;
            Exit::NoStart
        }
    };
    // What still blocks a thread (a name being looked up) must not keep us.
    runtime.shutdown_background();
    Ok(exit)
}

async fn until_stopped(plan: Plan) -> Result<Exit, StartError> {
    // Before anything is bound: a signal that comes while we start must not kill us half way.
    let mut signals = Signals {
        term: signal(SignalKind::terminate())?,
        int: signal(SignalKind::interrupt())?,
    };
    let mut drain = signal(SignalKind::user_defined1())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let sidecar = Sidecar::start(plan).await?;
    let name = loop {
        tokio::select! {
            name = signals.next() => break name,
            _ = drain.recv() => sidecar.begin_drain(),
            _ = hang_up.recv() => sidecar.register.reload_soon(),
        }
    };
    let telemetry = sidecar.telemetry.clone();
    Stopping { signal: name }.emit(&telemetry);
    tokio::select! {
        stopped = sidecar.stop() => {
            stopped.emit(&telemetry);
            Ok(Exit::Fine)
        }
        _ = signals.next() => Ok(Exit::Cut),
    }
}

struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

/// With no endpoint for any shape of score, and so nobody to read it, evaluations are printed.
fn print(config: &Config, colour: bool) -> Option<Print> {
    if Shape::ALL
        .into_iter()
        .any(|shape| config.score_destination(shape).is_ok())
    {
        return None;
    }
    let form = if io::stdout().is_terminal() {
        Form::Human(Colour::when(colour))
    } else {
        Form::Jsonl
    };
    Some(Print {
        form,
        out: Box::new(io::stdout()),
    })
}
