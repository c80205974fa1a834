//! Receives a large message into separately mapped memory, which returns to the system when the
//! message is dropped. If a thread frees memory that another thread allocated, the allocator
//! retains the memory until the other thread has allocated a hundred times more. A flood of refused
//! messages, which no longer count against the budget, would then fill a container.

use bytes::Bytes;
use memmap2::MmapMut;

/// A message of a known length, partly received. Only received bytes use memory.
#[derive(Debug)]
pub(super) struct MappedMessage {
    map: MmapMut,
    n_filled: usize,
}

impl MappedMessage {
    /// Maps memory for a message; returns `None` if the system has none.
    pub(super) fn try_new(len: usize) -> Option<Self> {
        let map = MmapMut::map_anon(len).ok()?;
        Some(Self { map, n_filled: 0 })
    }

    /// Adds bytes; returns `false` if they exceed the length of the message.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        let place = self.map[self.n_filled..].get_mut(..bytes.len());
        place.is_some_and(|place| {
            place.copy_from_slice(bytes);
            self.n_filled += bytes.len();
            true
        })
    }

    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for MappedMessage {
    fn as_ref(&self) -> &[u8] {
        &self.map[..self.n_filled]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_what_arrived_and_no_more_than_was_announced() {
        let mut message = MappedMessage::try_new(5_000).unwrap();
        assert!(message.push(&[1; 4_000]) && message.push(&[2; 900]));
        assert!(!message.push(&[3; 101]));
        assert_eq!(message.as_ref().len(), 4_900);
        let bytes = message.into_bytes();
        assert_eq!((bytes[3_999], bytes[4_000], bytes.len()), (1, 2, 4_900));
        assert_eq!(bytes.slice(4_000..).to_vec(), vec![2; 900]);
    }
}
