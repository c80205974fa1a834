//! Starts logging to standard error, as text or as JSON lines.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;

use crate::config::{Log, LogFormat, LogLevel};

/// Starts logging. A second call has no effect.
pub(super) fn start(log: &Log, colour: bool) {
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
