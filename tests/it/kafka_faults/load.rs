//! Sends traces at a steady rate, each in two parts. Does not check the judgements.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use spanscore::sidecar::now;

use crate::kafka_judges::parts_of;
use crate::support::program::is_acknowledged;
use crate::support::spans::request;

/// Number of traces that begin in each [`TICK`].
const TRACES_A_TICK: u64 = 5;
const TICK: Duration = Duration::from_millis(100);

/// Number of ticks between the two parts of a trace whose first part is not late.
const PARTS_APART: u64 = 3;
/// In one trace of fifty, the first part is sent this many ticks after the second, when the trace
/// has already been judged.
const LATE_BY: u64 = 20;
const LATE_ONE_IN: u64 = 50;

/// A thread that sends traces until it is stopped. It sends each request to the writers in turn
/// until one of them acknowledges it.
pub(super) struct Load {
    stop: SyncSender<()>,
    sending: JoinHandle<u64>,
    n_sent: Arc<Mutex<u64>>,
    writers: Arc<Mutex<Vec<Option<String>>>>,
}

impl Load {
    pub(super) fn start(writers: Vec<Option<String>>) -> Self {
        let (stop, stopped) = sync_channel::<()>(1);
        let writers = Arc::new(Mutex::new(writers));
        let n_sent = Arc::new(Mutex::new(0));
        let (to, sent) = (Arc::clone(&writers), Arc::clone(&n_sent));
        let sending = thread::spawn(move || {
            let (mut tick, mut n_tries, mut last) = (0, 0_usize, u64::MAX);
            let mut due: BTreeMap<u64, Vec<Span>> = BTreeMap::new();
            let mut next_at = now().instant;
            while tick <= last {
                if tick < last.saturating_sub(LATE_BY) {
                    for trace in tick * TRACES_A_TICK + 1..=(tick + 1) * TRACES_A_TICK {
                        let [first, second] = parts_of(trace);
                        let is_late = trace.is_multiple_of(LATE_ONE_IN);
                        let (first_at, second_at) = if is_late {
                            (tick + LATE_BY, tick)
                        } else {
                            (tick, tick + PARTS_APART)
                        };
                        due.entry(first_at).or_default().extend(first);
                        due.entry(second_at).or_default().extend(second);
                    }
                    *sent.lock().unwrap() = (tick + 1) * TRACES_A_TICK;
                }
                if let Some(spans) = due.remove(&tick) {
                    let body = request(spans);
                    loop {
                        n_tries += 1;
                        let to = to.lock().unwrap().clone();
                        let to: Vec<String> = to.into_iter().flatten().collect();
                        let writer = to.get(n_tries % to.len().max(1));
                        if writer.is_some_and(|it| is_acknowledged(it, &body)) {
                            break;
                        }
                        let _ = stopped.recv_timeout(TICK / 5);
                    }
                }
                tick += 1;
                next_at += TICK;
                let wait = next_at.saturating_duration_since(now().instant);
                if last == u64::MAX && stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout)
                {
                    last = tick + LATE_BY;
                }
            }
            *sent.lock().unwrap()
        });
        Self {
            stop,
            sending,
            n_sent,
            writers,
        }
    }

    /// Replaces a writer's address; `None` if the writer is gone.
    pub(super) fn use_writer(&self, index: usize, otlp: Option<String>) {
        self.writers.lock().unwrap()[index] = otlp;
    }

    /// Returns the number of traces that have begun.
    pub(super) fn n_sent(&self) -> u64 {
        *self.n_sent.lock().unwrap()
    }

    /// Sends the remaining parts of the traces that have begun, and stops. Returns the number of
    /// traces.
    pub(super) fn end(self) -> u64 {
        drop(self.stop);
        self.sending.join().unwrap()
    }
}
