//! A command line in, what is asked for out. Knows every subcommand and flag; does not know what
//! they do.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

/// A sidecar for AI agents: forwards OpenTelemetry untouched and scores every trace's tool calls.
#[derive(Debug, Parser)]
#[command(name = "spanscore", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What every subcommand takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do; `run` if left out.
    #[command(subcommand)]
    pub command: Option<Command>,
}

const EXIT_CODES: &str = "\
Configuration: flag, then SPANSCORE_… variable, then file, then OTEL_EXPORTER_OTLP_… variable, then default.
A variable is SPANSCORE_ and the key in upper case, __ between levels: SPANSCORE_FORWARD__ENDPOINT.

Exit codes: 0 fine, 1 a criterion failed, 2 usage or configuration, 3 unreadable input, 4 could not start.";

/// What every subcommand takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// Configuration file, YAML or JSON [default: ./spanscore.yaml if it is there].
    #[arg(short, long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Set a key of the configuration, over file and variables: --set
    /// forward.endpoint=http://localhost:4319.
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub set: Vec<(String, String)>,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("write KEY=VALUE, such as `forward.endpoint=http://localhost:4319`".to_owned()),
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Receive OTLP, score finished traces, forward everything (this is the default).
    Run(Run),
    /// Start a real sidecar, feed it a recorded agent session over OTLP, print the scores.
    Demo,
    /// Score recorded traces.
    Replay(Replay),
    /// Show the tool calls of recorded traces as spanscore understands them.
    Inspect(Inspect),
    /// Show the scores of a running sidecar as they happen.
    Tap(Tap),
    /// Check a configuration and print every problem.
    Validate(Validate),
    /// Write a commented starter configuration.
    Init(Init),
    /// Print the JSON Schema of the configuration.
    Schema,
    /// Print the completion script of a shell.
    Completions(Completions),
    /// Exit 0 if the running sidecar is ready, 1 if not (for probes).
    Health(Health),
    /// Show and change the criteria of a running sidecar.
    Criteria(Criteria),
    /// Tell the running sidecar to drain (for preStop hooks in an image without a shell).
    Drain(Drain),
}

/// `run`.
#[derive(Debug, Default, Args)]
pub struct Run {
    /// Keep criteria registered by the API in this file over restarts (`admin.state_file`).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub state_file: Option<PathBuf>,
}

impl Run {
    /// The flags that every subcommand takes, with those of this one among them.
    pub(super) fn applied_to(&self, global: &Global) -> Global {
        let own = self
            .state_file
            .iter()
            .map(|path| ("admin.state_file".to_owned(), path.display().to_string()));
        Global {
            set: global.set.iter().cloned().chain(own).collect(),
            ..global.clone()
        }
    }
}

/// Which recordings to read.
#[derive(Debug, Clone, Args)]
pub struct Recordings {
    /// OTLP JSON lines, .json or .pb request bodies, also .gz and .zst; - is standard input. Read
    /// in this order.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Signal of bodies whose file name and content do not tell.
    #[arg(long, value_enum, default_value_t = RecordedSignal::Traces)]
    pub signal: RecordedSignal,
}

/// A signal on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordedSignal {
    /// Spans.
    Traces,
    /// Log records.
    Logs,
    /// Metric points; read and ignored.
    Metrics,
}

/// `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// Which recordings to read.
    #[command(flatten)]
    pub recordings: Recordings,
    /// What is expected of each run by itself, YAML or JSON: `examples:`, a list of `{id?, input?,
    /// expected_tools | expected_output | evaluate}`. An entry replaces the fields of the criteria
    /// of its evaluator, or is judged as criterion `example`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub examples: Option<PathBuf>,
    /// No other calls than an example's `expected_tools`.
    #[arg(long, requires = "examples")]
    pub exact_match: bool,
    /// How to print the evaluations.
    #[arg(long, value_enum, default_value_t = ReplayFormat::Human)]
    pub format: ReplayFormat,
    /// Count `not_evaluated` as a failure.
    #[arg(long)]
    pub strict: bool,
    /// Fail if a criterion's mean score is below X (0 to 1), instead of on any `fail` or `error`.
    #[arg(long, value_name = "X", value_parser = share)]
    pub fail_under: Option<f64>,
    /// Do not fail when nothing was judged.
    #[arg(long)]
    pub allow_empty: bool,
    /// Exit 0 whatever the scores are.
    #[arg(long)]
    pub exit_zero: bool,
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "write a number from 0 to 1".to_owned())
}

/// Forms of `replay`'s results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplayFormat {
    /// For people.
    Human,
    /// One JSON object per evaluation.
    Jsonl,
    /// JUnit XML: a suite per criterion, a case per trace.
    Junit,
}

/// `inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// Which recordings to read.
    #[command(flatten)]
    pub recordings: Recordings,
    /// How to print the trajectories.
    #[arg(long, value_enum, default_value_t = InspectFormat::Human)]
    pub format: InspectFormat,
    /// Also show, for people, what every span was taken for and why, and how to configure what is
    /// not recognised.
    #[arg(short, long)]
    pub verbose: bool,
}

/// Forms of `inspect`'s results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InspectFormat {
    /// For people.
    Human,
    /// One JSON object per trajectory.
    Jsonl,
}

/// Where a running sidecar is, and how to show who we are.
#[derive(Debug, Args)]
pub struct ApiClient {
    /// Its admin port, HOST:PORT or http(s)://HOST:PORT [default: `admin.listen` of the
    /// configuration].
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// File with the token that it asks for [default: `admin.token_file` of the configuration].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's, PEM; with HOST:PORT, TLS is spoken.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca_file: Option<PathBuf>,
    /// Our certificate chain, PEM.
    #[arg(long, global = true, value_name = "FILE", requires = "key_file", value_hint = ValueHint::FilePath)]
    pub cert_file: Option<PathBuf>,
    /// Our private key, PEM.
    #[arg(long, global = true, value_name = "FILE", requires = "cert_file", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
}

/// `tap`.
#[derive(Debug, Args)]
pub struct Tap {
    /// Where the sidecar is.
    #[command(flatten)]
    pub api: ApiClient,
    /// How to print the scores.
    #[arg(long, value_enum, default_value_t = TapFormat::Human)]
    pub format: TapFormat,
    /// Only criteria of these names (globs; may be given several times).
    #[arg(long, value_name = "GLOB")]
    pub criterion: Vec<String>,
    /// Only these labels.
    #[arg(long, value_name = "LABEL", value_parser = ["pass", "fail", "not_evaluated", "error"])]
    pub label: Vec<String>,
    /// Only these services.
    #[arg(long, value_name = "GLOB")]
    pub service: Vec<String>,
    /// Only these agents.
    #[arg(long, value_name = "GLOB")]
    pub agent: Vec<String>,
    /// First show the last N scores that the sidecar remembers.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u16).range(..=256))]
    pub last: u16,
    /// Stop after N scores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Forms of `tap`'s scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TapFormat {
    /// For people.
    Human,
    /// The lines of `replay --format jsonl`.
    Jsonl,
}

/// `validate`.
#[derive(Debug, Args)]
pub struct Validate {
    /// Files to check, each as a configuration of its own; without any, the file of `--config`.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Print the effective configuration, secrets masked, with the place that each value came from.
    #[arg(long)]
    pub print: bool,
}

/// `init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Where to write; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "spanscore.yaml", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Overwrite the file if it is there.
    #[arg(long)]
    pub force: bool,
    /// Propose criteria from the tool calls of recorded traces; the files are those that `replay`
    /// reads.
    #[arg(long, num_args = 1.., value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub from: Vec<PathBuf>,
}

/// `completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    pub shell: Shell,
}

/// `health`.
#[derive(Debug, Args)]
pub struct Health {
    /// Seconds to wait for an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub timeout: u64,
}

/// `criteria`.
#[derive(Debug, Args)]
pub struct Criteria {
    /// What to do.
    #[command(subcommand)]
    pub command: CriteriaCommand,
    /// Where the sidecar is.
    #[command(flatten)]
    pub api: ApiClient,
}

/// What `criteria` does.
#[derive(Debug, Subcommand)]
pub enum CriteriaCommand {
    /// Show all criteria in force, from files and from the API.
    List {
        /// Form of the results.
        #[arg(short, long, value_enum, default_value_t = CriteriaFormat::Human)]
        output: CriteriaFormat,
    },
    /// Show one criterion.
    Get {
        /// Its name.
        name: String,
        /// Form of the result.
        #[arg(short, long, value_enum, default_value_t = CriteriaFormat::Human)]
        output: CriteriaFormat,
    },
    /// Register criteria: a file with one criterion, or with `criteria:`.
    Put {
        /// The file, YAML or JSON; - is standard input.
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Take out what was registered before and is not in the file, all at once.
        #[arg(long)]
        replace: bool,
        /// Take them out again after so long: 90s, 15m, 1h.
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
        /// Only if what is there has this ETag.
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
        /// Only tell whether they could be registered.
        #[arg(long)]
        validate_only: bool,
    },
    /// Take out what was registered under a name.
    Delete {
        /// The name.
        name: String,
        /// Only if what is there has this ETag.
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
    },
}

/// Forms of `criteria`'s results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CriteriaFormat {
    /// For people.
    Human,
    /// All that the API tells.
    Json,
    /// The criteria alone, as a file holds them.
    Yaml,
}

/// `drain`.
#[derive(Debug, Args)]
pub struct Drain {
    /// Process to tell; in a container, the sidecar is process 1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_of_the_design_is_there_and_run_is_the_default() {
        let names: Vec<_> = Cli::command()
            .get_subcommands()
            .map(|command| command.get_name().to_owned())
            .collect();
        assert_eq!(
            names,
            [
                "run",
                "demo",
                "replay",
                "inspect",
                "tap",
                "validate",
                "init",
                "schema",
                "completions",
                "health",
                "criteria",
                "drain"
            ]
        );
        assert!(
            Cli::try_parse_from(["spanscore"])
                .unwrap()
                .command
                .is_none()
        );
        assert!(
            matches!(Cli::try_parse_from(["spanscore", "run", "-c", "x.yaml"]).unwrap().global.config, Some(path) if path.ends_with("x.yaml"))
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in [
            vec!["replay"],
            vec!["replay", "a.json", "--fail-under", "1.5"],
            vec!["replay", "a.json", "--fail-under", "NaN"],
            vec!["replay", "a.json", "--format", "xml"],
            vec!["replay", "a.json", "--exact-match"],
            vec!["inspect", "a.json", "--format", "junit"],
            vec!["--set", "forward.endpoint"],
            vec!["drain", "--pid", "0"],
            vec!["runn"],
        ] {
            assert!(
                Cli::try_parse_from(["spanscore"].into_iter().chain(line.clone())).is_err(),
                "{line:?}"
            );
        }
        let cli = Cli::try_parse_from([
            "spanscore",
            "--set",
            "a.b=c=d",
            "replay",
            "-",
            "--set",
            "e=f",
        ])
        .unwrap();
        assert_eq!(
            cli.global.set.last().unwrap(),
            &("e".to_owned(), "f".to_owned())
        );
        for line in [
            ["criteria", "--address", "a:1", "list"],
            ["criteria", "list", "--address", "a:1"],
        ] {
            let cli = Cli::try_parse_from(["spanscore"].into_iter().chain(line)).unwrap();
            assert!(
                matches!(cli.command, Some(Command::Criteria(args)) if args.api.address.as_deref() == Some("a:1")),
                "{line:?}"
            );
        }
    }
}
