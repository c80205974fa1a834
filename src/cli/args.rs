//! Parses the command line. Each subcommand has its options in its own file.

use std::ffi::OsString;
use std::sync::LazyLock;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use super::completions::Completions;
use super::criteria::Criteria;
use super::demo::Demo;
use super::drain::Drain;
use super::drift::Drift;
use super::global::{Global, NoConfiguration};
use super::health::Health;
use super::init::Init;
use super::inspect::Inspect;
use super::journal::JournalReport;
use super::learn::Learn;
use super::man::ManualPages;
use super::replay::Replay;
use super::run::Run;
use super::tap::Tap;
use super::validate::Validate;

/// A sidecar for AI agents: forwards OpenTelemetry and scores every trace's tool calls.
#[derive(Debug, Parser)]
#[command(name = "spanscore", max_term_width = 100, after_help = EXIT_CODES)]
#[command(version, long_version = LONG_VERSION.as_str())]
pub(super) struct Cli {
    /// The options that several subcommands share.
    #[command(flatten)]
    pub(super) global: Global,
    /// The subcommand; `run` by default.
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

impl Cli {
    /// Parses the command line. Rejects options that the subcommand does not use.
    ///
    /// # Errors
    /// Returns an error if the command line is invalid, or if it requests the help or the version.
    pub(super) fn parse_arguments(
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

Exit codes: 0 success; 1 a score is `fail` or `error`, nothing was judged, learned or
compared, runs drifted, a criterion was not found or conflicts, or (health) the sidecar is
not ready or does not answer; 2 usage or configuration error; 3 unreadable input; 4 startup
failed, or (tap, criteria, drain) no sidecar answers or permits it; 5 stopped before
everything was delivered (only with shutdown.exit_undelivered); 130 stopped immediately
(Ctrl-C; for a sidecar, the second signal).";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
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
    /// Check a configuration and report its problems.
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

/// Text such as `0.1.0 (commit 0123456789ab, profile dist, features mimalloc)`. deploy/build.sh
/// sets the commit and the profile, because cargo does not provide them.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        ("kafka", cfg!(feature = "kafka")),
        ("mimalloc", cfg!(feature = "mimalloc")),
    ];
    let features: Vec<&str> = features
        .iter()
        .filter_map(|(name, is_on)| is_on.then_some(*name))
        .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    format!(
        "{} (commit {}, profile {}, features {features})",
        env!("CARGO_PKG_VERSION"),
        option_env!("BUILD_COMMIT").unwrap_or("unknown"),
        option_env!("BUILD_PROFILE").unwrap_or("unknown"),
    )
});

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
