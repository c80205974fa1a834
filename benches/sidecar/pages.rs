//! Measures the cost of the page while nobody has it open, and while many pages are open: some read
//! their stream, some never read it, and some poll.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::pause;
use crate::payload::Profile;
use crate::report::{goal, heading, line, ratio, spread};
use crate::target::{Target, Variant};
use crate::{Plan, loader};

/// The numbers of pages that read their stream, of pages that open a stream but never read it, and
/// of pages that poll every three seconds.
const N_STREAMING: usize = 28;
const N_STUCK: usize = 4;
const N_POLLING: usize = 8;

const SPANS_PER_REQUEST: u64 = 512;
const RATE: u64 = 10;

/// Measures the CPU time per span and the latency of requests at 5,120 spans a second: without the
/// page, with the page closed, and with 40 pages open. No span may be unscored.
pub(crate) fn pages(plan: &Plan) -> io::Result<()> {
    let n_requests = if plan.is_short { 10 } else { 80 };
    heading(&format!(
        "page: genai, {} spans/s; {N_STREAMING} pages stream, {N_POLLING} poll, {N_STUCK} never \
         read",
        RATE * SPANS_PER_REQUEST
    ));
    let variant = Variant::on(&plan.program);
    let off = variant.clone().set("admin.page.enabled=false");
    let mut targets = [
        Target::sidecar(1, &off)?,
        Target::sidecar(2, &variant)?,
        Target::sidecar(3, &variant)?,
    ];
    let pages = OpenPages::open(targets[2].admin())?;
    let mut load = loader(Profile::Genai, 64, 512, 9)?.0;
    let [mut cpu, mut median, mut slowest]: [[Vec<f64>; 3]; 3] = Default::default();
    for target in &mut targets {
        target.pace(&mut load, n_requests, RATE)?;
    }
    for _ in 0..plan.n_rounds {
        for (at, target) in targets.iter_mut().enumerate() {
            let before = target.process().cpu()?;
            let waits = target.pace(&mut load, n_requests, RATE)?;
            let spent = target.process().cpu()?.saturating_sub(before);
            let n_spans = (n_requests * SPANS_PER_REQUEST) as f64;
            cpu[at].push(spent.as_secs_f64() * 1e6 / n_spans);
            let answered = spread(waits.iter().map(|(answered, _)| answered / 1e6));
            median[at].push(answered.median);
            slowest[at].push(answered.max);
        }
    }
    let received = pages.close();
    let names = ["no page", "page closed", "pages open"];
    for (at, name) in names.into_iter().enumerate() {
        line(
            &format!("{name}: CPU time of a span"),
            spread(cpu[at].iter().copied()),
            "us",
        );
        line(
            &format!("{name}: acknowledged to the sender, median"),
            spread(median[at].iter().copied()),
            "ms",
        );
        line(
            &format!("{name}: acknowledged to the sender, slowest of a round"),
            spread(slowest[at].iter().copied()),
            "ms",
        );
    }
    line(
        "   page closed / no page, CPU time",
        ratio(&cpu[1], &cpu[0]),
        "",
    );
    line(
        "   pages open / page closed, CPU time",
        ratio(&cpu[2], &cpu[1]),
        "",
    );
    goal(
        "   pages open / page closed, median latency",
        ratio(&median[2], &median[1]),
        1.5,
    );
    println!(
        "  the pages received {:.1} MiB",
        received as f64 / 1_048_576.0
    );
    for (target, name) in targets.iter().zip(names) {
        let metrics = target.metrics()?;
        let unscored = metrics.sum("spanscore_unscored_spans_total");
        goal(
            &format!("   {name}: spans that were not scored"),
            spread([unscored]),
            0.0,
        );
    }
    Ok(())
}

/// Open pages, simulated by connections to the admin port.
struct OpenPages {
    is_ending: Arc<AtomicBool>,
    n_bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    _stuck: Vec<TcpStream>,
}

impl OpenPages {
    fn open(admin: &str) -> io::Result<Self> {
        let (is_ending, n_bytes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut stuck = Vec::new();
        for _ in 0..N_STUCK {
            stuck.push(ask(admin, "/v1/runs/events")?);
        }
        let mut threads = Vec::new();
        for at in 0..N_STREAMING + N_POLLING {
            let (is_ending, n_bytes) = (is_ending.clone(), n_bytes.clone());
            let mut streaming =
                if at < N_STREAMING { Some(ask(admin, "/v1/runs/events")?) } else { None };
            let admin = admin.to_owned();
            threads.push(std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while !is_ending.load(Ordering::Relaxed) {
                    let mut polled = match streaming {
                        Some(_) => None,
                        None => ask(&admin, "/v1/runs?limit=200").ok(),
                    };
                    let is_polling = polled.is_some();
                    let Some(stream) = streaming.as_mut().or(polled.as_mut()) else {
                        return;
                    };
                    // The loop ends with the answer to a poll, or when a stream pauses.
                    while let Ok(n @ 1..) = stream.read(&mut buffer) {
                        n_bytes.fetch_add(n as u64, Ordering::Relaxed);
                    }
                    if is_polling {
                        pause(Duration::from_secs(3));
                    }
                }
            }));
        }
        Ok(Self {
            is_ending,
            n_bytes,
            threads,
            _stuck: stuck,
        })
    }

    /// Closes the pages; returns the number of bytes that they received.
    fn close(self) -> u64 {
        self.is_ending.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // The thread only counts bytes, so its result is ignored.
            let _ = thread.join();
        }
        self.n_bytes.load(Ordering::Relaxed)
    }
}

fn ask(admin: &str, path: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n"
    )?;
    Ok(stream)
}
