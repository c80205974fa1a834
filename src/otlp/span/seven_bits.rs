//! Numbers and bytes written in seven bits to a byte, so that they are UTF-8.

/// 28 bits in four bytes.
#[inline]
pub(super) const fn spread(bits: u32) -> [u8; 4] {
    let bits = (bits & 0x3fff) | (bits & 0x0fff_c000) << 2;
    ((bits & 0x007f_007f) | (bits & 0x3f80_3f80) << 1).to_le_bytes()
}

/// The inverse of [`spread`], from its bytes as a number in little-endian order.
#[inline]
pub(super) fn gather(bits: u32) -> u32 {
    let bits = (bits & 0x007f_007f) | (bits & 0x7f00_7f00) >> 1;
    (bits & 0x3fff) | (bits & 0x3fff_0000) >> 2
}

/// Size of a number, in bytes.
pub(super) const NUMBER_SIZE: usize = 10;

/// 64 bits in ten bytes.
pub(super) fn number(number: u64) -> [u8; NUMBER_SIZE] {
    std::array::from_fn(|nth| (number >> (7 * nth)) as u8 & 0x7f)
}

/// The inverse of [`number`]; `None` for a text of another length.
pub(super) fn read_number(text: &str) -> Option<u64> {
    let bytes: &[u8; NUMBER_SIZE] = text.as_bytes().try_into().ok()?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 7 | u64::from(*byte)),
    )
}

/// Seven bytes become eight, a shorter rest becomes one byte longer.
pub(super) fn pack_bytes(bytes: &[u8]) -> Vec<u8> {
    let gathered = |group: &[u8]| {
        group
            .iter()
            .rev()
            .fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    };
    bytes
        .chunks(7)
        .flat_map(|group| number(gathered(group)).into_iter().take(group.len() + 1))
        .collect()
}

/// The inverse of [`pack_bytes`].
pub(super) fn unpack_bytes(packed: &str) -> Vec<u8> {
    let gathered = |group: &[u8]| {
        group
            .iter()
            .rev()
            .fold(0_u64, |bits, byte| bits << 7 | u64::from(*byte))
    };
    packed
        .as_bytes()
        .chunks(8)
        .flat_map(|group| {
            gathered(group)
                .to_le_bytes()
                .into_iter()
                .take(group.len() - 1)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_number_are_packed_and_read_again() {
        for n_bytes in 0..40 {
            let bytes: Vec<u8> = (0..n_bytes).map(|nth| 255 - nth * 3).collect();
            let packed = String::from_utf8(pack_bytes(&bytes)).unwrap();
            assert_eq!(unpack_bytes(&packed), bytes);
            assert_eq!(packed.len(), bytes.len() + bytes.len().div_ceil(7));
        }
    }
}
