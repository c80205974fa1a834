//! Tests compressed bodies: their memory, damage, a huge window, and several members in one body.

use super::{Chunks, limits, taken, text};
use crate::receive::body::Framing;
use crate::receive::decompress::Encoding;
use crate::receive::tests::read;
use crate::receive::tests::*;

#[tokio::test(start_paused = true)]
async fn compressed_bodies_that_are_cut_off_anywhere_are_malformed() {
    let (left, right) = (text(150), text(90));
    let plain = [left.as_slice(), &right].concat();
    let cases = [
        (Encoding::Gzip, gzip(&left), gzip(&right)),
        (Encoding::Zstd, zstd(&left), zstd(&right)),
        (Encoding::Deflate, zlib(&plain), Vec::new()),
    ];
    for (encoding, first, second) in cases {
        let packed = [first.as_slice(), &second].concat();
        for cut in 0..=packed.len() {
            let limits = limits(1 << 20, 1 << 20);
            let mut body = Chunks::of([&packed[..cut]]);
            let message = read(&mut body, Framing::Whole, encoding, &limits).await;
            match message {
                Ok(message) if cut == packed.len() => assert!(message.bytes == plain),
                Ok(message) => assert!(
                    cut == first.len() && message.bytes == left,
                    "{encoding:?} cut off at {cut}"
                ),
                Err(error) => assert!(
                    error.message().contains("truncated in transit"),
                    "{encoding:?} cut off at {cut}: {error:?}"
                ),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_decompresses_in_many_steps_is_whole() {
    let plain = text(5_000).repeat(1_000);
    for (encoding, packed) in [
        (Encoding::Gzip, gzip(&plain)),
        (Encoding::Zstd, zstd(&plain)),
        (Encoding::Deflate, zlib(&plain)),
    ] {
        let limits = limits(plain.len(), 4 * plain.len());
        let mut body = Chunks::of(packed.chunks(10_000));
        let message = read(&mut body, Framing::Whole, encoding, &limits).await;
        assert!(message.unwrap().bytes == plain, "{encoding:?}");
        assert_eq!(taken(&limits), 0, "{encoding:?}");
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
