//! The options of all subcommands that read a configuration, and a marker for those that read none.

use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches, ValueHint};

/// Options of all subcommands that read a configuration.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Global {
    /// Configuration file, YAML or JSON [default: ./spanscore.yaml if it exists].
    #[arg(short, long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) config: Option<PathBuf>,
    /// Override a configuration key, e.g. --set forward.endpoint=http://localhost:4319.
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub(super) set: Vec<(String, String)>,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE, such as `forward.endpoint=http://localhost:4319`".to_owned()),
    }
}

/// A marker that hides the global options from the help of a subcommand that rejects them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NoConfiguration;

impl Args for NoConfiguration {
    fn augment_args(command: clap::Command) -> clap::Command {
        // clap replaces a global argument with a subcommand's argument that has the same id.
        let global = Global::augment_args(clap::Command::new("global"));
        command.args(
            global
                .get_arguments()
                .map(|option| option.clone().hide(true)),
        )
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NoConfiguration {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}
