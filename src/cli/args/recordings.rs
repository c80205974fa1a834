//! The recordings that a subcommand reads.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};

use crate::config::Signal;

/// The recordings to read.
#[derive(Debug, Clone, Args)]
pub struct Recordings {
    /// Recordings, read in the order given: OTLP JSON lines, or .json and .pb request bodies, also
    /// as .gz and .zst; a folder means all files in it; - is standard input.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Signal of a request body if neither its file name nor its content shows it.
    #[arg(long, default_value = "traces", value_parser = signals())]
    pub signal: Signal,
}

/// Parses the name of a signal.
fn signals() -> impl TypedValueParser<Value = Signal> {
    let values = Signal::ALL.map(|signal| {
        let help = match signal {
            Signal::Traces => "Spans",
            Signal::Logs => "Log records",
            Signal::Metrics => "Metric points; read and ignored",
        };
        PossibleValue::new(signal.as_str()).help(help)
    });
    PossibleValuesParser::new(values).map(|name| {
        let signal = Signal::ALL.into_iter().find(|it| it.as_str() == name);
        signal.expect("only the names of signals are possible values")
    })
}
