//! A command line and the environment in, an exit code out: one file per subcommand. Results go to
//! standard output, messages to standard error.

pub mod args;
pub mod configuration;

mod api;
mod completions;
mod criteria;
mod demo;
mod drain;
mod examples;
mod health;
mod init;
mod inspect;
mod junit;
mod logging;
mod recording;
mod replay;
mod run;
mod schema;
mod tap;
mod validate;
mod verbose;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;

use crate::config::{Config, Loaded, Signal};
use crate::extract::Trajectory;
use crate::pipeline::Rules;
use crate::register::{self, Origin};

use args::{Cli, Command, Global};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Fine,
    /// A criterion failed, or nothing was judged.
    CriterionFailed,
    /// The command line or the configuration is wrong.
    Usage,
    /// The input cannot be read, or is not OTLP.
    Unreadable,
    /// A port could not be had, or something else that is needed to start.
    NoStart,
    /// Told to stop at once, by a second signal.
    Cut,
}

impl Exit {
    /// The number the process exits with (DESIGN 8).
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::CriterionFailed => 1,
            Self::Usage => 2,
            Self::Unreadable => 3,
            Self::NoStart => 4,
            // What a shell says of a process that SIGINT ended.
            Self::Cut => 130,
        }
    }
}

/// Where results and messages go.
struct Streams<'a> {
    /// Results.
    out: &'a mut dyn Write,
    /// Messages.
    err: &'a mut dyn Write,
    /// Results are looked at on a terminal, and `NO_COLOR` is not set.
    colour: bool,
    /// Messages are.
    err_colour: bool,
}

impl Streams<'_> {
    fn complain(&mut self, message: &str) -> io::Result<()> {
        writeln!(self.err, "error: {message}")
    }
}

/// Runs the command that the arguments ask for. `environment` holds all variables.
pub fn main(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &BTreeMap<String, String>,
) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no failure; a closed pipe is none
            // either.
            let _ = error.print();
            return u8::from(error.use_stderr()) * Exit::Usage.code();
        }
    };
    let plain = environment
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let (colour, err_colour) = (
        stdout.is_terminal() && !plain,
        stderr.is_terminal() && !plain,
    );
    let (mut out, mut err) = (BufWriter::new(stdout), stderr);
    let mut streams = Streams {
        out: &mut out,
        err: &mut err,
        colour,
        err_colour,
    };
    let outcome = dispatch(&cli, environment, &mut streams);
    match outcome.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => code,
        // Whoever read our results has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Fine.code(),
        Err(error) => {
            let _ = writeln!(err, "error: cannot write the results: {error}");
            Exit::NoStart.code()
        }
    }
}

fn dispatch(
    cli: &Cli,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<u8> {
    let global = &cli.global;
    let run = Command::Run(args::Run::default());
    let exit = match cli.command.as_ref().unwrap_or(&run) {
        Command::Validate(args) => {
            return validate::validate(
                args,
                global,
                environment,
                streams.out,
                streams.err,
                streams.err_colour,
            );
        }
        Command::Schema => return schema::schema(streams.out),
        Command::Completions(args) => return completions::completions(args, streams.out),
        Command::Init(args) => {
            // Recordings are read by the default rules: there is no configuration yet.
            let replayed =
                match replay::judge_files(&args.from, Signal::Traces, &rules(&Config::default())) {
                    Ok(replayed) => replayed,
                    Err(unreadable) => {
                        streams.complain(&unreadable.to_string())?;
                        return Ok(Exit::Unreadable.code());
                    }
                };
            let trajectories = || {
                replayed
                    .judged
                    .trajectories
                    .iter()
                    .map(|seen| Trajectory::clone(seen))
                    .collect::<Vec<_>>()
            };
            let seen = (!args.from.is_empty()).then(trajectories);
            return init::init(args, seen.as_deref(), streams.out, streams.err);
        }
        Command::Demo => demo::demo(streams)?,
        Command::Criteria(args) => match load(global, environment, streams)? {
            Some((loaded, _)) => criteria::criteria(args, &loaded.config, streams)?,
            None => Exit::Usage,
        },
        Command::Drain(args) => drain::drain(args, streams)?,
        Command::Run(args) => {
            let global = args.applied_to(global);
            match load(&global, environment, streams)? {
                Some((loaded, path)) => {
                    let origin = path.map(|path| Origin {
                        path,
                        environment: environment.clone(),
                        flags: global.set.clone(),
                        files: Arc::new(configuration::Disk),
                        agreement: register::AGREEMENT,
                    });
                    run::run(loaded, origin, environment, streams)?
                }
                None => Exit::Usage,
            }
        }
        Command::Health(args) => match load(global, environment, streams)? {
            Some((loaded, _)) => health::health(args, &loaded.config, streams)?,
            None => Exit::Usage,
        },
        Command::Tap(args) => match load(global, environment, streams)? {
            Some((loaded, _)) => tap::tap(args, &loaded.config, streams)?,
            None => Exit::Usage,
        },
        Command::Replay(args) => match load(global, environment, streams)? {
            Some((loaded, _)) => replay::replay(args, &rules(&loaded.config), streams)?,
            None => Exit::Usage,
        },
        Command::Inspect(args) => match load(global, environment, streams)? {
            Some((loaded, _)) => inspect::inspect(args, &rules(&loaded.config), streams)?,
            None => Exit::Usage,
        },
    };
    Ok(exit.code())
}

/// The configuration, or every problem with it on standard error.
fn load(
    global: &Global,
    environment: &BTreeMap<String, String>,
    streams: &mut Streams<'_>,
) -> io::Result<Option<(Loaded, Option<PathBuf>)>> {
    match configuration::load(global, environment) {
        Ok((loaded, path)) => {
            validate::report_warnings(&loaded, streams.err, streams.err_colour)?;
            Ok(Some((loaded, path)))
        }
        Err(unusable) => unusable
            .print(streams.err, streams.err_colour)
            .map(|()| None),
    }
}

/// What traces are judged by.
fn rules(config: &Config) -> Rules {
    register::merge::rules(config, config.criteria.clone(), None)
}
