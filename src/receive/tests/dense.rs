//! Tests requests whose parsed spans need far more memory than their bytes. Each span counts as the
//! size of its struct.

use super::super::body::Framing;
use super::super::decompress::Encoding;
use super::super::request_error::retry_after;
use super::bodies::Chunks;
use super::read;
use super::*;

/// Returns a request of `n` spans that have only ids.
fn request(n: usize) -> Vec<u8> {
    let span = [&[0x0a, 16][..], &[1; 16], &[0x12, 8], &[2; 8]].concat();
    let message = |tag: u32, content: &[u8]| {
        let mut bytes = Vec::new();
        prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, &mut bytes);
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    };
    let spans = message(2, &span).repeat(n);
    message(1, &message(2, &spans))
}

async fn read_and_validate(
    body: &[u8],
    limits: &BodyLimits,
) -> Result<ValidatedMessage, RequestError> {
    let message = read(
        &mut Chunks::of([body]),
        Framing::Whole,
        Encoding::Identity,
        limits,
    )
    .await
    .unwrap();
    let keys = span::KeySet::default();
    validate(
        Signal::Traces,
        Format::Protobuf,
        message,
        Some(&keys),
        config::ReceivedScores::Forward,
    )
}

#[tokio::test]
async fn spans_are_counted_as_they_are_read_and_too_many_are_refused() {
    let limits = BodyLimits {
        sizes: vec![((1 << 20).into(), "`receivers.otlp.max_request_size`")],
        budget: EvictingBudget::new(1_500_000, None),
    };
    let body = request(2_000);
    let validated = read_and_validate(&body, &limits).await.unwrap();
    let taken = limits.budget.n_bytes();
    let spans = 2_000 * size_of::<span::Span>();
    assert_eq!(
        (validated.n_items, validated.batch.spans.len()),
        (2_000, 2_000)
    );
    assert!(taken >= body.len() + spans, "{taken} bytes for {spans}");

    // This request fits alone, but not together with the other request.
    let more = request(3_500);
    let refused = read_and_validate(&more, &limits).await.err().unwrap();
    assert_eq!(
        (refused.reason(), refused.code()),
        ("in_flight_full", tonic::Code::Unavailable)
    );
    drop(validated);
    read_and_validate(&more, &limits).await.unwrap();

    // This request can never fit.
    let refused = read_and_validate(&request(20_000), &limits)
        .await
        .err()
        .unwrap();
    assert_eq!(
        (refused.reason(), retry_after(refused.code())),
        ("too_large", None)
    );
    assert!(
        refused.message().contains("`receivers.otlp.max_in_flight`"),
        "{refused:?}"
    );
    assert_eq!(limits.budget.n_bytes(), 0);
}
