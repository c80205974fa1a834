//! `spanscore journal`: shows the undelivered records in a journal's folder, their age, and damage.
//! Changes nothing.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, ValueHint};
use text::counted;

use super::global::NoConfiguration;
use super::{Exit, Streams};
use crate::config::Signal;
use crate::journal::{JournalSurvey, LogSurvey, OpenError, SignalCounts, request_counts, survey};
use crate::rfc3339::rfc3339;

/// Options of `journal`.
#[derive(Debug, Args)]
pub(super) struct JournalReport {
    /// The folder (`journal.directory`). Exit code 3 if a record is damaged.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) folder: PathBuf,
    #[command(flatten)]
    pub(super) no_configuration: NoConfiguration,
}

pub(super) fn journal(args: &JournalReport, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let folder = args.folder.display();
    let survey = match survey(&args.folder) {
        Ok(survey) => survey,
        Err(error) => {
            streams.complain(&match error {
                OpenError::OtherVersion(version) => format!(
                    "cannot read `{folder}`: another version of spanscore wrote it (format \
                     {version}); use that version"
                ),
                OpenError::FileFault(fault) if fault.error.kind() == ErrorKind::NotFound => {
                    format!("{folder}: is not the folder of a journal (`journal.directory`)")
                }
                OpenError::FileFault(fault) => format!("{folder}: cannot be read: {}", fault.error),
            })?;
            return Ok(Exit::Unreadable);
        }
    };
    print(&survey, &folder.to_string(), streams)?;
    let logs = [&survey.requests, &survey.scores];
    let is_whole = logs.iter().all(|log| log.damage.is_empty());
    Ok(if is_whole { Exit::Fine } else { Exit::Unreadable })
}

fn print(survey: &JournalSurvey, folder: &str, streams: &mut Streams<'_>) -> io::Result<()> {
    let out = &mut *streams.out;
    const REQUESTS: [&str; 2] = ["request", "requests"];
    let requests = waiting(&survey.requests, REQUESTS, items_in);
    writeln!(out, "{folder}: {requests}")?;
    print_segments(&survey.requests, REQUESTS, out)?;
    if !survey.scores.segments.is_empty() {
        let scores = waiting(&survey.scores, ["batch", "batches"], |log| {
            let n_scores = log.segments.iter().flat_map(|segment| segment.waiting);
            let n_scores = usize::try_from(n_scores.sum::<u64>()).unwrap_or(usize::MAX);
            counted(n_scores, "score", "scores")
        });
        writeln!(out, "{folder}/scores: {scores}")?;
        print_segments(&survey.scores, ["batch", "batches"], out)?;
    }
    if let Some(process) = &survey.in_use_by {
        writeln!(
            out,
            "process {process} is using the folder; the numbers may change"
        )?;
    }
    print_damage(&survey.requests, "", REQUESTS, out)?;
    print_damage(&survey.scores, "scores/", ["batch", "batches"], out)
}

fn items_in(log: &LogSurvey) -> String {
    let mut items = SignalCounts::default();
    for segment in &log.segments {
        for (sum, n_items) in items.iter_mut().zip(segment.waiting) {
            *sum += n_items;
        }
    }
    items_text(request_counts(&items))
}

fn print_segments(log: &LogSurvey, word: [&str; 2], out: &mut dyn Write) -> io::Result<()> {
    for segment in &log.segments {
        writeln!(
            out,
            "  {}  {} bytes, {}, {} waiting",
            segment.name,
            segment.size,
            counted(segment.n_requests, word[0], word[1]),
            segment.n_waiting
        )?;
    }
    Ok(())
}

fn print_damage(
    log: &LogSurvey,
    folder: &str,
    word: [&str; 2],
    out: &mut dyn Write,
) -> io::Result<()> {
    for damage in &log.damage {
        let n_records = usize::try_from(damage.n_records).unwrap_or(usize::MAX);
        let records = counted(n_records, word[0], word[1]);
        let file = &damage.file;
        match damage.n_bytes {
            0 => writeln!(out, "damage: {records} missing before {folder}{file}")?,
            n_bytes => writeln!(
                out,
                "damage: {folder}{file} at byte {}, {n_bytes} bytes: {records} lost ({})",
                damage.offset,
                items_text(request_counts(&damage.counts))
            )?,
        }
    }
    Ok(())
}

/// Describes the undelivered records of a log and their age.
fn waiting(log: &LogSurvey, word: [&str; 2], items: fn(&LogSurvey) -> String) -> String {
    let segments = || log.segments.iter();
    let Some(oldest) = segments().filter_map(|segment| segment.oldest).min() else {
        return "nothing waits".to_owned();
    };
    let n_waiting: usize = segments().map(|segment| segment.n_waiting).sum();
    let n_bytes: u64 = segments().map(|segment| segment.n_waiting_bytes).sum();
    let verb = if n_waiting == 1 { "waits" } else { "wait" };
    format!(
        "{} {verb} ({}; {n_bytes} bytes) since {}",
        counted(n_waiting, word[0], word[1]),
        items(log),
        rfc3339(oldest)
    )
}

fn items_text(items: SignalCounts) -> String {
    let words = Signal::ALL
        .into_iter()
        .zip(items)
        .filter(|(_, n_items)| *n_items > 0);
    let words: Vec<String> = words
        .map(|(signal, n_items)| {
            let n_items = usize::try_from(n_items).unwrap_or(usize::MAX);
            match signal {
                Signal::Traces => counted(n_items, "span", "spans"),
                Signal::Logs => counted(n_items, "log record", "log records"),
                Signal::Metrics => counted(n_items, "metric point", "metric points"),
            }
        })
        .collect();
    if words.is_empty() { "contents unknown".to_owned() } else { words.join(", ") }
}
