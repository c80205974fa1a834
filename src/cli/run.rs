//! `spanscore run`: starts the sidecar, and stops it gracefully on a signal.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::level_filters::LevelFilter;

use super::global::Global;
use super::watch::Watch;
use super::{Exit, Streams, rules};
use crate::config::{Config, Loaded, Log, LogFormat, LogLevel, Shape};
use crate::export::score_line::Look;
use crate::export::{Print, PrintForm};
use crate::register::ConfigOrigin;
use crate::sidecar::{self, Plan, Sidecar, StartError};
use crate::telemetry::{ConfigurationActive, ProxyIgnored, SendersElsewhere, Stopping};

/// Options of `run`.
#[derive(Debug, Default, Args)]
pub(super) struct Run {
    /// Store criteria registered through the API in this file, so that they survive a restart
    /// (`admin.state_file`).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) state_file: Option<PathBuf>,
    /// Write every request to files in this folder, to be read by `inspect`, `replay`, `init`,
    /// `learn` and `drift`: 64 MiB at most, then the oldest files are deleted. The files contain
    /// everything that agents send.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) record: Option<PathBuf>,
}

impl Run {
    /// Returns the global options, with `--state-file` added as an override.
    pub(super) fn applied_to(&self, global: &Global) -> Global {
        let overrides = self
            .state_file
            .iter()
            .map(|path| ("admin.state_file".to_owned(), path.display().to_string()));
        Global {
            set: global.set.iter().cloned().chain(overrides).collect(),
            ..global.clone()
        }
    }
}

/// Proxy variables. Other programs obey them, spanscore ignores them.
const PROXIES: [&str; 6] = [
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Environment variable set by deploy/kustomize/inject: it lists the containers of the pod that
/// export to another endpoint.
const ELSEWHERE: &str = "SENDERS_ELSEWHERE";

pub(super) fn run(
    args: &Run,
    loaded: Loaded,
    origin: Option<ConfigOrigin>,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let config = loaded.config;
    start_logging(&config.log, streams.err_colour());
    ConfigurationActive {
        downstream: config
            .forward_destination()
            .map(|destination| (destination.origin.clone(), destination.endpoint.to_string())),
        writes_kafka: config.kafka.write.enabled,
        only_reads_kafka: config.kafka.only_reads(),
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
    if let Some(senders) = environment.get(ELSEWHERE).filter(|text| !text.is_empty()) {
        SendersElsewhere { senders }.emit();
    }
    let plan = Plan {
        rules: rules(&config),
        cgroup_limit: || sidecar::memory_limit(|file| std::fs::read_to_string(file).ok()),
        print: print(&config, streams.look),
        observer: Some(Watch::new(io::stdout().is_terminal(), streams.look.width).observer()),
        origin,
        record: args.record.clone(),
        config,
    };
    let Some(runtime) = streams.runtime(&mut Builder::new_multi_thread())? else {
        return Ok(Exit::NoStart);
    };
    let exit = match runtime.block_on(until_stopped(plan, streams)) {
        Ok(exit) => exit,
        Err(error) => {
            let refusal = if error.is::<io::Error>() { "cannot start: " } else { "" };
            streams.complain(&format!("{refusal}{error}"))?;
            Exit::NoStart
        }
    };
    // A thread that is blocked in a name lookup must not delay the exit.
    runtime.shutdown_background();
    Ok(exit)
}

async fn until_stopped(plan: Plan, streams: &mut Streams<'_>) -> Result<Exit, StartError> {
    // Handle signals before any port is bound, because a signal must not kill a half-started
    // process.
    let mut signals = Signals {
        term: signal(SignalKind::terminate())?,
        int: signal(SignalKind::interrupt())?,
    };
    let mut drain = signal(SignalKind::user_defined1())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let exit_undelivered = plan.config.shutdown.exit_undelivered;
    let has_page = plan.config.admin.page.enabled && io::stdout().is_terminal();
    let has_tls = plan.config.admin.tls.is_some();
    let sidecar = Sidecar::start(plan).await?;
    if has_page {
        let page = page_address(sidecar.addresses.admin, has_tls);
        // A closed terminal must not stop the sidecar.
        let _ = streams.tell(&format!("look at the runs at {page}"));
    }
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
            let is_incomplete = stopped.n_undelivered + stopped.n_undelivered_scores > 0;
            stopped.emit(&telemetry);
            Ok(if exit_undelivered && is_incomplete { Exit::Undelivered } else { Exit::Fine })
        }
        _ = signals.next() => Ok(Exit::Cut),
    }
}

/// Returns the page's address for a browser on this host.
pub(super) fn page_address(admin: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    if admin.ip().is_unspecified() || admin.ip().is_loopback() {
        format!("{scheme}://localhost:{}/", admin.port())
    } else {
        format!("{scheme}://{admin}/")
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

/// Returns a printer of evaluations if no score spans, events or metrics are sent, so that a
/// sidecar without an OTLP destination shows its evaluations.
fn print(config: &Config, look: Look) -> Option<Print> {
    if Shape::ALL
        .into_iter()
        .any(|shape| config.score_destination(shape).is_ok())
    {
        return None;
    }
    let form = if io::stdout().is_terminal() {
        PrintForm::Human(look)
    } else {
        PrintForm::Jsonl
    };
    Some(Print {
        form,
        out: Box::new(io::stdout()),
    })
}

/// Starts logging. A second call has no effect.
fn start_logging(log: &Log, colour: bool) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let as_text = match log.format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(colour)
        .with_target(false);
    // An error means that logging has already started.
    let _ = if as_text {
        builder.try_init().map_err(drop)
    } else {
        builder.json().flatten_event(true).try_init().map_err(drop)
    };
}
