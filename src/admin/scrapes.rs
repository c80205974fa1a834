//! The pages of metrics that are being sent. Scrapers that read slowly, or not at all, share a few
//! pages.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use crate::sync::Mutex;

/// Age up to which a page that is still being sent is also sent to further scrapers.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// Maximum number of pages in memory. A further page evicts the oldest one and closes the
/// connections of its readers. By then, the oldest page is at least this number times
/// [`SHARED_FOR`] old.
const MAX_PAGES: usize = 8;

/// Bytes that are copied for a connection in one step; a connection uses no other memory for the
/// page.
const PIECE: usize = 16 << 10;

#[derive(Debug, Default)]
pub struct Scrapes(Mutex<VecDeque<Page>>);

#[derive(Debug)]
struct Page {
    text: Arc<String>,
    rendered: Instant,
}

impl Scrapes {
    /// Returns the newest page if it is fresh and still being sent, else renders a new one.
    pub(super) fn page(&self, now: Instant, render: impl FnOnce() -> String) -> PageBody {
        let mut pages = self.0.lock();
        // A reader has only a weak reference, so that its page can be evicted.
        pages.retain(|page| Arc::weak_count(&page.text) > 0);
        let fresh = pages
            .back()
            .filter(|page| now.saturating_duration_since(page.rendered) < SHARED_FOR);
        let text = match fresh {
            Some(page) => Arc::clone(&page.text),
            None => {
                if pages.len() == MAX_PAGES {
                    pages.pop_front();
                }
                let text = Arc::new(render());
                pages.push_back(Page {
                    text: Arc::clone(&text),
                    rendered: now,
                });
                text
            }
        };
        PageBody {
            left: text.len(),
            text: Arc::downgrade(&text),
        }
    }
}

#[derive(Debug)]
pub(super) struct PageBody {
    text: Weak<String>,
    left: usize,
}

/// The error of a reader that was too slow, so that its page was evicted.
#[derive(Debug, thiserror::Error)]
#[error("the metrics were read too slowly")]
pub(super) struct ReadTooSlowly;

impl HttpBody for PageBody {
    type Data = Bytes;
    type Error = ReadTooSlowly;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReadTooSlowly>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let Some(text) = self.text.upgrade() else {
            return Poll::Ready(Some(Err(ReadTooSlowly)));
        };
        let rest = &text.as_bytes()[text.len() - self.left..];
        let piece = Bytes::copy_from_slice(&rest[..rest.len().min(PIECE)]);
        self.left -= piece.len();
        if self.left == 0 {
            // The next scraper must get a new page, even if this answer has not been sent yet.
            self.text = Weak::new();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn page(scrapes: &Scrapes, now: Instant, text: &str) -> PageBody {
        scrapes.page(now, || text.repeat(PIECE))
    }

    async fn read(page: PageBody) -> Result<String, ReadTooSlowly> {
        let bytes = page.collect().await?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes[..2]).into_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn scrapers_that_do_not_read_share_one_page() {
        let (scrapes, now) = (Scrapes::default(), Instant::now());
        let stuck: Vec<PageBody> = (0..30)
            .map(|n| page(&scrapes, now, &format!("{n} ")))
            .collect();
        assert_eq!(scrapes.0.lock().len(), 1);
        for page in stuck {
            assert_eq!(read(page).await.unwrap(), "0 ");
        }
        assert_eq!(read(page(&scrapes, now, "30 ")).await.unwrap(), "30");
        assert_eq!(read(page(&scrapes, now, "31 ")).await.unwrap(), "31");
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_readers_lose_their_page_when_there_are_too_many() {
        let scrapes = Scrapes::default();
        let mut stuck = Vec::new();
        for n in 0..20 {
            let mut body = page(&scrapes, Instant::now(), &format!("{n} "));
            body.frame().await.unwrap().unwrap();
            stuck.push(body);
            assert!(scrapes.0.lock().len() <= MAX_PAGES);
            tokio::time::advance(SHARED_FOR).await;
        }
        let mut results = Vec::new();
        for body in stuck {
            results.push(read(body).await.is_ok());
        }
        let expected = [[false; 12].as_slice(), &[true; MAX_PAGES]].concat();
        assert_eq!(results, expected);
        drop(page(&scrapes, Instant::now(), "new"));
        let last = page(&scrapes, Instant::now(), "last");
        assert_eq!(scrapes.0.lock().len(), 1, "{last:?}");
    }
}
