//! When the memory of single peers begins, where theirs had to give way before its time. Knows
//! neither what was forgotten nor on which clock.

use otlp::span::PeerId;

use super::shares::TraceSender;

/// Peers that have beginnings of memory of their own, at most.
const MAX_BEGINNINGS: usize = 64;

/// For each of some peers, the last moment of what was forgotten of it.
#[derive(Debug, Default)]
pub(super) struct Beginnings(Vec<(PeerId, u64)>);

impl Beginnings {
    /// Begins the memory of a peer, or of all where the peer is unknown, after this moment. Returns
    /// the moment if it concerns all.
    pub(super) fn begin(&mut self, peer: Option<PeerId>, moment: u64) -> Option<u64> {
        // Restored traces have an unknown sender, and some traces have several.
        let unnamed = [TraceSender::UNKNOWN.peer, TraceSender::SEVERAL.peer];
        let Some(peer) = peer.filter(|peer| !unnamed.contains(peer)) else {
            return Some(moment);
        };
        if let Some((_, beginning)) = self.0.iter_mut().find(|(of, _)| *of == peer) {
            *beginning = moment.max(*beginning);
        } else if self.0.len() < MAX_BEGINNINGS {
            self.0.push((peer, moment));
        } else {
            return Some(moment);
        }
        None
    }

    /// The beginning of a peer's own memory.
    pub(super) fn of(&self, peer: PeerId) -> Option<u64> {
        let found = self.0.iter().find(|(of, _)| *of == peer);
        found.map(|&(_, beginning)| beginning)
    }

    /// Drops the beginnings that are too old, and returns the last of them.
    pub(super) fn expire(&mut self, is_recent: impl Fn(u64) -> bool) -> Option<u64> {
        let mut dropped = None;
        self.0.retain(|&(_, beginning)| {
            let is_kept = is_recent(beginning);
            if !is_kept {
                dropped = dropped.max(Some(beginning));
            }
            is_kept
        });
        dropped
    }
}
