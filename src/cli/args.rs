//! Parses the command line.

mod global;
mod learning;
mod recordings;
mod version;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use judge::evaluate::ValuePath;

pub use global::{Global, NoConfiguration};
pub use learning::{Drift, DriftFormat, Learn};
pub use recordings::Recordings;

/// A sidecar for AI agents: forwards OpenTelemetry and scores every trace's tool calls.
#[derive(Debug, Parser)]
#[command(name = "spanscore", max_term_width = 100, after_help = EXIT_CODES)]
#[command(version, long_version = version::LONG_VERSION.as_str())]
pub struct Cli {
    /// The options that several subcommands share.
    #[command(flatten)]
    pub global: Global,
    /// The subcommand; `run` by default.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Cli {
    /// Parses the command line. Rejects options that the subcommand does not use.
    ///
    /// # Errors
    /// Returns an error if the command line is invalid, or if it requests the help or the version.
    pub fn parse_arguments(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(arguments)?;
        match cli.unused_option() {
            Some(message) => Err(Self::command().error(ErrorKind::ArgumentConflict, message)),
            None => Ok(cli),
        }
    }

    fn unused_option(&self) -> Option<String> {
        let Global { config, set } = &self.global;
        let subcommand = match &self.command {
            Some(Command::Demo(_)) => "`demo`",
            Some(Command::Init(args)) if args.from.is_empty() => "`init` without `--from`",
            Some(Command::Schema(_)) => "`schema`",
            Some(Command::Completions(_)) => "`completions`",
            Some(Command::Man(_)) => "`man`",
            Some(Command::Drain(_)) => "`drain`",
            Some(Command::Journal(_)) => "`journal`",
            Some(Command::Validate(args)) if !args.files.is_empty() && config.is_some() => {
                return Some(
                    "`--config` has no effect when `validate` is given files: omit one of the two"
                        .to_owned(),
                );
            }
            _ => return None,
        };
        let option = match (config, set.as_slice()) {
            (Some(_), _) => "--config",
            (None, []) => return None,
            (None, _) => "--set",
        };
        Some(format!(
            "`{option}` has no effect: {subcommand} uses no configuration"
        ))
    }
}

const EXIT_CODES: &str = "\
Configuration, highest precedence first: --set, SPANSCORE_… variables, the file,
OTEL_EXPORTER_OTLP_… variables, defaults. A variable's name is SPANSCORE_ and the key in
upper case, with __ between levels: SPANSCORE_FORWARD__ENDPOINT.

Exit codes: 0 success; 1 a criterion failed, nothing was judged, learned or compared, runs
drifted, a criterion was not found or could not be changed, or (health) the sidecar is not
ready or does not answer; 2 usage or configuration error; 3 unreadable input; 4 startup
failed, or (tap, criteria) the sidecar does not answer; 5 stopped before everything was
delivered (only with shutdown.exit_undelivered).";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Receive OTLP, forward it and score finished traces (the default).
    Run(Run),
    /// Run a sidecar on a recorded agent session and print its scores.
    Demo(Demo),
    /// Score recorded traces.
    Replay(Replay),
    /// Show the tool calls that spanscore extracts from recorded traces.
    Inspect(Inspect),
    /// Learn rules that all recorded good runs follow, and write a baseline for `drift`.
    Learn(Learn),
    /// Compare recorded runs with a baseline of good runs.
    Drift(Drift),
    /// Stream the scores of a running sidecar.
    Tap(Tap),
    /// Show the undelivered and the damaged records of a journal folder.
    Journal(JournalReport),
    /// Check a configuration and report every problem.
    Validate(Validate),
    /// Write a commented starter configuration.
    Init(Init),
    /// Print the JSON Schema of the configuration.
    Schema(NoConfiguration),
    /// Print a shell completion script.
    Completions(Completions),
    /// Write the manual pages to a folder.
    Man(ManualPages),
    /// Exit 0 if the running sidecar is ready, else 1 (for probes).
    Health(Health),
    /// List and change the criteria of a running sidecar.
    Criteria(Criteria),
    /// Prepare the running sidecar for shutdown: judge finished traces after a shorter wait, and
    /// send scores immediately (for preStop hooks).
    Drain(Drain),
}

/// Options of `run`.
#[derive(Debug, Default, Args)]
pub struct Run {
    /// Store criteria registered through the API in this file, so that they survive a restart
    /// (`admin.state_file`).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub state_file: Option<PathBuf>,
    /// Write every request to files in this folder, to be read by `inspect`, `replay`, `init`,
    /// `learn` and `drift`: 64 MiB at most, then the oldest files are deleted. The files contain
    /// everything that agents send.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub record: Option<PathBuf>,
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

/// Options of `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// The recordings to read.
    #[command(flatten)]
    pub recordings: Recordings,
    /// Judge each run by its own expectation from this YAML or JSON file: `examples:`, a list of
    /// `{id?, input?, expected_tools | expected_output | evaluate}`. An entry replaces the
    /// expectation of the criteria that select the run and use the same evaluator; if there is no
    /// such criterion, the entry is judged as a criterion named `example`. An entry with an `id`
    /// applies to all runs with that `test.case.id`; entries without `id` apply to the remaining
    /// runs, in order.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub examples: Option<PathBuf>,
    /// Allow no calls other than an example's `expected_tools`.
    #[arg(long, requires = "examples")]
    pub exact_match: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ReplayFormat::Human)]
    pub format: ReplayFormat,
    /// Also write the runs as one HTML file, which a browser opens without a server.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print only verdicts with this label (repeatable); the summary and the exit code still
    /// count all verdicts.
    #[arg(long, value_name = "LABEL", value_parser = ["pass", "fail", "not_evaluated", "error"])]
    pub only: Vec<String>,
    /// Also fail on `not_evaluated`, and on a criterion that selects no run, expects a tool that no
    /// run calls, has a path at which no call has a value, or meets a value that it cannot use.
    #[arg(long)]
    pub strict: bool,
    /// Fail if a criterion's mean score is below X (0 to 1), instead of on any `fail` or `error`.
    #[arg(long, value_name = "X", value_parser = zero_to_one)]
    pub fail_under: Option<f64>,
    /// Do not fail if nothing was judged.
    #[arg(long)]
    pub allow_empty: bool,
    /// Exit 0 regardless of the scores.
    #[arg(long)]
    pub exit_zero: bool,
}

/// Options of `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Keep the sidecar running after the session, and print the address of the page that shows the
    /// run. Stop it with Ctrl+C.
    #[arg(long)]
    pub keep: bool,
    /// Hides `--config` and `--set`.
    #[command(flatten)]
    pub no_configuration: NoConfiguration,
}

fn zero_to_one(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| (0.0..=1.0).contains(number))
        .ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// Output formats of `replay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplayFormat {
    /// Text for people.
    Human,
    /// One JSON object per evaluation.
    Jsonl,
    /// JUnit XML: one suite per criterion, one case per run.
    Junit,
}

/// Options of `journal`.
#[derive(Debug, Args)]
pub struct JournalReport {
    /// The folder (`journal.directory`). Exit code 3 if a record is damaged.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Hides `--config` and `--set`.
    #[command(flatten)]
    pub no_configuration: NoConfiguration,
}

/// Options of `inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// The recordings to read.
    #[command(flatten)]
    pub recordings: Recordings,
    /// Output format.
    #[arg(long, value_enum, default_value_t = InspectFormat::Human)]
    pub format: InspectFormat,
    /// Also explain how every span was interpreted, and how to configure unrecognised ones (human
    /// format only).
    #[arg(short, long)]
    pub verbose: bool,
    /// Show the values at this path, for example `args.amount` or `result.items.*.id`, instead of
    /// all arguments and results. The path has the syntax of `where` and `same` (human format
    /// only).
    #[arg(long, value_name = "PATH", value_parser = ValuePath::parse)]
    pub path: Option<ValuePath>,
}

/// Output formats of `inspect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InspectFormat {
    /// Text for people.
    Human,
    /// One JSON object per trajectory.
    Jsonl,
}

/// The address of a running sidecar, and the credentials of the client.
#[derive(Debug, Args)]
pub struct ApiClient {
    /// Admin address, HOST:PORT or http(s)://HOST:PORT [default: `admin.listen` of the
    /// configuration].
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// File with the API token [default: `admin.token_file` of the configuration].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// CA certificates to trust instead of the system's, PEM; turns on TLS for HOST:PORT.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca_file: Option<PathBuf>,
    /// Client certificate chain, PEM.
    #[arg(long, global = true, value_name = "FILE", requires = "key_file")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub cert_file: Option<PathBuf>,
    /// Client private key, PEM.
    #[arg(long, global = true, value_name = "FILE", requires = "cert_file")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
}

/// Options of `tap`.
#[derive(Debug, Args)]
pub struct Tap {
    /// The sidecar to call.
    #[command(flatten)]
    pub api: ApiClient,
    /// Output format.
    #[arg(long, value_enum, default_value_t = TapFormat::Human)]
    pub format: TapFormat,
    /// Only criteria whose name matches (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub criterion: Vec<String>,
    /// Only scores with this label (repeatable).
    #[arg(long, value_name = "LABEL", value_parser = ["pass", "fail", "not_evaluated", "error"])]
    pub label: Vec<String>,
    /// Only services whose name matches (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub service: Vec<String>,
    /// Only agents whose name matches (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub agent: Vec<String>,
    /// Print alarms of runs that are still open, instead of scores.
    #[arg(long)]
    pub alarms: bool,
    /// Start with the last N scores that the sidecar remembers.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(..=256))]
    pub last: u16,
    /// Stop after N scores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Output formats of `tap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TapFormat {
    /// Text for people.
    Human,
    /// One JSON object per score, as in `replay --format jsonl`.
    Jsonl,
}

/// Options of `validate`.
#[derive(Debug, Args)]
pub struct Validate {
    /// Files to check, each as a separate configuration [default: the file of `--config`].
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Print the effective configuration with the origin of each value, secrets masked.
    #[arg(long)]
    pub print: bool,
}

/// Options of `init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Output file; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "spanscore.yaml")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    pub force: bool,
    /// Propose criteria from the tool calls in these recordings (same formats as `replay`). Uses
    /// the section `tools` of the configuration, if there is one.
    #[arg(long, num_args = 1.., value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub from: Vec<PathBuf>,
}

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// Shell to generate the script for.
    pub shell: Shell,
    /// Hides `--config` and `--set`.
    #[command(flatten)]
    pub no_configuration: NoConfiguration,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManualPages {
    /// The folder, created if it does not exist.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Hides `--config` and `--set`.
    #[command(flatten)]
    pub no_configuration: NoConfiguration,
}

/// Options of `health`.
#[derive(Debug, Args)]
pub struct Health {
    /// Seconds to wait for a response.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    pub timeout: u64,
}

/// Options of `criteria`.
#[derive(Debug, Args)]
pub struct Criteria {
    /// The operation.
    #[command(subcommand)]
    pub command: CriteriaCommand,
    /// The sidecar to call.
    #[command(flatten)]
    pub api: ApiClient,
}

/// The operations of `criteria`.
#[derive(Debug, Subcommand)]
pub enum CriteriaCommand {
    /// List all active criteria, from files and from the API.
    List {
        /// Output format.
        #[arg(long, value_enum, default_value_t = CriteriaFormat::Human)]
        format: CriteriaFormat,
    },
    /// Show one criterion.
    Get {
        /// Name of the criterion.
        name: String,
        /// Output format.
        #[arg(long, value_enum, default_value_t = CriteriaFormat::Human)]
        format: CriteriaFormat,
    },
    /// Register the criteria of a file: a single criterion, or a list under `criteria:`.
    Put {
        /// YAML or JSON file; - is standard input.
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Replace all criteria that were registered through the API, atomically.
        #[arg(long)]
        replace: bool,
        /// Delete the registrations after this time, such as 90s, 15m or 1h.
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
        /// Apply the change only if the criterion, or with --replace the set, still has this ETag.
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
        /// Check the criteria without registering them.
        #[arg(long)]
        validate_only: bool,
    },
    /// Delete a criterion that was registered through the API.
    Delete {
        /// Name of the criterion.
        name: String,
        /// Apply the change only if the criterion still has this ETag.
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
    },
}

/// Output formats of `criteria`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CriteriaFormat {
    /// Text for people.
    Human,
    /// The responses of the API.
    Json,
    /// The criteria only, ready for a criteria file.
    Yaml,
}

/// Options of `drain`.
#[derive(Debug, Args)]
pub struct Drain {
    /// Process id of the sidecar (1 in a container). Any other program is refused.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Hides `--config` and `--set`.
    #[command(flatten)]
    pub no_configuration: NoConfiguration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_exists_and_run_is_the_default() {
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
                "learn",
                "drift",
                "tap",
                "journal",
                "validate",
                "init",
                "schema",
                "completions",
                "man",
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
        assert!(matches!(
            Cli::try_parse_from(["spanscore", "run", "-c", "x.yaml"]).unwrap().global.config,
            Some(path) if path.ends_with("x.yaml"),
        ));
    }

    #[test]
    fn invalid_command_lines_are_rejected() {
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
                matches!(
                    cli.command,
                    Some(Command::Criteria(args)) if args.api.address.as_deref() == Some("a:1"),
                ),
                "{line:?}"
            );
        }
    }

    /// The list contains every subcommand; `true` means that it reads a configuration.
    #[test]
    fn options_that_a_subcommand_does_not_use_are_refused() {
        let lines = [
            ("run", true),
            ("demo", false),
            ("replay a.json", true),
            ("inspect a.json", true),
            ("learn a.pb", true),
            ("drift --baseline b.json a.pb", true),
            ("tap", true),
            ("journal folder", false),
            ("validate", true),
            ("init", false),
            ("schema", false),
            ("completions bash", false),
            ("man folder", false),
            ("health", true),
            ("criteria list", true),
            ("drain", false),
        ];
        let mut names = Vec::new();
        for (line, reads_configuration) in lines {
            let words: Vec<&str> = line.split(' ').collect();
            names.push(words[0].to_owned());
            for option in [["--set", "zzz=1"], ["--config", "zzz.yaml"]] {
                for arguments in [
                    [&option[..], &words].concat(),
                    [&words[..], &option].concat(),
                ] {
                    let arguments = ["spanscore"].into_iter().chain(arguments);
                    let parsed = Cli::parse_arguments(arguments.map(OsString::from));
                    assert_eq!(parsed.is_ok(), reads_configuration, "{line} {option:?}");
                    if let Err(error) = parsed {
                        assert!(error.to_string().contains(option[0]), "{error}");
                    }
                }
            }
            let help = Cli::try_parse_from(["spanscore", words[0], "--help"]).unwrap_err();
            // `init` reads a configuration if `--from` is given.
            let offers = reads_configuration || words[0] == "init";
            assert_eq!(help.to_string().contains("--set"), offers, "{help}");
        }
        let subcommands = Cli::command();
        let subcommands = subcommands
            .get_subcommands()
            .map(|command| command.get_name());
        assert_eq!(names, subcommands.collect::<Vec<_>>());
        let line = ["spanscore", "validate", "a.yaml", "-c", "b.yaml"].map(OsString::from);
        assert!(Cli::parse_arguments(line).is_err());
    }
}
