//! Measures the spans accepted per second and the share that is forwarded unjudged, with a
//! `memory.limit` of 512 MiB and one or two scoring threads, while four senders send as fast as
//! they can. The benchmark does not check the verdicts.

use std::io;

use crate::Plan;
use crate::load::Wire;
use crate::loaded::wait_for;
use crate::loader;
use crate::payload::Profile;
use crate::report::{heading, line, spread};
use crate::target::{Target, Variant, numbers};

const SPANS_PER_REQUEST: u64 = 512;

pub(crate) fn judging(plan: &Plan) -> io::Result<()> {
    heading(
        "full load: 4 connections that never wait, memory.limit 512 MiB, scoring.threads 1 and 2",
    );
    for (profile, n_requests) in [(Profile::Lean, 300), (Profile::Genai, 75)] {
        for n_threads in [1, 2] {
            let (mut taken, mut unjudged) = (Vec::new(), Vec::new());
            for _ in 0..plan.n_rounds {
                let mut load = loader(profile, 64, SPANS_PER_REQUEST as usize, 9)?.0;
                let variant = Variant::on(&plan.program)
                    .set("memory.limit=512MiB")
                    .set(&format!("scoring.threads={n_threads}"));
                let mut target = Target::sidecar(1, &variant)?;
                let answer = load.ask(&format!(
                    "send {} 1 {n_requests} {} 4",
                    target.port,
                    Wire::Grpc.word()
                ))?;
                let [n_taken, _, digest, _, nanos] = numbers(&answer)?;
                let n_spans = n_taken * SPANS_PER_REQUEST;
                wait_for(&mut target, n_spans, digest)?;
                let unscored = target.metrics()?.sum("spanscore_unscored_spans_total");
                taken.push(n_spans as f64 / (nanos as f64 / 1e9) / 1e3);
                unjudged.push(unscored / n_spans as f64 * 100.0);
            }
            let name = format!("{}, {n_threads} judging", profile.name());
            line(&format!("{name}: spans taken"), spread(taken), "k spans/s");
            line(
                &format!("{name}: forwarded unjudged"),
                spread(unjudged),
                "%",
            );
        }
    }
    Ok(())
}
