//! Pure. Expected calls that each want a call of their own, in any order: scored by the best
//! pairing there is, and put into words. Shared by the evaluators of arguments and of results;
//! knows neither.

use serde_json::{Map, Value};

use super::alignment::{times, was_called};
use super::capture::{Capture, Tri};
use super::matching::Fits;
use super::score::{Explain, Explanation, Score};
use super::words::Numbers;
use crate::extract::Trajectory;
use crate::text::counted;

/// The call of each expectation, a position in the trajectory.
pub(super) type Pairing = Vec<Option<usize>>;

/// What is expected of calls of certain names.
pub(super) trait Expectations {
    /// The names, one per expectation.
    fn names(&self) -> Vec<&str>;

    /// Does a call, of the right name, meet the expectation?
    fn fits(&self, expected: usize, call_idx: usize, capture: &Capture<'_>) -> Tri;

    /// All or nothing?
    fn strict(&self) -> bool;

    /// Matched/n, or all or nothing, by a maximum matching. Nothing expected: 1 if nothing was
    /// called, else 0.
    fn score(&self, trajectory: &Trajectory) -> Score<Pairing> {
        let names = self.names();
        let (n_expected, n_calls) = (names.len(), trajectory.tool_calls.len());
        if n_expected == 0 {
            let value = f64::from(u8::from(n_calls == 0));
            return Score::between(
                value,
                if trajectory.cut_short { 0.0 } else { value },
                value,
                Vec::new(),
            );
        }
        let capture = Capture::new(trajectory);
        let matching = |at_least: Tri| {
            let fits = |expected: usize, call_idx: usize| {
                *trajectory.tool_calls[call_idx].name == *names[expected]
                    && self.fits(expected, call_idx, &capture) >= at_least
            };
            Fits::new(n_expected, n_calls, fits).matching()
        };
        let value = |n: usize| match self.strict() {
            true => f64::from(u8::from(n == n_expected)),
            false => n as f64 / n_expected as f64,
        };
        let paired = matching(Tri::Yes);
        let now = value(paired.iter().flatten().count());
        let most = match (trajectory.cut_short, capture.missing().is_empty()) {
            (true, _) => 1.0,
            (false, true) => now,
            (false, false) => value(matching(Tri::Maybe).iter().flatten().count()),
        };
        let mut score = Score::between(now, now, most, paired);
        score.missing = capture.missing();
        score.n_expected = n_expected;
        score
    }

    /// What was met, and for the first few expectations that were not, why. `near` puts the
    /// difference to an unpaired call of the right name into words, and says how large it is.
    fn in_words(
        &self,
        paired: &Pairing,
        trajectory: &Trajectory,
        near: impl Fn(usize, usize) -> (usize, String),
    ) -> Explanation {
        const MAX_NAMED: usize = 4;
        let names = self.names();
        if names.is_empty() {
            return Explanation::from(match trajectory.tool_calls.len() {
                0 => "no tool was called, as expected".to_owned(),
                n => format!("{} made, none expected", counted(n, "call", "calls")),
            });
        }
        let unmet: Vec<usize> = (0..names.len())
            .filter(|&expected| paired.get(expected).is_none_or(Option::is_none))
            .collect();
        if unmet.is_empty() {
            let all = if names.len() == 1 { "" } else { "all " };
            return Explanation::from(format!(
                "{all}{} found",
                counted(names.len(), "expected call", "expected calls")
            ));
        }
        let mut offending = Vec::new();
        let mut sentences = Vec::new();
        for &expected in unmet.iter().take(MAX_NAMED) {
            let name = names[expected];
            let of_name: Vec<usize> = (0..trajectory.tool_calls.len())
                .filter(|&at| *trajectory.tool_calls[at].name == *name)
                .collect();
            let free = of_name
                .iter()
                .filter(|&&call_idx| !paired.contains(&Some(call_idx)));
            let nearest = free
                .map(|&call_idx| (near(expected, call_idx), call_idx))
                .min_by_key(|((n, _), call_idx)| (*n, *call_idx));
            sentences.push(match nearest {
                Some(((_, difference), call_idx)) => {
                    offending.push(call_idx);
                    format!("`{name}` (call {}): {difference}", call_idx + 1)
                }
                None if of_name.is_empty() => format!("`{name}` was not called"),
                None => {
                    let n_expected = names.iter().filter(|other| **other == name).count();
                    format!(
                        "`{name}` {}, expected {}",
                        was_called(of_name.len()),
                        times(n_expected)
                    )
                }
            });
        }
        if unmet.len() > MAX_NAMED {
            sentences.push(format!("… {} more", unmet.len() - MAX_NAMED));
        }
        sentences.dedup();
        offending.sort_unstable();
        offending.dedup();
        let n_met = names.len() - unmet.len();
        let text = format!(
            "{n_met} of {} found. {}",
            counted(names.len(), "expected call", "expected calls"),
            sentences.join("; ")
        );
        Explanation { text, offending }
    }

    /// Where every expectation is met, the words say just that, unless they show the values.
    fn shown(&self, paired: &Pairing, explain: &Explain) -> Option<Numbers> {
        (!explain.values && paired.iter().all(Option::is_some)).then(Numbers::new)
    }

    /// The reference's justification: one line per expectation, by name and number.
    fn explained(
        &self,
        paired: &Pairing,
        line: impl Fn(usize, Option<usize>) -> Option<String>,
    ) -> Map<String, Value> {
        let names = self.names();
        (0..names.len())
            .map(|expected| {
                let n_before = names[..expected]
                    .iter()
                    .filter(|name| **name == names[expected])
                    .count();
                let call_idx = paired.get(expected).copied().flatten();
                let score = if call_idx.is_some() {
                    "Score: 1.0"
                } else {
                    "Score: 0.0"
                };
                let text = line(expected, call_idx)
                    .map_or_else(|| score.to_owned(), |line| format!("{line}, {score}"));
                (format!("{}_{n_before}", names[expected]), Value::from(text))
            })
            .collect()
    }
}
