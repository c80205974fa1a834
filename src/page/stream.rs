//! Streams judged runs to pages, as server-sent events.
//!
//! There is no queue: each stream polls the memory and stores only its position. A browser that
//! stops reading still occupies a stream, but nothing accumulates for it; it receives the latest
//! runs when it reads again.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::IntervalStream;

use super::Page;
use super::changes::Changes;
use crate::register::ApiError;

/// Maximum number of streams; further pages poll.
pub(super) const MAX_STREAMS: usize = 32;
/// Interval between polls of the memory.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time of silence after which a comment is sent; without it neither side would notice that the
/// connection is dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(n_streams: &Arc<AtomicUsize>) -> Option<Self> {
        let n_before = n_streams.fetch_add(1, Ordering::Relaxed);
        let slot = Self(Arc::clone(n_streams));
        (n_before < MAX_STREAMS).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Streams the changes of the memory after `since`, until the client disconnects.
pub(super) fn stream(page: Page, since: u64) -> Result<Response, ApiError> {
    let slot = Slot::take(&page.0.n_streams).ok_or_else(|| {
        ApiError::Full(format!(
            "all {MAX_STREAMS} streams are in use: poll GET /v1/runs?since=… instead"
        ))
    })?;
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut since, mut last_sent) = (since, Instant::now());
    let mut is_first = true;
    let frames = IntervalStream::new(ticks).filter_map(move |now| {
        let _held_as_long_as_somebody_reads = &slot;
        let changes = Changes::after(&page, since);
        let frame = if changes.change > since || is_first {
            format!("event: runs\ndata: {}\n\n", changes.text())
        } else if now.saturating_duration_since(last_sent) >= HEARTBEAT {
            ":\n\n".to_owned()
        } else {
            return None;
        };
        (since, last_sent, is_first) = (changes.change, now, false);
        Some(Ok::<_, Infallible>(Bytes::from(frame)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(frames)).into_response())
}
