//! Judges a recording with the crate `spanscore-judge`, as another program would embed it:
//! `cargo run --example judge`.

use std::error::Error;
use std::fs;
use std::time::Instant;

use judge::{Now, Pipeline, Rules, Settings};

const CRITERIA: &str = r#"{ "criteria": [
    { "name": "look-up-before-charge",
      "evaluate": { "tool_call_order": { "tool_calls_order": ["lookup_account", "charge_card"] } } },
    { "name": "never-delete",
      "evaluate": { "tool_calls": { "disallowed": ["^delete"] } } }
] }"#;

#[expect(
    clippy::disallowed_methods,
    reason = "an example has no shell that reads the clock"
)]
#[expect(clippy::print_stdout, reason = "an example prints what it found")]
fn main() -> Result<(), Box<dyn Error>> {
    let rules = Rules::from_json(CRITERIA)?;
    let now = Now {
        instant: Instant::now(),
        unix_nanos: 0,
    };
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    for number in 1..=6 {
        let body = fs::read(format!("examples/recording/00{number}.traces.pb"))?;
        pipeline.take(rules.scan(&body)?, now);
    }
    for evaluation in pipeline.finish(&rules, now).evaluations {
        let (name, text) = (evaluation.criterion.name(), evaluation.explanation());
        println!("{name} {:?}: {text}", evaluation.verdict);
    }
    Ok(())
}
