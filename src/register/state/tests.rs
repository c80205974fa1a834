//! Tests the state file over restarts, and other contents in its place. The tests do not prove that
//! a disk stores synced data.

use super::*;
use crate::register::merge::tests::criterion;

fn open(path: &Path) -> Result<(StateFile, Restored), StateError> {
    StateFile::open(path, &Config::default())
}

fn registrations() -> Vec<Registration> {
    vec![
        Registration {
            criterion: criterion("a", "x").into(),
            expires_unix_nanos: None,
        },
        Registration {
            criterion: criterion("b \"ü\" /", "y").into(),
            expires_unix_nanos: Some(1_795_000_000_123_456_789),
        },
    ]
}

#[test]
fn what_was_written_is_there_at_the_next_start_to_the_nanosecond() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (file, restored) = open(&path).unwrap();
    assert!(restored.registrations.is_empty() && restored.unusable.is_empty());
    file.write(&registrations()).unwrap();
    let (_, restored) = open(&path).unwrap();
    assert_eq!(restored.registrations, registrations());
    let revisions = |all: &[Registration]| {
        all.iter()
            .map(|registration| registration.criterion.revision().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        revisions(&restored.registrations),
        revisions(&registrations())
    );
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "no temporary file is left"
    );
}

#[test]
fn a_write_that_was_cut_off_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (file, _) = open(&path).unwrap();
    file.write(&registrations()).unwrap();
    fs::write(
        folder.path().join("state.json.tmp"),
        "{\"version\": 1, \"regi",
    )
    .unwrap();
    assert_eq!(open(&path).unwrap().1.registrations, registrations());
}

#[test]
fn unreadable_registrations_are_set_aside_and_the_rest_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let good = json!({ "criterion": criterion("a", "x") });
    let cases = [
        ("\0\0\0\0".to_owned(), 0, "cannot be parsed"),
        (String::new(), 0, "cannot be parsed"),
        (
            "{\"version\": 1, \"registrations\": [".to_owned(),
            0,
            "cannot be parsed",
        ),
        (
            json!({ "version": 2, "registrations": [] }).to_string(),
            0,
            "version 2",
        ),
        (
            json!({ "version": 1, "registrations": [good, {}] }).to_string(),
            1,
            "registration 2: `criterion` is missing",
        ),
        (
            json!({
                "version": 1,
                "registrations": [{ "criterion": { "name": "z" } }, good],
            })
            .to_string(),
            1,
            "registration 1: ",
        ),
        (
            json!({
                "version": 1,
                "registrations": [{ "criterion": criterion("a", "x"), "expires_at": "soon" }],
            })
            .to_string(),
            0,
            "is not a time",
        ),
    ];
    for (text, n_good, what) in cases {
        fs::write(&path, &text).unwrap();
        let (_, restored) = open(&path).unwrap();
        assert_eq!(restored.registrations.len(), n_good, "{text}");
        assert!(
            restored.unusable.join("\n").contains(what),
            "{text}: {:?}",
            restored.unusable
        );
        assert_eq!(
            fs::read_to_string(folder.path().join("state.json.unusable")).unwrap(),
            text
        );
        assert!(
            open(&path).unwrap().1.unusable.is_empty(),
            "the file itself is in order again"
        );
    }
}

#[test]
fn a_session_is_not_judged_where_its_turns_reach_other_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let of_session = json!({ "name": "s", "scope": "session",
        "evaluate": { "tool_calls": { "disallowed": ["x"] } } });
    let state = json!({ "version": 1, "registrations": [
        { "criterion": of_session }, { "criterion": criterion("a", "x") },
    ] });
    fs::write(&path, state.to_string()).unwrap();
    let mut config = Config::default();
    config.kafka.read.enabled = true;
    let (_, restored) = StateFile::open(&path, &config).unwrap();
    assert_eq!(restored.registrations.len(), 1);
    assert!(
        restored.unusable[0]
            .starts_with("registration 1: `scope: session` cannot be judged with `kafka.read`: "),
        "{:?}",
        restored.unusable
    );
    let unusable = folder.path().join("state.json.unusable");
    fs::rename(unusable, &path).unwrap();
    let (_, restored) = open(&path).unwrap();
    assert_eq!(restored.registrations.len(), 2, "a process without Kafka");
}

#[test]
fn a_file_that_cannot_be_read_or_written_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("admin.state_file") && error.contains("cannot be read"),
        "{error}"
    );
    let error = open(&folder.path().join("no/such/folder/state.json"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot be written"), "{error}");
}

#[cfg(unix)]
#[test]
fn the_file_is_private_and_a_planted_link_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = tempfile::tempdir().unwrap();
    let (path, victim) = (
        folder.path().join("state.json"),
        folder.path().join("victim"),
    );
    fs::write(&victim, "mine").unwrap();
    for name in ["state.json.tmp", "state.json.unusable"] {
        symlink(&victim, folder.path().join(name)).unwrap();
    }
    fs::write(&path, "not json").unwrap();
    open(&path).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    let unusable = folder.path().join("state.json.unusable");
    assert_eq!(fs::read_to_string(&unusable).unwrap(), "not json");
    for file in [path, unusable] {
        let mode = fs::symlink_metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{}", file.display());
    }
}
