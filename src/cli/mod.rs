//! One file per subcommand.

pub mod args;
pub mod configuration;

pub mod completions;
pub mod init;
pub mod schema;
pub mod validate;
