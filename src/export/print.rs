//! Prints texts to an output that may be slow, blocked or closed.
//!
//! Standard output can block for as long as its reader likes, so a separate thread writes to it,
//! behind a queue bounded in bytes. When nobody reads, the oldest texts are dropped and counted,
//! and scoring continues.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::config::Bound;
use crate::sync::Mutex;

pub(super) struct Printer {
    shared: Arc<Shared>,
    /// Resolves when the thread ends; the first caller that waits takes the receiver.
    done: Mutex<Option<oneshot::Receiver<()>>>,
}

struct Shared {
    capacity: Bound,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    texts: VecDeque<String>,
    n_bytes: usize,
    /// True at a shutdown, and after a write failed, usually because the reader closed the output.
    is_closed: bool,
}

impl Printer {
    /// Starts the thread. `capacity` is in bytes.
    pub(super) fn start(out: Box<dyn Write + Send>, capacity: Bound) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            capacity,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (finished, done) = oneshot::channel();
        let writer = shared.clone();
        std::thread::Builder::new()
            .name("print".to_owned())
            .spawn(move || {
                writer.write(out);
                let _ = finished.send(());
            })?;
        Ok(Self {
            shared,
            done: Mutex::new(Some(done)),
        })
    }

    /// Enqueues a text, unless the output is closed, and returns the number of texts that were
    /// dropped because of the capacity. Never waits.
    pub(super) fn print(&self, text: String) -> usize {
        let mut state = self.shared.state.lock();
        if state.is_closed {
            return 0;
        }
        state.n_bytes += text.len();
        state.texts.push_back(text);
        let mut n_dropped = 0;
        while state.n_bytes > self.shared.capacity.get()
            && let Some(oldest) = state.texts.pop_front()
        {
            state.n_bytes -= oldest.len();
            n_dropped += 1;
        }
        drop(state);
        self.shared.changed.notify_one();
        n_dropped
    }

    pub(super) fn is_half_empty(&self) -> bool {
        self.shared.state.lock().n_bytes <= self.shared.capacity.get() / 2
    }

    /// Rejects further texts, waits until all texts are written or until `deadline`, and returns
    /// the number of texts that are still queued.
    pub(super) async fn finish(&self, deadline: Instant) -> usize {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_one();
        let done = self.done.lock().take();
        if let Some(done) = done {
            // A timeout is no error, because the number of queued texts is returned in any case.
            let _ = tokio::time::timeout_at(deadline.into(), done).await;
        }
        self.shared.state.lock().texts.len()
    }
}

impl Shared {
    fn write(&self, mut out: Box<dyn Write + Send>) {
        loop {
            let is_idle = |state: &mut State| state.texts.is_empty() && !state.is_closed;
            let state = self.changed.wait_while(self.state.lock(), is_idle);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            // Remove one text at a time, so that texts behind a blocked reader stay in the queue
            // and within its limit.
            let Some(text) = state.texts.pop_front() else {
                return;
            };
            state.n_bytes -= text.len();
            let is_last = state.texts.is_empty();
            drop(state);
            let written = out
                .write_all(text.as_bytes())
                .and_then(|()| if is_last { out.flush() } else { Ok(()) });
            if written.is_err() {
                *self.state.lock() = State {
                    is_closed: true,
                    ..State::default()
                };
                return;
            }
        }
    }
}
