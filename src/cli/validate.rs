//! `spanscore validate`: reports every problem in configuration files. Changes nothing.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use text::counted;

use super::configuration::{self, Unusable};
use super::global::Global;
use super::terminal;
use crate::config::Loaded;
use crate::export::score_line::Look;
use crate::journal::is_in_memory;

/// Options of `validate`.
#[derive(Debug, Args)]
pub(super) struct Validate {
    /// Files to check, each as a separate configuration [default: the file of `--config`].
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) files: Vec<PathBuf>,
    /// Print the effective configuration with the origin of each value, secrets masked.
    #[arg(long)]
    pub(super) print: bool,
}

/// Names the configuration in messages if there is no file.
const NO_FILE: &str = "defaults, variables and flags, without a configuration file";

/// Checks the given files, or the configuration that `run` would use. Prints results to `out`,
/// problems to `err`.
///
/// # Errors
/// Returns an error if writing to `out` or `err` failed.
pub(super) fn validate(
    args: &Validate,
    global: &Global,
    environment: &BTreeMap<String, String>,
    out: &mut dyn Write,
    err: &mut dyn Write,
    look: Look,
) -> io::Result<u8> {
    let results: Vec<(String, Result<Loaded, Unusable>)> = if args.files.is_empty() {
        let result = configuration::load(global, environment);
        let name = match (&result, &global.config) {
            (Ok((_, Some(path))), _) | (Err(_), Some(path)) => path.display().to_string(),
            (Ok((_, None)), _) => NO_FILE.to_owned(),
            (Err(_), None) if Path::new(configuration::DEFAULT_FILE).exists() => {
                configuration::DEFAULT_FILE.to_owned()
            }
            (Err(_), None) => NO_FILE.to_owned(),
        };
        vec![(name, result.map(|(loaded, _)| loaded))]
    } else {
        let load = |path| configuration::load_file(Some(path), global, environment);
        args.files
            .iter()
            .map(|path| (path.display().to_string(), load(path)))
            .collect()
    };

    let n_files = results.len();
    let mut n_wrong = 0;
    let mut printed = Vec::new();
    for (name, result) in results {
        match result {
            Ok(loaded) => {
                report_warnings(&loaded, err, look)?;
                let directory = loaded.config.journal.directory.as_deref();
                if let Some(directory) = directory.filter(|folder| is_in_memory(folder)) {
                    writeln!(
                        err,
                        "warning: `journal.directory` (`{}`) is on a tmpfs: its content is lost \
                         at a reboot",
                        directory.display()
                    )?;
                }
                if args.print {
                    if n_files > 1 {
                        writeln!(out, "# {name}")?;
                    }
                    write!(out, "{}", loaded.config.to_yaml())?;
                } else {
                    let cases = match loaded.config.expectations.cases.len() {
                        0 => String::new(),
                        1 => ", 1 case".to_owned(),
                        n => format!(", {n} cases"),
                    };
                    writeln!(
                        out,
                        "{name}: ok, {}{cases}",
                        counted_criteria(loaded.config.criteria.len())
                    )?;
                }
            }
            Err(unusable) => {
                n_wrong += 1;
                let mut message = Vec::new();
                unusable.print(&mut message, look)?;
                // A mistake in a variable occurs with every file. Print it once.
                if !printed.contains(&message) {
                    err.write_all(&message)?;
                    writeln!(err)?;
                    printed.push(message);
                }
                if let Unusable::Wrong(problems) = unusable {
                    let n_problems = problems.n_errors();
                    writeln!(
                        err,
                        "{name}: {}",
                        counted(n_problems, "problem", "problems")
                    )?;
                }
            }
        }
    }
    Ok(if n_wrong > 0 { 2 } else { 0 })
}

fn counted_criteria(n_criteria: usize) -> String {
    match n_criteria {
        0 => "no criteria".to_owned(),
        n => counted(n, "criterion", "criteria"),
    }
}

/// Prints the warnings about likely mistakes.
///
/// # Errors
/// Returns an error if writing to `err` failed.
pub(super) fn report_warnings(loaded: &Loaded, err: &mut dyn Write, look: Look) -> io::Result<()> {
    if loaded.warnings.is_empty() {
        return Ok(());
    }
    writeln!(err, "{}", terminal::rendered(&loaded.warnings, look))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn run(files: &[PathBuf], print: bool, variables: &[(&str, &str)]) -> (u8, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let environment = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let args = Validate {
            files: files.to_vec(),
            print,
        };
        let code = validate(
            &args,
            &Global::default(),
            &environment,
            &mut out,
            &mut err,
            Look::PLAIN,
        )
        .unwrap();
        (
            code,
            String::from_utf8(out).unwrap(),
            String::from_utf8(err).unwrap(),
        )
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            std::fs::create_dir_all(folder.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(folder.path().join(path), text).unwrap();
        }
        folder
    }

    #[test]
    fn good_files_exit_0_and_wrong_ones_2_with_every_problem() {
        let folder = folder(&[
            ("good.yaml", "forward: { timeout: 2s }\n"),
            ("wrong.yaml", "forward: { timeout: soon, protocol: grcp }\n"),
            ("good.json", "{\"log\": {\"level\": \"debug\"}}"),
        ]);
        let [good, wrong, json] =
            ["good.yaml", "wrong.yaml", "good.json"].map(|name| folder.path().join(name));
        let (code, out, err) = run(&[good.clone(), json], false, &[]);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains("good.yaml: ok, no criteria\n"), "{out}");
        let (code, out, err) = run(&[good, wrong], false, &[]);
        assert_eq!(code, 2);
        assert!(out.contains("good.yaml: ok"), "{out}");
        assert!(
            err.contains("`soon` is not a duration") && err.contains("unknown protocol `grcp`"),
            "{err}"
        );
        assert!(
            err.contains("wrong.yaml:1:21") && err.contains("wrong.yaml: 2 problems"),
            "{err}"
        );
    }

    #[test]
    fn a_file_that_is_not_there_or_unusable_exits_2() {
        let folder = folder(&[]);
        std::fs::write(folder.path().join("binary.yaml"), [b'a', 0xff]).unwrap();
        for name in ["missing.yaml", "binary.yaml"] {
            let (code, _, err) = run(&[folder.path().join(name)], false, &[]);
            assert_eq!(code, 2);
            assert!(
                err.starts_with("error: cannot read") && err.contains(name),
                "{err}"
            );
        }
    }

    #[test]
    fn criteria_files_are_found_beside_the_file() {
        let criterion = "criteria:\n  - name: a\
            \n    evaluate: { tool_call_order: { tool_calls_order: [x] } }\n";
        // The name of a folder may contain glob characters.
        let folder = folder(&[
            (
                "a[b]/spanscore.yaml",
                "criteria_files: [\"criteria/*.yaml\"]\n",
            ),
            ("a[b]/criteria/a.yaml", criterion),
        ]);
        let (code, out, err) = run(&[folder.path().join("a[b]/spanscore.yaml")], false, &[]);
        assert_eq!(code, 0, "{err}");
        assert!(out.ends_with("ok, 1 criterion\n"), "{out}");
    }

    #[test]
    fn print_shows_what_is_in_force_and_where_it_came_from() {
        let folder = folder(&[
            (
                "spanscore.yaml",
                "forward:\n  headers: { authorization: \"Bearer ${file:key}\" }\n",
            ),
            ("key", "s3cr3t\n"),
        ]);
        let (code, out, err) = run(
            &[folder.path().join("spanscore.yaml")],
            true,
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317")],
        );
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(
            out.contains("endpoint: \"http://a:4317\"  # OTEL_EXPORTER_OTLP_ENDPOINT"),
            "{out}"
        );
        assert!(
            out.contains("authorization: \"****\"  # ") && !out.contains("s3cr3t"),
            "{out}"
        );
    }

    #[test]
    fn warnings_are_no_problems() {
        let folder = folder(&[(
            "spanscore.yaml",
            "forward: { endpoint: \"http://a:4318\", protocol: grpc }\nlog: { level: loud }\n",
        )]);
        let (code, _, err) = run(&[folder.path().join("spanscore.yaml")], false, &[]);
        assert_eq!(code, 2);
        assert!(
            err.contains("warning: ") && err.ends_with("spanscore.yaml: 1 problem\n"),
            "{err}"
        );
    }

    #[test]
    fn warnings_are_told_but_do_not_fail() {
        let folder = folder(&[(
            "spanscore.yaml",
            "forward: { endpoint: \"http://a:4318\", protocol: grpc }\n",
        )]);
        let (code, out, err) = run(&[folder.path().join("spanscore.yaml")], false, &[]);
        assert_eq!(code, 0);
        assert!(
            err.starts_with("warning: ") && out.contains(": ok"),
            "{err}{out}"
        );
    }
}
