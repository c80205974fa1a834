//! Configuration files in, every problem in them out. Changes nothing.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::args::{Global, Validate};
use super::configuration::{self, Unusable};
use crate::config::Loaded;

/// Checks the files, or what `run` would use. Results go to `out`, problems to `err`.
///
/// # Errors
/// Neither can be written to.
pub(super) fn validate(
    args: &Validate,
    global: &Global,
    environment: &BTreeMap<String, String>,
    out: &mut dyn Write,
    err: &mut dyn Write,
    colour: bool,
) -> io::Result<u8> {
    let results: Vec<(String, Result<Loaded, Unusable>)> = if args.files.is_empty() {
        let result = configuration::load(global, environment);
        let name = match (&result, &global.config) {
            (Ok((_, Some(path))), _) | (Err(_), Some(path)) => path.display().to_string(),
            (Ok((_, None)), _) => "no configuration file: defaults and environment".to_owned(),
            (Err(_), None) => configuration::DEFAULT_FILE.to_owned(),
        };
        vec![(name, result.map(|(loaded, _)| loaded))]
    } else {
        let load = |path| configuration::load_file(Some(path), global, environment);
        args.files.iter().map(|path| (path.display().to_string(), load(path))).collect()
    };

    let n_files = results.len();
    let mut n_wrong = 0;
    let mut printed = Vec::new();
    for (name, result) in results {
        match result {
            Ok(loaded) => {
                report_warnings(&loaded, err, colour)?;
                if args.print {
                    if n_files > 1 {
                        writeln!(out, "# {name}")?;
                    }
                    write!(out, "{}", loaded.config.to_yaml())?;
                } else {
                    writeln!(out, "{name}: ok, {}", counted(loaded.config.criteria.len()))?;
                }
            }
            Err(unusable) => {
                n_wrong += 1;
                let mut message = Vec::new();
                unusable.print(&mut message, colour)?;
                // A mistake in a variable is told once, not with every file.
                if !printed.contains(&message) {
                    err.write_all(&message)?;
                    writeln!(err)?;
                    printed.push(message);
                }
                if let Unusable::Wrong(problems) = unusable {
                    let n_problems = problems.len();
                    writeln!(err, "{name}: {n_problems} problem{}", if n_problems == 1 { "" } else { "s" })?;
                }
            }
        }
    }
    Ok(if n_wrong > 0 { 2 } else { 0 })
}

fn counted(n_criteria: usize) -> String {
    match n_criteria {
        0 => "no criteria".to_owned(),
        1 => "1 criterion".to_owned(),
        n => format!("{n} criteria"),
    }
}

/// Prints what is probably not meant so.
///
/// # Errors
/// `err` cannot be written to.
pub(super) fn report_warnings(loaded: &Loaded, err: &mut dyn Write, colour: bool) -> io::Result<()> {
    if loaded.warnings.is_empty() {
        return Ok(());
    }
    writeln!(err, "{}", loaded.warnings.render(colour))
}
