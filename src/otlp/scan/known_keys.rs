//! A cache of a request's attribute keys and their rules, so that nearly every key is validated and
//! looked up only once.

use crate::span::{KeySet, MatchedKey};
use crate::wire::{Fault, check_utf8};

/// The number of values of a byte, so that indexing by a byte needs no bounds check.
const N_SLOTS: usize = 256;

/// Cached keys of one request, with their rules. A request repeats a few dozen keys.
pub(super) struct KnownKeys<'b> {
    keys: [&'b [u8]; N_SLOTS],
    kept: [Option<MatchedKey<'b>>; N_SLOTS],
}

/// The slot of a cached key, valid until the next lookup.
#[derive(Clone, Copy)]
pub(super) struct KnownKey(u8);

impl<'b> KnownKeys<'b> {
    pub(super) fn new() -> Self {
        Self {
            keys: [b""; N_SLOTS],
            kept: [None; N_SLOTS],
        }
    }

    #[inline(always)]
    pub(super) fn lookup(
        &mut self,
        keys: Option<&KeySet>,
        key: &'b [u8],
    ) -> Result<KnownKey, Fault> {
        let known = slot_of(key);
        if !is_same(self.keys[usize::from(known.0)], key) {
            self.learn(keys, key, known)?;
        }
        Ok(known)
    }

    /// Returns the rule of the key; `None` if attributes with this key are not stored.
    #[inline(always)]
    pub(super) fn kept(&self, known: KnownKey) -> Option<MatchedKey<'b>> {
        self.kept[usize::from(known.0)]
    }

    #[inline(never)]
    fn learn(
        &mut self,
        keys: Option<&KeySet>,
        key: &'b [u8],
        known: KnownKey,
    ) -> Result<(), Fault> {
        check_utf8(key)?;
        self.keys[usize::from(known.0)] = key;
        self.kept[usize::from(known.0)] = keys.and_then(|keys| keys.find(key));
        Ok(())
    }
}

/// Returns true if the keys are equal. Compares keys of 8 to 32 bytes (nearly all keys) as
/// overlapping words, without a function call. An empty key never matches, because empty slots
/// contain empty keys.
#[inline(always)]
fn is_same(known: &[u8], key: &[u8]) -> bool {
    if known.len() != key.len() {
        return false;
    }
    match key.len() {
        0 => false,
        8..=16 => {
            known.first_chunk::<8>() == key.first_chunk()
                && known.last_chunk::<8>() == key.last_chunk()
        }
        17..=32 => {
            known.first_chunk::<16>() == key.first_chunk()
                && known.last_chunk::<16>() == key.last_chunk()
        }
        _ => known == key,
    }
}

/// Hashes a key's length and last eight bytes to a slot, because keys of one namespace differ at
/// the end.
#[inline(always)]
fn slot_of(key: &[u8]) -> KnownKey {
    let end = match key.last_chunk::<8>() {
        Some(end) => u64::from_le_bytes(*end),
        None => key.iter().fold(0, |end, &byte| end << 8 | u64::from(byte)),
    };
    let mixed = (end ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    KnownKey((mixed >> 56) as u8)
}
