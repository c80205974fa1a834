//! Writes the page and the runs of a recording into one file, which opens from disk without a
//! server.

use std::io::{self, Write};
use std::sync::Arc;

use data_encoding::BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use judge::evaluate::{Criterion, Evaluation};
use judge::extract::Trajectory;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::memory::RememberedRun;
use super::{assets, view};
use crate::config::PageLink;
use crate::rfc3339::rfc3339;

/// Number of runs whose details are compressed together; the page decompresses a group when someone
/// opens one of its runs.
const CHUNK: usize = 128;

/// The contents of a report.
pub struct Report<'a> {
    /// A short description of the source.
    pub title: String,
    /// Time of writing in Unix nanoseconds.
    pub written_unix_nanos: u64,
    /// The criteria that judged the runs.
    pub criteria: &'a [Arc<Criterion>],
    /// Links to the team's tracing backends.
    pub links: &'a [PageLink],
    /// True if arguments and results may be shown.
    pub has_values: bool,
    /// The runs and their evaluations, in recorded order.
    pub runs: Vec<(Arc<Trajectory>, Vec<Evaluation>)>,
}

/// Writes a report.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let script = assets::script();
    let style = assets::style();
    let hash = |text: &str| BASE64.encode(&Sha256::digest(text.as_bytes()));
    // The file loads nothing, and runs only this script.
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; \
         base-uri 'none'; form-action 'none'",
        hash(script),
        hash(style)
    );
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>spanscore report</title>\n<style>{style}</style>\n</head>\n<body>\n\
         <div id=\"page\"></div>\n"
    )?;
    let recorded = report.runs.iter().zip(1..);
    let runs: Vec<RememberedRun> = recorded
        .map(|((trajectory, evaluations), number)| {
            let evaluations = evaluations.clone();
            RememberedRun::recorded(number, trajectory, evaluations, report.has_values)
        })
        .collect();
    let criteria = report.criteria.iter().map(|criterion| {
        json!({
            "name": criterion.name,
            "criterion": criterion,
            "revision": criterion.revision(),
            "source": "file",
            "warnings": criterion.warnings(),
        })
    });
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "title": report.title,
        "written": rfc3339(report.written_unix_nanos),
        "criteria": criteria.collect::<Vec<_>>(),
        "links": report.links,
        "chunk": CHUNK,
        "chunks": runs.len().div_ceil(CHUNK),
    });
    write_data(out, "about", &about.to_string())?;
    let summaries: Vec<String> = runs
        .iter()
        .rev()
        .map(|run| view::summary(run).to_string())
        .collect();
    write_data(out, "runs", &format!("[{}]", summaries.join(",\n")))?;
    for (number, runs) in runs.chunks(CHUNK).enumerate() {
        let details: Vec<Value> = runs.iter().map(view::detail).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(json!(details).to_string().as_bytes())?;
        let packed = BASE64.encode(&encoder.finish()?);
        write_data(out, &format!("chunk-{number}"), &json!(packed).to_string())?;
    }
    writeln!(out, "<script>{script}</script>\n</body>\n</html>")
}

fn write_data(out: &mut dyn Write, id: &str, json: &str) -> io::Result<()> {
    let json = json.replace('<', "\\u003c");
    writeln!(
        out,
        "<script type=\"application/json\" id=\"{id}\">{json}</script>"
    )
}
