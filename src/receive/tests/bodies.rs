//! Tests bodies without sockets: how they arrive in pieces, how much memory they take, and when
//! they are abandoned, on tokio's paused clock. The tests do not prove how hyper delivers bodies.

mod compressed;

use std::collections::VecDeque;
use std::pin::Pin;

use super::super::body::Framing;
use super::super::decompress::Encoding;
use super::super::pace::LEAST_ADVANCE;
use super::read;
use super::*;

/// A body of these chunks that then ends, or hangs.
pub(super) struct Chunks {
    chunks: VecDeque<Bytes>,
    pause: Duration,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    hangs: bool,
}

impl Chunks {
    pub(super) fn of<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let chunks = chunks.into_iter().map(Bytes::copy_from_slice).collect();
        Self {
            chunks,
            pause: Duration::ZERO,
            sleep: None,
            hangs: false,
        }
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        if self.pause > Duration::ZERO {
            let pause = self.pause;
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
            std::task::ready!(sleep.as_mut().poll(cx));
            self.sleep = None;
        }
        match self.chunks.pop_front() {
            Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
            None if self.hangs => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

fn limits(max_size: usize, budget: usize) -> BodyLimits {
    BodyLimits {
        sizes: vec![(max_size.into(), "`receivers.otlp.max_request_size`")],
        budget: EvictingBudget::new(budget, None),
    }
}

fn taken(limits: &BodyLimits) -> usize {
    limits.budget.n_bytes()
}

/// Returns bytes that compress badly.
fn text(len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(7);
    (0..len).map(|_| rng.alphanumeric() as u8).collect()
}

#[tokio::test(start_paused = true)]
async fn any_way_of_cutting_a_body_gives_the_same_message() {
    let plain = text(100_000);
    let cases = [
        (Encoding::Identity, plain.clone()),
        (Encoding::Gzip, gzip(&plain)),
        (Encoding::Zstd, zstd(&plain)),
        (Encoding::Deflate, zlib(&plain)),
    ];
    for (encoding, packed) in cases {
        let compressed = u8::from(encoding != Encoding::Identity);
        for size in [1_usize, 3, 5, 6, 1_000, 65_536, usize::MAX] {
            for (framing, body) in [
                (Framing::Whole, packed.clone()),
                (Framing::Prefixed, framed(compressed, &packed)),
            ] {
                let limits = limits(plain.len(), plain.len());
                let mut body = Chunks::of(body.chunks(size.min(body.len())));
                let held = read(&mut body, framing, encoding, &limits).await.unwrap();
                assert!(
                    held.bytes == plain,
                    "{encoding:?} {framing:?} in chunks of {size}"
                );
                assert_eq!(
                    taken(&limits),
                    plain.len(),
                    "{encoding:?} {framing:?} in chunks of {size}"
                );
                drop(held);
                assert_eq!(taken(&limits), 0);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_in_one_piece_is_not_copied_unless_it_is_small() {
    let limits = limits(1 << 20, 1 << 20);
    for (size, copied) in [(100_usize, true), (100_000, false)] {
        let chunk = Bytes::from(framed(0, &text(size)));
        let mut body = Chunks {
            chunks: VecDeque::from([chunk.clone()]),
            ..Chunks::of([])
        };
        let held = read(&mut body, Framing::Prefixed, Encoding::Identity, &limits)
            .await
            .unwrap();
        assert_eq!(
            held.bytes.as_ptr() != chunk[5..].as_ptr(),
            copied,
            "{size} bytes"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_byte_too_many_is_too_large_however_it_is_packed() {
    let plain = text(10_001);
    for (encoding, packed) in [
        (Encoding::Identity, plain.clone()),
        (Encoding::Gzip, gzip(&plain)),
        (Encoding::Zstd, zstd(&plain)),
        (Encoding::Deflate, zlib(&plain)),
    ] {
        for (max_size, fits) in [(10_000, false), (10_001, true)] {
            let limits = limits(max_size, 1 << 20);
            for size in [7, 100_000] {
                let mut body = Chunks::of(packed.chunks(size));
                let read = read(&mut body, Framing::Whole, encoding, &limits).await;
                if fits {
                    assert!(read.unwrap().bytes == plain, "{encoding:?}")
                } else {
                    assert_eq!(read.unwrap_err().reason(), "too_large", "{encoding:?}")
                }
                assert_eq!(taken(&limits), 0);
                assert!(
                    body.chunks.is_empty(),
                    "the rest of the body is read, so that the sender gets to read our answer"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_bomb_is_refused_with_no_more_memory_than_the_limit() {
    let zeros = vec![0; 32 << 20];
    for (encoding, bomb) in [
        (Encoding::Gzip, gzip(&zeros)),
        (Encoding::Zstd, zstd(&zeros)),
        (Encoding::Deflate, zlib(&zeros)),
    ] {
        let limits = limits(64 << 10, 64 << 10);
        let refusal = read(
            &mut Chunks::of([bomb.as_slice()]),
            Framing::Whole,
            encoding,
            &limits,
        )
        .await
        .unwrap_err();
        assert_eq!(refusal.reason(), "too_large", "{encoding:?}: {refusal:?}");
        assert_eq!(taken(&limits), 0);
    }
}

/// The length that a gzip body claims reserves nothing, so the body is not refused for lack of
/// memory. The error names the actual mistake, which is in the body.
#[tokio::test(start_paused = true)]
async fn a_body_that_claims_far_too_much_is_malformed_however_little_room_there_is() {
    let mut boasting = gzip(&text(100));
    let at = boasting.len() - 4;
    boasting[at..].fill(0xff);
    for n_left in [8_192, 1 << 30] {
        let limits = limits(1 << 30, (1 << 20) + n_left);
        let _other = read(
            &mut Chunks::of([&vec![0; 1 << 20][..]]),
            Framing::Whole,
            Encoding::Identity,
            &limits,
        )
        .await
        .unwrap();
        let refusal = read(
            &mut Chunks::of([boasting.as_slice()]),
            Framing::Whole,
            Encoding::Gzip,
            &limits,
        )
        .await
        .unwrap_err();
        assert_eq!(
            refusal.reason(),
            "malformed",
            "{n_left} bytes left: {refusal:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_falls_silent_or_drips_is_given_up_and_its_room_given_back() {
    let start = tokio::time::Instant::now();
    let limits = limits(1 << 20, 1 << 20);
    let mut silent = Chunks {
        hangs: true,
        ..Chunks::of([&text(5_000)[..]])
    };
    let refusal = read(&mut silent, Framing::Whole, Encoding::Identity, &limits)
        .await
        .unwrap_err();
    assert_eq!((refusal.reason(), start.elapsed().as_secs()), ("slow", 30));
    let start = tokio::time::Instant::now();
    let mut dripping = Chunks {
        pause: Duration::from_secs(20),
        ..Chunks::of(text(100).chunks(1))
    };
    let refusal = read(&mut dripping, Framing::Whole, Encoding::Identity, &limits)
        .await
        .unwrap_err();
    assert_eq!((refusal.reason(), start.elapsed().as_secs()), ("slow", 30));
    let start = tokio::time::Instant::now();
    let mut steady = Chunks {
        pause: Duration::from_secs(20),
        ..Chunks::of(text(1 << 20).chunks(LEAST_ADVANCE))
    };
    let refusal = read(&mut steady, Framing::Whole, Encoding::Identity, &limits)
        .await
        .unwrap_err();
    assert_eq!((refusal.reason(), start.elapsed().as_secs()), ("slow", 120));
    assert_eq!(taken(&limits), 0);
}

#[tokio::test(start_paused = true)]
async fn out_of_room_is_not_too_large() {
    let limits = limits(10_000, 15_000);
    let first = read(
        &mut Chunks::of([&text(9_000)[..]]),
        Framing::Whole,
        Encoding::Identity,
        &limits,
    )
    .await
    .unwrap();
    for (encoding, packed) in [
        (Encoding::Identity, text(9_000)),
        (Encoding::Gzip, gzip(&text(9_000))),
    ] {
        let refusal = read(
            &mut Chunks::of(packed.chunks(999)),
            Framing::Whole,
            encoding,
            &limits,
        )
        .await
        .unwrap_err();
        assert_eq!(refusal.reason(), "in_flight_full", "{encoding:?}");
        assert_eq!(taken(&limits), 9_000);
    }
    drop(first);
    read(
        &mut Chunks::of([&text(9_000)[..]]),
        Framing::Whole,
        Encoding::Identity,
        &limits,
    )
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_announced_length_takes_no_room_before_its_bytes_come() {
    let limits = limits(1 << 20, 1 << 20);
    let mut prefix = framed(0, &[]);
    prefix[1..].copy_from_slice(&(1_u32 << 20).to_be_bytes());
    let mut body = Chunks {
        hangs: true,
        ..Chunks::of([prefix.as_slice(), &[1; 100], &[2; 100]])
    };
    let reading = read(&mut body, Framing::Prefixed, Encoding::Identity, &limits);
    tokio::pin!(reading);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), &mut reading)
            .await
            .is_err()
    );
    assert!(
        taken(&limits) <= 8 << 10,
        "{} bytes taken for 200",
        taken(&limits)
    );
}

proptest::proptest! {
    #[test]
    fn whatever_comes_is_bounded_and_answered_and_its_room_given_back(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..4_000),
        valid in proptest::bool::ANY,
        framing in proptest::sample::select(vec![Framing::Whole, Framing::Prefixed]),
        encoding in proptest::sample::select(vec![
            Encoding::Identity,
            Encoding::Gzip,
            Encoding::Zstd,
            Encoding::Deflate,
        ]),
        flips in proptest::collection::vec((0_usize..4_000, 1_u8..=255), 0..3),
        size in 1_usize..5_000,
        max_size in 0_usize..6_000,
    ) {
        let mut body = match (valid, encoding) {
            (false, _) | (_, Encoding::Identity) => bytes.clone(),
            (_, Encoding::Gzip) => gzip(&bytes),
            (_, Encoding::Zstd) => zstd(&bytes),
            (_, Encoding::Deflate) => zlib(&bytes),
        };
        if framing == Framing::Prefixed {
            body = framed(u8::from(encoding != Encoding::Identity), &body);
        }
        for (at, bits) in &flips {
            if let Some(byte) = body.get_mut(*at) {
                *byte ^= bits;
            }
        }
        let limits = limits(max_size, 10_000);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let answer = runtime.block_on(async {
            read(&mut Chunks::of(body.chunks(size)), framing, encoding, &limits).await
        });
        match answer {
            Ok(held) => {
                assert!(held.bytes.len() <= max_size);
                assert_eq!(taken(&limits), held.bytes.len());
                assert!(
                    held.bytes == bytes || !flips.is_empty() || !valid,
                    "a valid message arrives unchanged"
                );
            }
            Err(problem) => {
                assert!(["malformed", "too_large"].contains(&problem.reason()), "{problem:?}");
                let fits = bytes.len() <= max_size && body.len() <= max_size;
                let is_fine = valid && flips.is_empty() && fits;
                assert!(!is_fine, "{problem:?}");
            }
        }
        assert_eq!(taken(&limits), 0);
    }
}
