//! Tests that the cursor reads back the fields that the writer writes, and that the writer writes
//! lengths as prost does. `fuzz/wire.rs` compares the cursor with prost on generated requests.

use proptest::prelude::{any, prop, proptest};
use prost::Message;
use prost::bytes::Bytes;

use super::{delimited_fields, fields, key, write};

proptest! {
    #[test]
    fn lengths_of_nested_messages_are_written_as_prost_writes_them(
        len in prop::sample::select(vec![0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152]),
        prefix in prop::collection::vec(any::<u8>(), 0..3),
    ) {
        let content = vec![7; len];
        let mut written = prefix.clone();
        write::message(&mut written, 1, |out| out.extend_from_slice(&content));
        let mut delimited = prefix.clone();
        write::delimited(&mut delimited, 1, &content);
        assert_eq!(written, delimited);
        if len > 0 {
            assert_eq!(written[prefix.len()..], Bytes::from(content).encode_to_vec());
        }
    }
}

#[test]
fn fields_keep_their_bytes_and_groups_are_skipped() {
    let mut message = Vec::new();
    write::uint(&mut message, 1, 300);
    write::bytes(&mut message, 2, b"text");
    write::fixed64(&mut message, 3, 1);
    write::varint(&mut message, key(4, super::START_GROUP));
    write::bytes(&mut message, 2, b"in the group");
    write::varint(&mut message, key(4, super::END_GROUP));
    write::fixed32(&mut message, 5, 1);
    let found: Vec<_> = fields(&message).map(Result::unwrap).collect();
    assert_eq!(
        found.iter().map(|field| field.number).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    let raw: Vec<u8> = found.iter().flat_map(|field| field.raw).copied().collect();
    assert_eq!(raw, message);
    assert_eq!(found[1].content, Some(&b"text"[..]));
    assert!(delimited_fields(&message, 2).eq([b"text"]));
}

#[test]
fn fields_end_at_the_first_fault() {
    let message = [0x0a, 1, b'a', 0x0e, 0, 0, 0, 0, 0x0a, 1, b'b'];
    let found: Vec<bool> = fields(&message).map(|field| field.is_ok()).collect();
    assert_eq!(found, [true, false]);
}
