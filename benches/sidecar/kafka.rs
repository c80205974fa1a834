//! Measures the cost of writing spans to Kafka and of judging spans that are read from Kafka,
//! compared with a sidecar that judges the spans it receives. Also measures the throughput of one
//! judging thread and of several. Needs a broker with the topics `figures-written` and
//! `figures-read`: `tests/kafka/run figures` starts one. The figures exclude the CPU time of the
//! broker, which runs on the same machine.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::clock::{monotonic_nanos, pause};
use crate::load::{N_CONNECTIONS, Wire};
use crate::metrics::{Metrics, metrics_of};
use crate::payload::Profile;
use crate::process::Process;
use crate::report::{Series, heading, line, ratio, spread};
use crate::target::{CRITERIA, Dose, N_CRITERIA, Target, Variant, numbers};
use crate::throughput::{N_OPEN, ROOMY};
use crate::{Plan, loader};

const SPANS_PER_REQUEST: u64 = 512;

/// Maximum wait, in nanoseconds.
const PATIENCE: u64 = 180_000_000_000;

/// The share of the judgements over which the rate is measured. The rest is excluded, because the
/// end of a log is judged only once its leader has confirmed that no further records follow.
const COUNTED: f64 = 0.95;

/// The numbers of programs that judge at the same time, and of their threads.
const JUDGES: [(&str, usize, usize); 4] = [
    ("1 judge with 1 thread", 1, 1),
    ("1 judge with 2 threads", 1, 2),
    ("2 judges with 1 thread each", 2, 1),
    ("4 judges with 1 thread each", 4, 1),
];

pub(crate) fn kafka(plan: &Plan) -> io::Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark is told by its script where the broker is"
    )]
    let broker = std::env::var("SPANSCORE_BENCH_BROKER")
        .map_err(|_| io::Error::other("there is no broker; see tests/kafka/run"))?;
    let n = if plan.is_short { 20 } else { 400 };
    let n_spans = (n * N_CONNECTIONS * SPANS_PER_REQUEST) as f64;
    let mut load = loader(Profile::Lean, N_OPEN, SPANS_PER_REQUEST as usize, 9)?.0;

    // Fill the topic that the judges read in each round.
    let mut filling = writer(&plan.program, &broker, "figures-read")?;
    let n_judgements = write(&mut filling, &mut load, 1, n)?.n_roots * N_CRITERIA;
    drop(filling);

    let variant = Variant::on(&plan.program)
        .set(ROOMY)
        .set("assemble.settle=1s");
    let mut direct = Target::sidecar(2, &variant)?;
    let mut written = writer(&plan.program, &broker, "figures-written")?;
    let dose = Dose {
        per_connection: n / 4,
        spans_per_request: SPANS_PER_REQUEST,
        wire: Wire::Grpc,
        n_connections: N_CONNECTIONS,
    };
    let (mut direct_cost, mut writer_cost) = (Series::new(), Series::new());
    let mut judged: Vec<(Series, Series)> = vec![<_>::default(); JUDGES.len()];
    for round in 0..=plan.n_rounds {
        let turn = direct.turn(&mut load, dose)?;
        let wrote = write(&mut written, &mut load, 3, n / 4)?;
        if round == 0 {
            continue; // The first round only warms up.
        }
        direct_cost.push(turn.cpu_nanos / (n_spans / 4.0));
        writer_cost.push(wrote.cpu_nanos / (n_spans / 4.0));
        for ((name, n_judges, n_threads), (cost, rate)) in JUDGES.iter().zip(&mut judged) {
            let group = format!("{name} {round} {}", std::process::id()).replace(' ', "-");
            let start = || judge(&plan.program, &broker, &group, *n_threads);
            let judges = (0..*n_judges).map(|_| start()).collect::<io::Result<_>>()?;
            let (cpu_nanos, seconds) = wait(judges, n_judgements as f64)?;
            cost.push(cpu_nanos / n_spans);
            rate.push(n_spans * COUNTED / seconds / 1e3);
        }
    }

    heading("Kafka: lean, requests of 512 spans, one broker and the load on the same machine");
    let cost = |name: &str, cost: &Series| line(name, spread(cost.clone()), "CPU ns/span");
    cost("received and judged by one process", &direct_cost);
    cost("written to Kafka", &writer_cost);
    for ((name, ..), (nanos, _)) in JUDGES.iter().zip(&judged) {
        cost(&format!("judged from Kafka, {name}"), nanos);
    }
    for ((name, ..), (_, rate)) in JUDGES.iter().zip(&judged) {
        line(
            &format!("{name}: spans judged"),
            spread(rate.clone()),
            "k spans/s",
        );
    }
    line(
        "writer / received and judged",
        ratio(&writer_cost, &direct_cost),
        "",
    );
    let (one_cost, one_rate) = &judged[0];
    line(
        "judge / received and judged",
        ratio(one_cost, &direct_cost),
        "",
    );
    for ((name, ..), (_, rate)) in JUDGES.iter().zip(&judged).skip(1) {
        line(
            &format!("rate of {name} / of 1 with 1"),
            ratio(rate, one_rate),
            "",
        );
    }
    Ok(())
}

/// A writer or a judge.
struct Program {
    process: Process,
    grpc: u64,
    admin: String,
    /// Receives a message when partitions are assigned.
    taken: Receiver<()>,
    _config: TempDir,
}

struct Written {
    cpu_nanos: f64,
    n_roots: u64,
}

fn writer(program: &Path, broker: &str, topic: &str) -> io::Result<Program> {
    let topic = format!("kafka.write.topic={topic}");
    let settings = ["kafka.write.enabled=true", &*topic, "scoring.enabled=false"];
    start(program, broker, "", &settings, 2)
}

fn judge(program: &Path, broker: &str, group: &str, n_threads: usize) -> io::Result<Program> {
    let settings = [
        "kafka.read.enabled=true",
        "kafka.read.topic=figures-read",
        "kafka.read.start=earliest",
        &format!("kafka.read.group={group}"),
        &format!("scoring.threads={n_threads}"),
        // Nothing listens at this address.
        "forward.endpoint=http://127.0.0.1:9",
        "scores.span.enabled=false",
        "scores.event.enabled=false",
        "assemble.settle=1s",
        "assemble.inactive=1h",
        // Score metrics cannot be delivered, so waiting for their delivery is pointless.
        "shutdown.deadline=1s",
    ];
    start(program, broker, CRITERIA, &settings, 1)
}

fn start(
    program: &Path,
    broker: &str,
    config: &str,
    settings: &[&str],
    n_ports: usize,
) -> io::Result<Program> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bench.yaml");
    std::fs::write(&file, config)?;
    let mut command = Command::new(program);
    command.env_clear().args(["run", "--config"]).arg(&file);
    let brokers = format!("kafka.brokers=[{broker:?}]");
    let common = [
        &*brokers,
        "receivers.otlp.grpc.listen=127.0.0.1:0",
        "receivers.otlp.http.enabled=false",
        "admin.listen=127.0.0.1:0",
        ROOMY,
        "shutdown.quiet=0s",
        "log.format=json",
    ];
    for setting in common.iter().chain(settings) {
        command.args(["--set", *setting]);
    }
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = Process::other(child.spawn()?);
    let stderr = process.child_mut().stderr.take();
    let mut log = BufReader::new(stderr.ok_or(io::ErrorKind::BrokenPipe)?);
    let (mut grpc, mut admin) = (0, String::new());
    let mut n_listening = 0;
    while n_listening < n_ports {
        let mut line = String::new();
        if log.read_line(&mut line)? == 0 {
            return Err(io::Error::other("spanscore ended before it listened"));
        }
        let value: Value = serde_json::from_str(&line).unwrap_or_default();
        let (Some("listening"), Some(setting), Some(address)) = (
            value["message"].as_str(),
            value["setting"].as_str(),
            value["address"].as_str(),
        ) else {
            continue;
        };
        n_listening += 1;
        match setting {
            "admin.listen" => admin = address.to_owned(),
            _ => {
                grpc = address
                    .rsplit(':')
                    .next()
                    .and_then(|it| it.parse().ok())
                    .unwrap_or(0)
            }
        }
    }
    let (tell, taken) = sync_channel(1);
    std::thread::spawn(move || {
        for line in log.lines().map_while(Result::ok) {
            if line.contains("partitions assigned") {
                // The first message is enough.
                let _ = tell.try_send(());
            }
        }
    });
    Ok(Program {
        process,
        grpc,
        admin,
        taken,
        _config: folder,
    })
}

/// Sends requests to a writer, then waits until the broker has stored all their spans.
fn write(writer: &mut Program, load: &mut Process, id: u64, n: u64) -> io::Result<Written> {
    let sent = |metrics: &Metrics| metrics.sum("spanscore_exporter_sent_spans_total");
    let before = sent(&metrics_of(&writer.admin)?);
    let cpu = writer.process.cpu()?;
    let wire = Wire::Grpc.word();
    let command = format!("send {} {id} {n} {wire} {N_CONNECTIONS}", writer.grpc);
    let [n_requests, n_roots, _, n_refused] = numbers(&load.ask(&command)?)?;
    if n_refused > 0 {
        return Err(io::Error::other(format!(
            "{n_refused} requests were refused"
        )));
    }
    let expected = before + (n_requests * SPANS_PER_REQUEST) as f64;
    let give_up_at = monotonic_nanos() + PATIENCE;
    while sent(&metrics_of(&writer.admin)?) < expected {
        if monotonic_nanos() > give_up_at {
            return Err(io::Error::other("not everything was written"));
        }
        pause(Duration::from_millis(20));
    }
    Ok(Written {
        cpu_nanos: (writer.process.cpu()? - cpu).as_nanos() as f64,
        n_roots,
    })
}

/// Waits until the judges have judged everything. Returns their CPU time, and the seconds from the
/// time at which every judge had partitions until the share [`COUNTED`] of the judgements was made.
fn wait(judges: Vec<Program>, n_judgements: f64) -> io::Result<(f64, f64)> {
    for judge in &judges {
        let patience = Duration::from_nanos(PATIENCE);
        judge
            .taken
            .recv_timeout(patience)
            .map_err(io::Error::other)?;
    }
    let begun = monotonic_nanos();
    let mut counted = None;
    loop {
        let mut n_judged = 0.0;
        for judge in &judges {
            n_judged += metrics_of(&judge.admin)?.sum("spanscore_evaluations_total");
        }
        let waited = monotonic_nanos() - begun;
        if n_judged >= n_judgements * COUNTED {
            counted.get_or_insert(waited as f64 / 1e9);
        }
        if n_judged >= n_judgements {
            break;
        }
        if waited > PATIENCE {
            let text = format!("{n_judged} of {n_judgements} were judged");
            return Err(io::Error::other(text));
        }
        pause(Duration::from_millis(25));
    }
    let mut cpu = Duration::ZERO;
    for judge in &judges {
        cpu += judge.process.cpu()?;
    }
    Ok((cpu.as_nanos() as f64, counted.unwrap_or(f64::NAN)))
}
