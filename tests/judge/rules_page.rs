//! Tests every example of `docs/rules.md`: the criterion loads, the run that satisfies it passes,
//! and the run that violates it fails with the text on the page. A criterion with `alarm` must fail
//! while the run is open, too. Does not prove that the rules are sensible.

use judge::evaluate::{Criterion, Expectations, Explain, Verdict};
use serde::Deserialize;

use crate::support::calls::{Call, Written, judged};

const PAGE: &str = include_str!("../../docs/rules.md");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    keeps: Run,
    breaks: Run,
    explanation: String,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Run {
    Turns(Vec<Vec<Call>>),
    Calls(Vec<Call>),
}

fn blocks() -> Vec<&'static str> {
    PAGE.split("```yaml\n")
        .skip(1)
        .map(|block| block.split("```").next().expect("a block ends"))
        .collect()
}

#[test]
fn every_rule_of_the_page_is_kept_and_broken_as_it_says() {
    let blocks = blocks();
    let (examples, rest) = blocks.as_chunks::<2>();
    assert_eq!(
        (examples.len(), rest.len()),
        (18, 0),
        "a rule, then its runs"
    );
    for [criterion, example] in examples {
        let criterion: Criterion = serde_saphyr::from_str(criterion)
            .unwrap_or_else(|error| panic!("{criterion}: {error}"));
        let name = criterion.name.clone();
        assert_eq!(criterion.warnings(), Vec::<String>::new(), "{name}");
        let Example {
            keeps,
            breaks,
            explanation,
        } = serde_saphyr::from_str(example).unwrap_or_else(|error| panic!("{name}: {error}"));
        let has_alarm = criterion.alarm.is_some();
        let criteria = [criterion.into()];
        let judge = |run: Run, cut_short: bool| {
            let (calls, turns) = match run {
                Run::Calls(calls) => (calls, Vec::new()),
                Run::Turns(turns) => (Vec::new(), turns),
            };
            let written = Written {
                calls,
                turns,
                cut_short,
                ..Written::default()
            };
            judged(
                &criteria,
                &Expectations::default(),
                &written,
                &Explain::default(),
            )
            .pop()
            .unwrap_or_else(|| panic!("{name}: the run is selected"))
        };
        let kept = judge(keeps, false);
        assert_eq!(
            kept.verdict,
            Verdict::Pass,
            "{name}: {}",
            kept.explanation()
        );
        if has_alarm {
            let open = judge(breaks.clone(), true);
            assert_eq!(open.verdict, Verdict::Fail, "{name}: while the run is open");
        }
        let broken = judge(breaks, false);
        assert_eq!(broken.verdict, Verdict::Fail, "{name}");
        let said = broken.explanation();
        assert_eq!(said, explanation, "{name}");
        assert!(
            !broken.offending().is_empty() || said.contains("never"),
            "{name}: {said}"
        );
    }
}
