//! Resolves `assemble.peers` every few seconds and reports changes to the scoring threads.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use otlp::span::Now;

use super::now;
use super::scoring::ScoringQueue;
use crate::telemetry::{PeersFound, PeersUnresolved, Telemetry, Throttled};

/// Interval between look-ups of the addresses. It is shorter than the router's, so that spanscore
/// detects a change before the change has consequences.
const INTERVAL: Duration = Duration::from_secs(2);

/// Maximum size of a file with addresses, in bytes.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// Watches the addresses until aborted.
pub(super) async fn watch_peers(
    peers: String,
    scoring: ScoringQueue,
    telemetry: Arc<Telemetry>,
    started: Now,
) {
    let mut members = Members {
        known: None,
        confirmed: started,
    };
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut changes = Throttled::default();
    let mut is_unresolved = false;
    loop {
        ticks.tick().await;
        let asked = now();
        let found = tokio::time::timeout(INTERVAL, addresses(&peers)).await;
        let late = |_| Err(io::Error::other("no answer from the name server"));
        let error = match found.unwrap_or_else(late) {
            Ok(addresses) if !addresses.is_empty() => {
                is_unresolved = false;
                let n_peers = addresses.len();
                let n_before = members.known.as_ref().map(BTreeSet::len);
                let changed = members.see(addresses, asked);
                if let Some(since) = changed {
                    scoring.peers_changed(since, now());
                }
                let n_before = n_before.filter(|_| changed.is_some());
                let is_logged = n_before.is_some() && changes.ready((), asked.instant).is_some();
                PeersFound {
                    n_peers,
                    n_before,
                    is_logged,
                }
                .emit(&telemetry);
                continue;
            }
            Ok(_) => "it has no addresses".to_owned(),
            Err(error) => error.to_string(),
        };
        PeersUnresolved {
            peers: &peers,
            error,
        }
        .emit(&telemetry, !is_unresolved);
        is_unresolved = true;
    }
}

/// Returns the addresses of a name, or of a file with one address per line.
async fn addresses(peers: &str) -> io::Result<BTreeSet<String>> {
    if peers.starts_with('/') {
        let file = peers.to_owned();
        return tokio::task::spawn_blocking(move || read_addresses(&file)).await?;
    }
    // The port does not matter, because only the addresses are used.
    let found = tokio::net::lookup_host((peers, 0)).await?;
    Ok(found.map(|address| address.ip().to_string()).collect())
}

fn read_addresses(file: &str) -> io::Result<BTreeSet<String>> {
    let mut text = String::new();
    File::open(file)?
        .take(MAX_FILE_SIZE)
        .read_to_string(&mut text)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}

struct Members {
    known: Option<BTreeSet<String>>,
    /// Time of the last look-up that returned the known addresses; initially the start.
    confirmed: Now,
}

impl Members {
    /// Compares the answer to a look-up that began at `asked` with the known addresses. If they
    /// differ, returns the earliest time at which the change can have happened.
    fn see(&mut self, addresses: BTreeSet<String>, asked: Now) -> Option<Now> {
        let since = std::mem::replace(&mut self.confirmed, asked);
        if self.known.as_ref() == Some(&addresses) {
            return None;
        }
        self.known = Some(addresses);
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Now {
        let begun = now();
        Now {
            instant: begun.instant,
            unix_nanos: secs * 1_000_000_000,
        }
    }

    fn set(addresses: &[&str]) -> BTreeSet<String> {
        addresses
            .iter()
            .map(|&address| address.to_owned())
            .collect()
    }

    /// Traces that began between two answers may have begun in another replica.
    #[test]
    fn a_change_counts_from_the_last_answer_that_was_the_same() {
        let mut members = Members {
            known: None,
            confirmed: at(0),
        };
        let since = |changed: Option<Now>| changed.map(|since| since.unix_nanos / 1_000_000_000);
        assert_eq!(since(members.see(set(&["a"]), at(1))), Some(0));
        assert_eq!(since(members.see(set(&["a"]), at(3))), None);
        // From 5 to 7 the name server is unreachable.
        assert_eq!(since(members.see(set(&["b", "a"]), at(9))), Some(3));
        assert_eq!(since(members.see(set(&["a", "b"]), at(11))), None);
        assert_eq!(since(members.see(set(&["a"]), at(13))), Some(11));
    }

    #[tokio::test]
    async fn a_file_has_one_address_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peers");
        let peers = file.to_str().unwrap();
        assert!(addresses(peers).await.is_err());
        let thousand: Vec<String> = (0..1_000).map(|n| format!("10.0.0.{n}")).collect();
        std::fs::write(&file, format!("{}\n\n 10.0.0.1 \n", thousand.join("\n"))).unwrap();
        assert_eq!(addresses(peers).await.unwrap().len(), 1_000);
    }

    #[tokio::test]
    async fn a_name_is_resolved_and_an_unknown_one_is_an_error() {
        let found = addresses("localhost").await.unwrap();
        assert!(found.contains("127.0.0.1"), "{found:?}");
        assert!(addresses("no-such-name.invalid").await.is_err());
    }
}
