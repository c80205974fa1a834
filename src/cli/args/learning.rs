//! The options of `learn` and `drift`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::Recordings;

/// Options of `learn`.
#[derive(Debug, Args)]
pub struct Learn {
    /// The recordings to read.
    #[command(flatten)]
    pub recordings: Recordings,
    /// Criteria file to write; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "learned.yaml")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Baseline file to write, for `spanscore drift`.
    #[arg(long, value_name = "FILE", default_value = "learned.baseline.json")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub baseline: PathBuf,
    /// Skip agents with fewer than N runs, and rules that fewer than N runs follow.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub min_runs: usize,
    /// Also learn rules broken by at most this share of the runs concerned (0 <= SHARE < 0.5).
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = zero_to_half)]
    #[arg(allow_negative_numbers = true)]
    pub noise: f64,
    /// Overwrite existing files.
    #[arg(long)]
    pub force: bool,
}

/// Options of `drift`.
#[derive(Debug, Args)]
pub struct Drift {
    /// The recordings to read.
    #[command(flatten)]
    pub recordings: Recordings,
    /// Baseline that `spanscore learn` wrote.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub baseline: PathBuf,
    /// Compare only agents with at least N runs in both the recordings and the baseline.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub min_runs: usize,
    /// Output format.
    #[arg(long, value_enum, default_value_t = DriftFormat::Human)]
    pub format: DriftFormat,
    /// Exit 0 even on drift, or if nothing was compared.
    #[arg(long)]
    pub exit_zero: bool,
}

/// Output formats of `drift`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DriftFormat {
    /// Text for people.
    Human,
    /// One JSON object per agent and measure.
    Jsonl,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "expected a whole number, 1 or more".to_owned())
}

fn zero_to_half(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| (0.0..0.5).contains(number))
        .ok_or_else(|| "expected a number from 0 to below 0.5".to_owned())
}
