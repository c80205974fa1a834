//! Runs the subcommands, one file each, and returns an exit code. Results are printed to standard
//! output, messages to standard error.

mod args;
pub mod configuration;

mod api;
mod completions;
mod criteria;
mod demo;
mod drain;
mod drift;
mod examples;
mod global;
mod health;
mod init;
mod inspect;
mod journal;
mod junit;
mod learn;
mod man;
mod recording;
mod replay;
mod replayed;
mod report;
mod run;
mod schema;
mod tap;
mod terminal;
mod validate;
mod verbose;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::CommandFactory;
use judge::extract::Trajectory;
use judge::pipeline::Rules;
use text::wrapped;
use tokio::runtime::{Builder, Runtime};

use crate::config::{Config, Loaded, Signal};
use crate::export::score_line::{Clean, Colour, Look};
use crate::register::{self, ConfigOrigin, Start};

use args::{Cli, Command};
use global::Global;

/// The outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Fine,
    /// A criterion failed, nothing was judged, or another subcommand has a negative result: drift,
    /// a sidecar that is not ready, an unknown criterion.
    CriterionFailed,
    /// The command line or the configuration is invalid, or a file cannot be written.
    Usage,
    /// The input cannot be read, is damaged, or is not OTLP.
    Unreadable,
    /// The sidecar could not start, for example because a port is in use, or it does not answer.
    NoStart,
    /// The sidecar stopped before it delivered everything, and `shutdown.exit_undelivered` is set.
    Undelivered,
    /// A second signal stopped the sidecar immediately, or Ctrl-C stopped `tap`.
    Cut,
}

impl Exit {
    /// Returns the exit code of the process (docs/design.md#exit-codes).
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::CriterionFailed => 1,
            Self::Usage => 2,
            Self::Unreadable => 3,
            Self::NoStart => 4,
            Self::Undelivered => 5,
            // Shells report this exit code for a process that SIGINT killed.
            Self::Cut => 130,
        }
    }
}

/// The output streams for results and for messages.
struct Streams<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    look: Look,
    err_look: Look,
}

impl Streams<'_> {
    fn complain(&mut self, message: &str) -> io::Result<()> {
        self.tell(&format!("error: {message}"))
    }

    /// Prints a message, wrapped to the width of the terminal. Escapes the message, because it may
    /// contain text from outside.
    fn tell(&mut self, message: &str) -> io::Result<()> {
        let lines: Vec<String> = message
            .lines()
            .map(|line| Clean(line).to_string())
            .collect();
        writeln!(
            self.err,
            "{}",
            wrapped(&lines.join("\n"), self.err_look.width)
        )
    }

    /// Builds an async runtime; `None` if that fails, which is reported.
    fn runtime(&mut self, builder: &mut Builder) -> io::Result<Option<Runtime>> {
        match builder.enable_all().build() {
            Ok(runtime) => Ok(Some(runtime)),
            Err(error) => self
                .complain(&format!("cannot start: {error}"))
                .map(|()| None),
        }
    }

    fn err_colour(&self) -> bool {
        self.err_look.colour == Colour::Ansi
    }
}

/// Runs the subcommand that the arguments name. `environment` contains all variables.
pub fn main(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &BTreeMap<String, String>,
) -> u8 {
    let cli = match Cli::parse_arguments(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are printed to standard output, and the exit code is 0. A failed
            // print, such as to a closed pipe, is ignored.
            let _ = error.print();
            return u8::from(error.use_stderr()) * Exit::Usage.code();
        }
    };
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let look = terminal::look(&stdout, environment);
    let err_look = terminal::look(&stderr, environment);
    let (mut out, mut err) = (BufWriter::new(stdout), stderr);
    let mut streams = Streams {
        out: &mut out,
        err: &mut err,
        look,
        err_look,
    };
    let outcome = dispatch(&cli, environment, &mut streams);
    match outcome.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => code,
        // The program that reads the results has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine.code(),
        Err(error) => {
            let _ = writeln!(err, "error: cannot write the results: {error}");
            Exit::NoStart.code()
        }
    }
}

/// A command that needs a valid configuration.
type ConfiguredCommand<'a> = Box<dyn FnOnce(&Config, &mut Streams<'_>) -> io::Result<Exit> + 'a>;

fn dispatch(
    cli: &Cli,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<u8> {
    let global = &cli.global;
    let run = Command::Run(run::Run::default());
    let command: ConfiguredCommand<'_> = match cli.command.as_ref().unwrap_or(&run) {
        Command::Validate(args) => {
            return validate::validate(
                args,
                global,
                environment,
                streams.out,
                streams.err,
                streams.err_look,
            );
        }
        Command::Schema(_) => return schema::schema(streams.out),
        Command::Completions(args) => {
            return completions::completions(args, Cli::command(), streams.out);
        }
        Command::Man(args) => return man::man(args, Cli::command(), streams).map(Exit::code),
        Command::Init(args) => return propose(args, global, environment, streams),
        Command::Demo(args) => return demo::demo(args.keep, streams).map(Exit::code),
        Command::Drain(args) => return drain::drain(args, streams).map(Exit::code),
        Command::Journal(args) => return journal::journal(args, streams).map(Exit::code),
        Command::Run(args) => return start(args, global, environment, streams).map(Exit::code),
        Command::Criteria(args) => {
            Box::new(|config, streams| criteria::criteria(args, config, streams))
        }
        Command::Health(args) => Box::new(|config, streams| health::health(args, config, streams)),
        Command::Tap(args) => Box::new(|config, streams| tap::tap(args, config, streams)),
        Command::Replay(args) => Box::new(|config, streams| {
            replay::replay(args, &rules(config), &config.admin.links, streams)
        }),
        Command::Learn(args) => {
            Box::new(|config, streams| learn::learn(args, &rules(config), streams))
        }
        Command::Drift(args) => {
            Box::new(|config, streams| drift::drift(args, &rules(config), streams))
        }
        Command::Inspect(args) => {
            Box::new(|config, streams| inspect::inspect(args, &rules(config), streams))
        }
    };
    let exit = match load(global, environment, streams)? {
        Some((loaded, _)) => command(&loaded.config, streams)?,
        None => Exit::Usage,
    };
    Ok(exit.code())
}

/// Runs `spanscore run`. Starts with the valid part of the configuration if `reload.at_start`
/// allows that.
fn start(
    args: &run::Run,
    global: &Global,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let global = args.applied_to(global);
    let (loaded, path, start) = match configuration::load(&global, environment) {
        Ok((loaded, path)) => {
            validate::report_warnings(&loaded, streams.err, streams.err_look)?;
            (loaded, path, Start::Sound)
        }
        // The log, a metric and the status report these mistakes.
        Err(unusable) => match configuration::load_sound(&global, environment) {
            Some((loaded, path)) => (loaded, Some(path), Start::Unsound),
            None => {
                unusable.print(streams.err, streams.err_look)?;
                return Ok(Exit::Usage);
            }
        },
    };
    let origin = ConfigOrigin {
        // If there is no file, a reload reads a file that appears later.
        may_be_absent: path.is_none(),
        start,
        path: path.unwrap_or_else(|| PathBuf::from(configuration::DEFAULT_FILE)),
        environment: environment.clone(),
        flags: global.set.clone(),
        files: Arc::new(configuration::Disk),
        settle_time: register::SETTLE_TIME,
    };
    run::run(args, loaded, Some(origin), environment, streams)
}

/// Runs `spanscore init`. Recordings may need the conventions of an existing configuration. Without
/// recordings no configuration is read, so it may be missing or invalid.
fn propose(
    args: &init::Init,
    global: &Global,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<u8> {
    if args.from.is_empty() {
        return init::init(args, None, streams.out, streams.err);
    }
    let Some((loaded, _)) = load(global, environment, streams)? else {
        return Ok(Exit::Usage.code());
    };
    let replayed = replayed::judge_files(&args.from, Signal::Traces, &rules(&loaded.config));
    let seen = match replayed {
        Ok(replayed) => replayed.judged.trajectories,
        Err(unreadable) => {
            streams.complain(&unreadable.to_string())?;
            return Ok(Exit::Unreadable.code());
        }
    };
    let seen: Vec<_> = seen.iter().map(|it| Trajectory::clone(it)).collect();
    init::init(args, Some(&seen), streams.out, streams.err)
}

/// Loads the configuration, or prints every problem to standard error.
fn load(
    global: &Global,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<Option<(Loaded, Option<PathBuf>)>> {
    match configuration::load(global, environment) {
        Ok((loaded, path)) => {
            validate::report_warnings(&loaded, streams.err, streams.err_look)?;
            Ok(Some((loaded, path)))
        }
        Err(unusable) => unusable.print(streams.err, streams.err_look).map(|()| None),
    }
}

/// Returns the rules by which traces are judged.
fn rules(config: &Config) -> Rules {
    register::merge::rules(config, config.criteria.clone(), None)
}
