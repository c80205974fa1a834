//! Tests compressed bodies: their memory, damage, a huge window, and several members in one body.

use super::{Chunks, limits, taken, text};
use crate::receive::body::Framing;
use crate::receive::decompress::Encoding;
use crate::receive::tests::read;
use crate::receive::tests::*;

/// Decoders receive bodies in pieces of 64 KiB; here bodies are cut at every position.
#[test]
fn compressed_bodies_unpack_alike_in_any_chunks_and_truncated_ones_are_refused() {
    let (left, right) = (text(150), text(90));
    let plain = [left.as_slice(), &right].concat();
    let cases = [
        (Encoding::Gzip, gzip(&left), gzip(&right)),
        (Encoding::Zstd, zstd(&left), zstd(&right)),
        (Encoding::Deflate, zlib(&plain), Vec::new()),
    ];
    for (encoding, first, second) in cases {
        let packed = [first.as_slice(), &second].concat();
        for (cut, capacity) in (0..=packed.len())
            .flat_map(|cut| [1, plain.len(), 4_096].map(|capacity| (cut, capacity)))
        {
            let grow = |bytes: &mut Vec<u8>, _: usize| {
                bytes.reserve_exact(capacity);
                Ok(())
            };
            let unpacked = |pieces: &[&[u8]]| {
                let (mut decoder, mut unpacked) =
                    (encoding.decoder().unwrap().unwrap(), Vec::new());
                pieces
                    .iter()
                    .for_each(|piece| decoder.feed(piece, &mut unpacked, grow).unwrap());
                decoder.finish().map(|()| unpacked)
            };
            assert!(
                unpacked(&[&packed[..cut], &packed[cut..]]).unwrap() == plain,
                "{encoding:?} cut at {cut}, {capacity} bytes at once"
            );
            let is_whole = cut == first.len() || cut == packed.len();
            assert_eq!(
                unpacked(&[&packed[..cut]]).is_ok(),
                is_whole,
                "{encoding:?} cut off at {cut}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_about_as_long_as_one_piece_is_read_like_any_other() {
    use flate2::{Compression, GzBuilder};
    let plain = text(1_000);
    let packed = |name_len: usize| {
        let mut encoder = GzBuilder::new()
            .filename(vec![b'n'; name_len])
            .write(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut encoder, &plain).unwrap();
        encoder.finish().unwrap()
    };
    for len in [65_535, 65_536, 65_537, 131_072] {
        let packed = packed(len - packed(0).len());
        assert_eq!(packed.len(), len);
        for size in [1_000, 16_384, 65_536, len] {
            let limits = limits(1 << 20, 1 << 20);
            let held = read(
                &mut Chunks::of(packed.chunks(size)),
                Framing::Whole,
                Encoding::Gzip,
                &limits,
            )
            .await
            .unwrap();
            assert!(held.bytes == plain, "{len} bytes in chunks of {size}");
        }
    }
}

/// If the guess is too small, the body is copied again. If it is too large, the body is copied at
/// the end to return the rest.
#[tokio::test(start_paused = true)]
async fn room_for_all_of_a_compressed_body_is_guessed_from_its_beginning() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut line = || {
        format!(
            "{{\"gen_ai.operation.name\": \"execute_tool\", \"gen_ai.tool.call.id\": {}}}\n",
            rng.u32(..)
        )
    };
    let plain: Vec<u8> = std::iter::repeat_with(|| line().into_bytes())
        .take(15_000)
        .flatten()
        .collect();
    for (encoding, packed) in [
        (Encoding::Gzip, gzip(&plain)),
        (Encoding::Deflate, zlib(&plain)),
    ] {
        let body = framed(1, &packed);
        assert!(
            plain.len() > 6 * packed.len() && packed.len() > 140_000 && plain.len() < 4 << 20,
            "{} bytes packed of {}",
            packed.len(),
            plain.len()
        );
        let limits = limits(4 << 20, 4 << 20);
        let mut body = Chunks {
            hangs: true,
            ..Chunks::of([&body[..packed.len() / 2 + 5]])
        };
        let reading = read(&mut body, Framing::Prefixed, encoding, &limits);
        tokio::pin!(reading);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), &mut reading)
                .await
                .is_err()
        );
        let expected = plain.len()..plain.len() * 5 / 4;
        assert!(
            expected.contains(&taken(&limits)),
            "{encoding:?}: {} bytes taken for {}",
            taken(&limits),
            plain.len()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn truncated_and_damaged_bodies_are_malformed() {
    let plain = text(50_000);
    let (gzipped, zstded, zlibbed) = (gzip(&plain), zstd(&plain), zlib(&plain));
    let mut flipped = gzipped.clone();
    flipped[25_000] ^= 0x40;
    let twice = [framed(0, &plain), framed(0, &plain)].concat();
    let cases: Vec<(&str, Framing, Encoding, Vec<u8>)> = vec![
        (
            "half a gzip",
            Framing::Whole,
            Encoding::Gzip,
            gzipped[..gzipped.len() / 2].to_vec(),
        ),
        (
            "gzip without its checksum",
            Framing::Whole,
            Encoding::Gzip,
            gzipped[..gzipped.len() - 4].to_vec(),
        ),
        (
            "gzip with a wrong bit",
            Framing::Whole,
            Encoding::Gzip,
            flipped,
        ),
        (
            "gzip and garbage",
            Framing::Whole,
            Encoding::Gzip,
            [gzipped.as_slice(), b"garbage"].concat(),
        ),
        (
            "half a zstd",
            Framing::Whole,
            Encoding::Zstd,
            zstded[..zstded.len() / 2].to_vec(),
        ),
        (
            "zstd and garbage",
            Framing::Whole,
            Encoding::Zstd,
            [zstded.as_slice(), b"garbage"].concat(),
        ),
        (
            "half a zlib",
            Framing::Whole,
            Encoding::Deflate,
            zlibbed[..zlibbed.len() / 2].to_vec(),
        ),
        (
            "zlib and garbage",
            Framing::Whole,
            Encoding::Deflate,
            [zlibbed.as_slice(), b"garbage"].concat(),
        ),
        (
            "not gzip at all",
            Framing::Whole,
            Encoding::Gzip,
            plain.clone(),
        ),
        (
            "not zstd at all",
            Framing::Whole,
            Encoding::Zstd,
            plain.clone(),
        ),
        (
            "nothing, as gzip",
            Framing::Whole,
            Encoding::Gzip,
            Vec::new(),
        ),
        (
            "nothing, as zstd",
            Framing::Whole,
            Encoding::Zstd,
            Vec::new(),
        ),
        (
            "no message",
            Framing::Prefixed,
            Encoding::Identity,
            Vec::new(),
        ),
        (
            "half a prefix",
            Framing::Prefixed,
            Encoding::Identity,
            vec![0, 0, 0],
        ),
        (
            "half a message",
            Framing::Prefixed,
            Encoding::Identity,
            framed(0, &plain)[..20_000].to_vec(),
        ),
        ("two messages", Framing::Prefixed, Encoding::Identity, twice),
        (
            "a strange flag",
            Framing::Prefixed,
            Encoding::Gzip,
            framed(2, &gzipped),
        ),
        (
            "compressed, nobody knows how",
            Framing::Prefixed,
            Encoding::Identity,
            framed(1, &gzipped),
        ),
    ];
    for (name, framing, encoding, body) in cases {
        for size in [1_000, 100_000] {
            let limits = limits(1 << 20, 1 << 20);
            let refusal = read(
                &mut Chunks::of(body.chunks(size)),
                framing,
                encoding,
                &limits,
            )
            .await
            .expect_err(name);
            assert_eq!(refusal.reason(), "malformed", "{name}: {refusal:?}");
            assert_eq!(taken(&limits), 0, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn concatenated_members_and_frames_are_one_body() {
    let (left, right) = (text(30_000), text(20_000));
    let plain = [left.as_slice(), &right].concat();
    for (encoding, packed) in [
        (Encoding::Gzip, [gzip(&left), gzip(&right)].concat()),
        (Encoding::Zstd, [zstd(&left), zstd(&right)].concat()),
    ] {
        for size in [13, 1_000_000] {
            let limits = limits(1 << 20, 1 << 20);
            let held = read(
                &mut Chunks::of(packed.chunks(size)),
                Framing::Whole,
                encoding,
                &limits,
            )
            .await
            .unwrap();
            assert!(held.bytes == plain, "{encoding:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_zstd_frame_with_a_huge_window_gets_no_memory() {
    // This frame header has the magic number, no content size, and a window of 2^25 bytes, which
    // the library's own limit would accept.
    let header: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 15 << 3];
    let limits = limits(1 << 20, 1 << 20);
    let refusal = read(
        &mut Chunks::of([header, &[0; 100]]),
        Framing::Whole,
        Encoding::Zstd,
        &limits,
    )
    .await
    .unwrap_err();
    assert!(
        refusal.message().contains("Frame requires too much memory"),
        "{refusal:?}"
    );
}
