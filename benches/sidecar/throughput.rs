//! Measures the CPU time per span of the sidecar, compared with receivers that drop everything and
//! with other configurations of the sidecar. Prints the results in tables.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use rustix::time::{ClockId, clock_gettime};

use crate::load::{N_CONNECTIONS, Wire};
use crate::payload::{Profile, Recipe, Ring};
use crate::process::Process;
use crate::report::{Series, goal, heading, line, ratio, spread};
use crate::target::{Dose, Target, Turn, Variant};
use crate::{Plan, loader};

const SPANS_PER_REQUEST: u64 = 512;
pub(crate) const N_OPEN: usize = 64;
/// A large limit, so that no budget closes a trace. The memory benchmarks measure the budgets.
pub(crate) const ROOMY: &str = "memory.limit=3GiB";

/// A variant that is measured in every round, with its row in the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    load: usize,
    pub(crate) dose: Dose,
    turns: Vec<Turn>,
}

impl Row {
    pub(crate) fn new(
        name: &'static str,
        target: Target,
        load: usize,
        per_connection: u64,
    ) -> Self {
        Self {
            name,
            target,
            load,
            dose: Dose {
                per_connection,
                spans_per_request: SPANS_PER_REQUEST,
                wire: Wire::Grpc,
                n_connections: N_CONNECTIONS,
            },
            turns: Vec::new(),
        }
    }

    fn over(mut self, wire: Wire) -> Self {
        self.dose.wire = wire;
        self
    }

    pub(crate) fn nanos_per_span(&self) -> Series {
        let n_spans = self.dose.spans_per_request as f64;
        self.turns
            .iter()
            .map(|turn| turn.cpu_nanos / (turn.n_requests * n_spans))
            .collect()
    }

    fn faults_per_thousand_spans(&self) -> Series {
        let n_spans = self.dose.spans_per_request as f64;
        let turns = self.turns.iter();
        turns
            .map(|turn| turn.n_page_faults * 1e3 / (turn.n_requests * n_spans))
            .collect()
    }

    pub(crate) fn micros_per_request(&self) -> Series {
        self.turns
            .iter()
            .map(|turn| turn.cpu_nanos / turn.n_requests / 1e3)
            .collect()
    }

    pub(crate) fn n_requests(&self) -> f64 {
        self.turns.iter().map(|turn| turn.n_requests).sum()
    }

    fn per_trace(&self) -> Series {
        self.turns
            .iter()
            .map(|turn| turn.cpu_nanos / turn.n_roots)
            .collect()
    }
}

/// Measures all rows in turn, in every round. The first turns fill caches and allocators and do not
/// count.
pub(crate) fn rounds(
    rows: &mut [Row],
    loads: &mut [Process],
    plan: &Plan,
    warm_up: &[u64],
) -> io::Result<()> {
    for row in rows.iter_mut() {
        if plan.is_short {
            row.dose.per_connection = row.dose.per_connection.div_ceil(20);
        }
        let per_connection = warm_up.get(row.load).copied().unwrap_or(20);
        row.target
            .turn(
                &mut loads[row.load],
                Dose {
                    per_connection,
                    ..row.dose
                },
            )
            .map_err(|error| named(row.name, &error))?;
    }
    for round in 0..plan.n_rounds {
        // Alternate the order, so that no variant always runs after the same one.
        let order: Vec<usize> = if round % 2 == 0 {
            (0..rows.len()).collect()
        } else {
            (0..rows.len()).rev().collect()
        };
        for idx in order {
            let row = &mut rows[idx];
            let turn = row
                .target
                .turn(&mut loads[row.load], row.dose)
                .map_err(|error| named(row.name, &error))?;
            row.turns.push(turn);
        }
    }
    Ok(())
}

fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{name}: {error}"))
}

fn print_costs(rows: &[Row]) {
    for row in rows {
        line(row.name, spread(row.nanos_per_span()), "CPU ns/span");
    }
    for row in rows.iter().filter(|row| row.name.starts_with("spanscore")) {
        let faults = spread(row.faults_per_thousand_spans());
        line(row.name, faults, "page faults per 1,000 spans");
    }
}

/// Measures goals 1, 2, 3, 5 and 10.
pub(crate) fn table(profile: Profile, plan: &Plan) -> io::Result<()> {
    let (many_open, scale) = match profile {
        Profile::Lean => (10_240, 1),
        // A genai span is about nine times as large as a lean one, so fewer requests suffice.
        Profile::Genai => (4_096, 6),
    };
    let many_open = if plan.is_short { 512 } else { many_open };
    let (few, _) = loader(profile, N_OPEN, SPANS_PER_REQUEST as usize, 9)?;
    let (many, cycle) = loader(profile, many_open, SPANS_PER_REQUEST as usize, 1)?;
    let mut loads = [few, many];
    let n = |requests: u64| (requests / scale).max(20);
    let on = Variant::on(&plan.program).set(ROOMY);
    let off = Variant {
        scoring: false,
        ..on.clone()
    };
    let spans = Variant {
        score_spans: true,
        ..on.clone()
    };
    let mut rows = vec![
        Row::new(
            "null receiver, raw bytes",
            Target::null(1, "raw")?,
            0,
            n(1_500),
        ),
        Row::new("null receiver, prost", Target::null(2, "prost")?, 0, n(500)),
        Row::new(
            "spanscore, scoring off",
            Target::sidecar(3, &off)?,
            0,
            n(600),
        ),
        Row::new("spanscore, scoring on", Target::sidecar(4, &on)?, 0, n(600)),
        Row::new(
            "spanscore, scoring on, many open traces",
            Target::sidecar(5, &on)?,
            1,
            n(600),
        ),
        Row::new(
            "spanscore, scoring on, score spans too",
            Target::sidecar(6, &spans)?,
            0,
            n(400),
        ),
    ];
    if let Some(program) = &plan.against {
        let other = Variant {
            program: program.clone(),
            ..on.clone()
        };
        rows.push(Row::new(
            "the other spanscore, scoring on",
            Target::sidecar(7, &other)?,
            0,
            n(600),
        ));
        rows.push(Row::new(
            "the other spanscore, many open traces",
            Target::sidecar(8, &other)?,
            1,
            n(600),
        ));
    }
    rounds(&mut rows, &mut loads, plan, &[n(120), cycle + n(60)])?;
    heading(&format!(
        "{}: requests of {SPANS_PER_REQUEST} spans, 12 spans a trace, 4 connections, \
         4 × {N_OPEN} traces open",
        profile.name()
    ));
    print_costs(&rows);
    let sizing = rows
        .iter()
        .find(|row| row.name == "spanscore, scoring on")
        .map(Row::nanos_per_span)
        .unwrap_or_default();
    line(
        "spans a second for 100m CPU, scoring on, in thousands",
        spread(sizing.iter().map(|nanos| 1e5 / nanos)),
        "k spans/s",
    );
    let [raw, prost, off, on, many, with_spans, others @ ..] = &rows[..] else {
        return Ok(());
    };
    let goals = if profile == Profile::Lean {
        [0.70, 7.0, 1.25, 1.5]
    } else {
        [1.0, 2.2, 1.15, 1.55]
    };
    goal(
        "1  scoring on / null receiver with prost",
        ratio(&on.nanos_per_span(), &prost.nanos_per_span()),
        goals[0],
    );
    goal(
        "2  scoring on / null receiver with raw bytes",
        ratio(&on.nanos_per_span(), &raw.nanos_per_span()),
        goals[1],
    );
    goal(
        "3  scoring on / off",
        ratio(&on.nanos_per_span(), &off.nanos_per_span()),
        goals[2],
    );
    let name = format!("5  {} open traces / {}", many_open * 4, N_OPEN * 4);
    goal(
        &name,
        ratio(&many.nanos_per_span(), &on.nanos_per_span()),
        goals[3],
    );
    if let [other, other_many] = others {
        line(
            "this spanscore / the other",
            ratio(&on.nanos_per_span(), &other.nanos_per_span()),
            "",
        );
        line(
            "this spanscore / the other, many open traces",
            ratio(&many.nanos_per_span(), &other_many.nanos_per_span()),
            "",
        );
    }
    if profile == Profile::Lean {
        let per_evaluation: Series = with_spans
            .per_trace()
            .iter()
            .zip(on.per_trace())
            .map(|(with, without)| (with - without) / N_CRITERIA)
            .collect();
        let decode: Series = (0..plan.n_rounds).map(|_| decode_nanos()).collect();
        goal(
            "10 one exported score span / prost decode of one span, in process",
            ratio(&per_evaluation, &decode),
            3.0,
        );
    }
    Ok(())
}

const N_CRITERIA: f64 = 3.0;

/// Returns the CPU nanoseconds that this thread needs to decode one span of [`Profile::Lean`] with
/// prost and drop it.
fn decode_nanos() -> f64 {
    let ring = Ring::new(Recipe {
        profile: Profile::Lean,
        n_open: N_OPEN,
        spans_per_request: 512,
        min_requests: 9,
        seed: 7,
    });
    let bodies: Vec<Vec<u8>> = (0..8).map(|position| ring.fill(0, position).body).collect();
    let decode = |body: &Vec<u8>| {
        ExportTraceServiceRequest::decode(body.as_slice())
            .map_or(0, |request| request.resource_spans.len())
    };
    let cpu = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let before = cpu();
    let n_decoded: usize = bodies
        .iter()
        .cycle()
        .take(200)
        .map(decode)
        .map(std::hint::black_box)
        .sum();
    (cpu() - before).as_nanos() as f64 / (n_decoded as f64 * SPANS_PER_REQUEST as f64)
}

/// Measures the typical traffic of an agent: a few spans at a time.
pub(crate) fn small(plan: &Plan) -> io::Result<()> {
    for spans_per_request in [1, 12, 48] {
        let mut loads = [loader(Profile::Lean, N_OPEN, spans_per_request, 9)?.0];
        let n = 3_000;
        let off = Variant::off(&plan.program);
        let mut rows = vec![
            Row::new("null receiver, raw bytes", Target::null(1, "raw")?, 0, n),
            Row::new("null receiver, prost", Target::null(2, "prost")?, 0, n),
            Row::new("spanscore, scoring off", Target::sidecar(3, &off)?, 0, n),
            Row::new(
                "spanscore, scoring on",
                Target::sidecar(4, &Variant::on(&plan.program))?,
                0,
                n,
            ),
        ];
        if let Some(program) = &plan.against {
            rows.push(Row::new(
                "the other spanscore, scoring on",
                Target::sidecar(5, &Variant::on(program))?,
                0,
                n,
            ));
        }
        rows.iter_mut()
            .for_each(|row| row.dose.spans_per_request = spans_per_request as u64);
        rounds(&mut rows, &mut loads, plan, &[500])?;
        heading(&format!(
            "small requests: {spans_per_request} lean spans each"
        ));
        for row in &rows {
            line(row.name, spread(row.micros_per_request()), "CPU µs/request");
        }
        let [raw, prost, off, on, others @ ..] = &rows[..] else {
            return Ok(());
        };
        line(
            "scoring on / null receiver with raw bytes",
            ratio(&on.nanos_per_span(), &raw.nanos_per_span()),
            "",
        );
        line(
            "scoring on / null receiver with prost",
            ratio(&on.nanos_per_span(), &prost.nanos_per_span()),
            "",
        );
        line(
            "scoring on / off",
            ratio(&on.nanos_per_span(), &off.nanos_per_span()),
            "",
        );
        if let [other] = others {
            line(
                "this spanscore / the other",
                ratio(&on.nanos_per_span(), &other.nanos_per_span()),
                "",
            );
        }
    }
    Ok(())
}

/// Measures how much more compressed requests cost than plain ones, for spanscore and for the null
/// receiver. Scoring is off, because it reads the same bytes in both cases, and its noise would
/// exceed the difference.
pub(crate) fn gzip(plan: &Plan) -> io::Result<()> {
    for (profile, n) in [(Profile::Lean, 300), (Profile::Genai, 30)] {
        let mut loads = [loader(profile, N_OPEN, SPANS_PER_REQUEST as usize, 9)?.0];
        let off = Variant::off(&plan.program).set(ROOMY);
        let mut rows = vec![
            Row::new(
                "null receiver, raw bytes, plain",
                Target::null(1, "raw")?,
                0,
                n * 2,
            ),
            Row::new(
                "null receiver, raw bytes, gzip",
                Target::null(2, "raw")?,
                0,
                n,
            )
            .over(Wire::Gzip),
            Row::new("spanscore, plain", Target::sidecar(3, &off)?, 0, n * 2),
            Row::new("spanscore, gzip", Target::sidecar(4, &off)?, 0, n).over(Wire::Gzip),
        ];
        rounds(&mut rows, &mut loads, plan, &[n / 3])?;
        heading(&format!("gzip in: {}", profile.name()));
        print_costs(&rows);
        let [null_plain, null_gzip, plain, gzip] = &rows[..] else {
            return Ok(());
        };
        let more = |with: &Row, without: &Row| -> Series {
            with.nanos_per_span()
                .iter()
                .zip(without.nanos_per_span())
                .map(|(with, without)| with - without)
                .collect()
        };
        goal(
            "what gzip costs spanscore / what it costs the null receiver",
            ratio(&more(gzip, plain), &more(null_gzip, null_plain)),
            1.1,
        );
    }
    Ok(())
}

/// Compares OTLP/HTTP, the default of most SDKs, with OTLP/gRPC.
pub(crate) fn http(plan: &Plan) -> io::Result<()> {
    let variant = Variant {
        http: true,
        ..Variant::on(&plan.program).set(ROOMY)
    };
    for spans_per_request in [512, 12] {
        let mut loads = [loader(Profile::Lean, N_OPEN, spans_per_request, 9)?.0];
        let n = if spans_per_request == 12 { 3_000 } else { 600 };
        let mut rows = vec![
            Row::new(
                "spanscore, scoring on, OTLP/gRPC",
                Target::sidecar(1, &variant)?,
                0,
                n,
            ),
            Row::new(
                "spanscore, scoring on, OTLP/HTTP",
                Target::sidecar(2, &variant)?,
                0,
                n,
            )
            .over(Wire::Http),
        ];
        rows.iter_mut()
            .for_each(|row| row.dose.spans_per_request = spans_per_request as u64);
        rounds(&mut rows, &mut loads, plan, &[n / 6])?;
        heading(&format!(
            "OTLP/HTTP: requests of {spans_per_request} lean spans"
        ));
        print_costs(&rows);
        let [grpc, http] = &rows[..] else {
            return Ok(());
        };
        line(
            "OTLP/HTTP / OTLP/gRPC",
            ratio(&http.nanos_per_span(), &grpc.nanos_per_span()),
            "",
        );
    }
    Ok(())
}

/// Compares one, two and four threads that answer requests.
pub(crate) fn scaling(plan: &Plan) -> io::Result<()> {
    let mut loads = [
        loader(Profile::Lean, N_OPEN, SPANS_PER_REQUEST as usize, 9)?.0,
        loader(Profile::Lean, N_OPEN, 12, 9)?.0,
    ];
    let of = |workers: usize| Variant {
        workers: Some(workers),
        ..Variant::on(&plan.program).set(ROOMY)
    };
    let small = |mut row: Row| {
        row.dose.spans_per_request = 12;
        row
    };
    let mut rows = vec![
        Row::new(
            "1 worker, requests of 512",
            Target::sidecar(1, &of(1))?,
            0,
            600,
        ),
        Row::new(
            "2 workers, requests of 512",
            Target::sidecar(2, &of(2))?,
            0,
            600,
        ),
        Row::new(
            "4 workers, requests of 512",
            Target::sidecar(3, &of(4))?,
            0,
            600,
        ),
        small(Row::new(
            "1 worker, requests of 12",
            Target::sidecar(4, &of(1))?,
            1,
            3_000,
        )),
        small(Row::new(
            "2 workers, requests of 12",
            Target::sidecar(5, &of(2))?,
            1,
            3_000,
        )),
        small(Row::new(
            "4 workers, requests of 12",
            Target::sidecar(6, &of(4))?,
            1,
            3_000,
        )),
    ];
    rounds(&mut rows, &mut loads, plan, &[120, 500])?;
    heading(
        "scaling: lean, scoring on; what a second thread adds to the cost of a span is contention",
    );
    print_costs(&rows);
    for rows in rows.chunks(3) {
        let [one, two, four] = rows else { continue };
        let of = one.dose.spans_per_request;
        line(
            &format!("requests of {of}: 2 workers / 1"),
            ratio(&two.nanos_per_span(), &one.nanos_per_span()),
            "",
        );
        line(
            &format!("requests of {of}: 4 workers / 1"),
            ratio(&four.nanos_per_span(), &one.nanos_per_span()),
            "",
        );
    }
    Ok(())
}

/// Measures goal 9: compares spanscore with the OpenTelemetry Collector whose path is `$OTELCOL`,
/// in the configurations of `benches/peers/*.yaml`.
pub(crate) fn peers(plan: &Plan) -> io::Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark is told by its script where the other program is"
    )]
    let program = std::env::var("OTELCOL")
        .map(PathBuf::from)
        .map_err(|_| io::Error::other("set OTELCOL to a Collector; see benches/peers.sh"))?;
    for (profile, scale, goals) in [
        (Profile::Lean, 1, [0.40, 0.09]),
        (Profile::Genai, 6, [0.58, 0.22]),
    ] {
        let mut loads = [loader(profile, N_OPEN, SPANS_PER_REQUEST as usize, 9)?.0];
        let on = Variant::on(&plan.program).set(ROOMY);
        let mut rows = vec![
            Row::new(
                "spanscore, scoring on",
                Target::sidecar(1, &on)?,
                0,
                300 / scale,
            ),
            Row::new(
                "Collector, forwarding only",
                Target::peer(2, &program, include_str!("../peers/forward.yaml"))?,
                0,
                120 / scale,
            ),
            Row::new(
                "Collector, groupbytrace (1 s) + batch",
                Target::peer(3, &program, include_str!("../peers/group.yaml"))?,
                0,
                120 / scale,
            ),
        ];
        rounds(&mut rows, &mut loads, plan, &[40 / scale])?;
        heading(&format!("peers: {}", profile.name()));
        print_costs(&rows);
        for row in &rows {
            let (_, peak) = row.target.process().memory()?;
            println!(
                "  {:<66} {:>7.1}  MiB peak resident",
                row.name,
                peak as f64 / f64::from(1 << 20)
            );
        }
        let [on, forward, group] = &rows[..] else {
            return Ok(());
        };
        goal(
            "9  spanscore / Collector that forwards only",
            ratio(&on.nanos_per_span(), &forward.nanos_per_span()),
            goals[0],
        );
        goal(
            "9  spanscore / Collector that groups by trace",
            ratio(&on.nanos_per_span(), &group.nanos_per_span()),
            goals[1],
        );
    }
    Ok(())
}
