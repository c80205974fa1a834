//! `spanscore init`: writes a starter configuration to a new file or to standard output.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use judge::extract::Trajectory;

use crate::config;

/// Options of `init`.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// Output file; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "spanscore.yaml")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) output: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    pub(super) force: bool,
    /// Propose criteria from the tool calls in these recordings (same formats as `replay`). Only
    /// with this option, `init` reads a configuration, and of it only `tools`.
    #[arg(long, num_args = 1.., value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) from: Vec<PathBuf>,
}

/// Writes the starter configuration. `trajectories` were read from the files of `--from`; the
/// criteria are proposed from them.
///
/// # Errors
/// Returns an error if writing to `out` or `err` failed.
pub(super) fn init(
    args: &Init,
    trajectories: Option<&[Trajectory]>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    let text = config::starter(trajectories);
    if args.output == Path::new("-") {
        out.write_all(text.as_bytes())?;
        return Ok(0);
    }
    let path = args.output.display();
    match write(&args.output, &text, args.force) {
        Ok(()) => {
            writeln!(
                err,
                "wrote {path}; check it with `spanscore validate -c {path}`, start with \
                 `spanscore run -c {path}`"
            )?;
            Ok(0)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            writeln!(
                err,
                "error: `{path}` exists already; overwrite it with `--force`, or pick another name \
                 with `-o FILE`"
            )?;
            Ok(2)
        }
        Err(error) => {
            writeln!(err, "error: cannot write `{path}`: {error}")?;
            Ok(2)
        }
    }
}

/// Writes a file. Overwrites an existing file only with `force`. `create_new` checks and creates in
/// one step, so a file that is created in the meantime is not overwritten.
pub(super) fn write(path: &Path, text: &str, force: bool) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(force)
        .create_new(!force)
        .truncate(force)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_is_kept_unless_forced() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("spanscore.yaml");
        let run = |force| {
            let mut err = Vec::new();
            let args = Init {
                output: output.clone(),
                force,
                from: Vec::new(),
            };
            let code = init(&args, None, &mut Vec::new(), &mut err).unwrap();
            (code, String::from_utf8(err).unwrap())
        };
        assert_eq!(run(false).0, 0);
        std::fs::write(&output, "mine".repeat(10_000)).unwrap();
        let (code, err) = run(false);
        assert_eq!(code, 2);
        assert!(err.contains("--force"), "{err}");
        assert!(
            std::fs::read_to_string(&output)
                .unwrap()
                .starts_with("mine")
        );
        assert_eq!(run(true).0, 0);
        assert_eq!(
            std::fs::read_to_string(&output).unwrap(),
            config::starter(None)
        );
    }

    #[test]
    fn a_dash_is_standard_output_and_a_missing_folder_is_told() {
        let mut out = Vec::new();
        let args = Init {
            output: "-".into(),
            force: false,
            from: Vec::new(),
        };
        assert_eq!(init(&args, None, &mut out, &mut Vec::new()).unwrap(), 0);
        assert_eq!(String::from_utf8(out).unwrap(), config::starter(None));
        let folder = tempfile::tempdir().unwrap();
        let args = Init {
            output: folder.path().join("a/b.yaml"),
            force: true,
            from: Vec::new(),
        };
        let mut err = Vec::new();
        assert_eq!(init(&args, None, &mut Vec::new(), &mut err).unwrap(), 2);
        assert!(
            String::from_utf8(err)
                .unwrap()
                .starts_with("error: cannot write")
        );
    }
}
