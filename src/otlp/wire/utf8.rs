//! Checks that a string field is UTF-8, optimised for short ASCII strings, the most common ones.

use super::{Fault, FaultKind};

/// Returns a fault at the first byte that is not valid UTF-8.
#[inline(always)]
pub fn check_utf8(bytes: &[u8]) -> Result<(), Fault> {
    if is_short_ascii(bytes) { Ok(()) } else { check_long_utf8(bytes) }
}

#[inline(never)]
fn check_long_utf8(bytes: &[u8]) -> Result<(), Fault> {
    match simdutf8::basic::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::new(
            FaultKind::NotUtf8,
            bytes.get(valid_up_to(bytes)..).unwrap_or(bytes),
        )),
    }
}

#[cold]
fn valid_up_to(bytes: &[u8]) -> usize {
    std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len)
}

/// Returns true if the string is short and ASCII, as most are. Overlapping loads check 8 to 32
/// bytes without a loop or a call; the standard library's check is slow for short strings.
#[inline(always)]
fn is_short_ascii(bytes: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = |at: usize| {
        bytes
            .get(at..at + 8)
            .and_then(|word| word.try_into().ok())
            .map_or(HIGH, u64::from_le_bytes)
    };
    let len = bytes.len();
    match len {
        16..=32 => (word(0) | word(8) | word(len - 16) | word(len - 8)) & HIGH == 0,
        8..=15 => (word(0) | word(len - 8)) & HIGH == 0,
        0..=7 => bytes.iter().fold(0, |bits, byte| bits | byte) < 0x80,
        _ => false,
    }
}
