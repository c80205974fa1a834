//! `spanscore journal`: shows what waits in a journal's folder, since when, and what is damaged.
//! Changes nothing.

use std::io;

use super::args::JournalReport;
use super::{Exit, Streams};
use crate::config::Signal;
use crate::journal::{JournalSurvey, survey};
use crate::text::{counted, rfc3339};

/// Runs the command.
pub(super) fn journal(args: &JournalReport, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let folder = args.folder.display();
    let survey = match survey(&args.folder) {
        Ok(survey) => survey,
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::NotFound => {
                    "is not the folder of a journal (`journal.directory`)".to_owned()
                }
                _ => format!("cannot be read: {error}"),
            };
            streams.complain(&format!("{folder}: {why}"))?;
            return Ok(Exit::Unreadable);
        }
    };
    if let Some(version) = survey.newer {
        streams.complain(&format!(
            "{folder}: a newer spanscore wrote it (format {version}); use that version"
        ))?;
        return Ok(Exit::Unreadable);
    }
    print(&survey, &folder.to_string(), streams)?;
    Ok(match survey.damage.is_empty() {
        true => Exit::Fine,
        false => Exit::Unreadable,
    })
}

fn print(survey: &JournalSurvey, folder: &str, streams: &mut Streams<'_>) -> io::Result<()> {
    let out = &mut *streams.out;
    let n_waiting: usize = survey
        .segments
        .iter()
        .map(|segment| segment.n_waiting)
        .sum();
    let n_bytes: u64 = survey
        .segments
        .iter()
        .map(|segment| segment.n_waiting_bytes)
        .sum();
    let oldest = survey
        .segments
        .iter()
        .filter_map(|segment| segment.oldest)
        .min();
    match oldest {
        None => writeln!(out, "{folder}: nothing waits")?,
        Some(oldest) => {
            let mut items = [0_u64; 3];
            for segment in &survey.segments {
                for (sum, n_items) in items.iter_mut().zip(segment.waiting) {
                    *sum += n_items;
                }
            }
            writeln!(
                out,
                "{folder}: {} ({}; {n_bytes} bytes) since {}",
                waiting(n_waiting),
                items_text(items),
                rfc3339(oldest)
            )?;
        }
    }
    for segment in &survey.segments {
        let requests = counted(segment.n_requests, "request", "requests");
        writeln!(
            out,
            "  {}  {} bytes, {requests}, {} waiting",
            segment.name, segment.size, segment.n_waiting
        )?;
    }
    if let Some(process) = &survey.in_use_by {
        writeln!(out, "process {process} has the folder; these numbers move")?;
    }
    for damage in &survey.damage {
        let requests = counted(
            usize::try_from(damage.n_records).unwrap_or(usize::MAX),
            "request",
            "requests",
        );
        match damage.n_bytes {
            0 => writeln!(
                out,
                "damage: {requests} missing in front of {}",
                damage.file
            )?,
            n_bytes => writeln!(
                out,
                "damage: {} at byte {}, {n_bytes} bytes: {requests} lost ({})",
                damage.file,
                damage.offset,
                items_text(damage.counts)
            )?,
        }
    }
    Ok(())
}

fn waiting(n_requests: usize) -> String {
    match n_requests {
        1 => "1 request waits".to_owned(),
        n => format!("{n} requests wait"),
    }
}

fn items_text(items: [u64; 3]) -> String {
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
    match words.is_empty() {
        true => "contents unknown".to_owned(),
        false => words.join(", "),
    }
}
