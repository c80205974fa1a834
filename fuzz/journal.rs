//! Reads faulty segments of the journal: reading must terminate, and return only records that were
//! written. The target does not prove what is on the disk after a crash; the model in `journal`
//! does.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use prost::bytes::Bytes;
use spanscore::journal::{self, JournalFolder, JournalLog, LogSettings, LogThread, Record};
use spanscore::sidecar;
use spanscore::telemetry::Telemetry;

use crate::corpus;
use crate::generate::{Dice, mutate};

const BODIES: [&str; 5] = ["one", "", "three three three", "four", "five five"];

#[test]
fn any_segment_is_read_or_refused() {
    let (name, segment) = written();
    let bodies = |bytes: &[u8]| -> Option<Vec<Bytes>> {
        let requests = journal::segment_requests(&Bytes::copy_from_slice(bytes))?;
        Some(requests.into_iter().map(|(_, body)| body).collect())
    };
    assert_eq!(bodies(&segment).unwrap(), BODIES, "the fixture");
    let check_input = |recipe: &[u8]| {
        let mut dice = Dice::new(recipe);
        let faulty = moved(&mutate(&segment, &mut dice), &mut dice);
        journal::is_segment(&faulty);
        for body in bodies(&faulty).unwrap_or_default() {
            let text = String::from_utf8_lossy(&body);
            assert!(BODIES.contains(&&*text), "{text}");
        }
        // Only one input in eight uses files, which take a hundred times as long.
        if dice.up_to(8) == 0 {
            let folder = tempfile::tempdir().unwrap();
            let requests = folder.path().join("requests");
            fs::create_dir(&requests).unwrap();
            fs::write(requests.join(&name), &faulty).unwrap();
            // Either function may return an error.
            drop(journal::survey(folder.path()));
            if let Some((_, keeping)) = open(folder.path().into()) {
                keeping.end();
            }
        }
    };
    corpus::replay("journal::any_segment_is_read_or_refused", check_input);
    bolero::check!()
        .with_iterations(1_500)
        .with_max_len(96)
        .for_each(check_input);
}

/// Returns the bytes with a piece repeated or removed, cut off at the end, or unchanged.
fn moved(bytes: &[u8], dice: &mut Dice<'_>) -> Vec<u8> {
    let mut at = || dice.up_to(bytes.len().max(1) / 8 + 1) * 8;
    let (from, to, place) = (at(), at(), at());
    let (from, to) = (from.min(to), from.max(to));
    let piece = bytes.get(from..to.min(bytes.len())).unwrap_or_default();
    let mut moved = bytes.to_vec();
    match dice.up_to(4) {
        0 => drop(moved.splice(
            place.min(moved.len())..place.min(moved.len()),
            piece.to_vec(),
        )),
        1 => drop(moved.drain(from.min(moved.len())..to.min(moved.len()))),
        2 => moved.truncate(place),
        _ => {}
    }
    moved
}

/// Returns the name and the bytes of a segment with [`BODIES`], without its free space.
fn written() -> (String, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let (log, keeping) = open(folder.path().into()).unwrap();
    for (body, n_items) in BODIES.iter().zip(1..) {
        let record = Record::new(0, n_items, 7, Bytes::from("meta"), Bytes::from(*body));
        log.append(record, Box::new(|outcome| assert!(outcome.is_ok())));
    }
    keeping.end();
    let files = fs::read_dir(folder.path().join("requests")).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let file = files
        .find(|file| journal::is_segment(&fs::read(file).unwrap()))
        .unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    bytes.truncate(used.next_multiple_of(64));
    (
        file.file_name().unwrap().to_string_lossy().into_owned(),
        bytes,
    )
}

fn open(folder: PathBuf) -> Option<(JournalLog, LogThread)> {
    let clock = || {
        let now = sidecar::now();
        (now.instant, now.unix_nanos)
    };
    let folder = JournalFolder::lock(&folder).unwrap()?;
    let settings = LogSettings::new(64 << 20, false, true);
    let rng = fastrand::Rng::with_seed(1);
    let telemetry = Arc::new(Telemetry::default());
    folder.open(settings, clock, rng, &telemetry).ok()
}
