//! Explains how a rule was violated. The text names calls, and gives the length of a literal copy.
//! It contains a sum only if explanations show values.

use text::{code, counted, duration_text};

use super::activations::{Breach, Lack, RuleFound};
use super::templates::requirements;
use crate::evaluate::comparison::alignment::{times, was_called};
use crate::evaluate::comparison::captured::CapturedValues;
use crate::evaluate::comparison::score::Judgement;
use crate::evaluate::parameters::call_pattern::Calls;
use crate::evaluate::parameters::rule::{Rule, RuleShape, TotalOf};
use crate::evaluate::parameters::same::Same;

/// Describes the first violation of a rule, and counts the rest. Measures copies within the search
/// budget of `captured`.
pub(crate) fn violation(
    rule: &Rule,
    found: &RuleFound,
    context: &Judgement<'_>,
    captured: &mut CapturedValues<'_>,
) -> Option<String> {
    let (call, breach) = found.first.as_ref()?;
    let pair = match (breach, call) {
        (
            Breach::Barred(other) | Breach::BarredBeside(other) | Breach::Together(other),
            Some(call),
        ) => Some([*other, *call]),
        _ => None,
    };
    let same = same_text(rule, |same| {
        let [one, other] = pair?;
        let mut pairs = [[one, other], [other, one]].into_iter();
        pairs.find_map(|pair| same.n_copied(pair, captured))
    });
    let place = if context.trajectory.is_agent_run {
        "in this run"
    } else if context.trajectory.turns.is_some() {
        "in this session"
    } else {
        "in this trace"
    };
    let explanation = RuleExplanation {
        rule,
        context,
        same,
        place,
    };
    let mut sentence = match call {
        Some(call) => explanation.of_call(*call, breach),
        None => explanation.of_run(breach),
    };
    if found.n_earlier_turns > 0 {
        let turns = counted(found.n_earlier_turns, "earlier turn", "earlier turns");
        sentence.push_str(&format!(" (nor in the {turns} of this session)"));
    }
    if found.n_others > 0 {
        sentence.push_str(&format!(", and {} more", found.n_others));
    }
    Some(sentence)
}

/// Returns text such as "no call of `^transfer$`", for a run without calls that the rule checks.
pub(crate) fn no_activations(rule: &Rule) -> String {
    let (RuleShape { a, b, .. }, requirements) = (rule.shape(), requirements(rule));
    let applies_to = |of_b: bool| {
        requirements
            .iter()
            .any(|requirement| requirement.of_b == of_b)
    };
    match (rule, b) {
        (Rule::Init(_) | Rule::End(_), _) => "no calls".to_owned(),
        (_, Some(b)) if applies_to(false) && applies_to(true) && a != b => {
            format!("no call of {a} or {b}")
        }
        (_, Some(b)) if applies_to(true) => format!("no call of {b}"),
        _ => format!("no call of {a}"),
    }
}

/// Returns text such as " with the same `args.path`". If an entry requires a copy, the text
/// includes the copy's length if known.
pub(crate) fn same_text(rule: &Rule, mut n_copied: impl FnMut(&Same) -> Option<usize>) -> String {
    let same = rule.shape().same.iter();
    let texts: Vec<String> = same.map(|same| same.describe(n_copied(same))).collect();
    if texts.is_empty() {
        String::new()
    } else {
        format!(" with {}", texts.join(" and "))
    }
}

/// Returns text such as " within 10s".
pub(crate) fn within_text(rule: &Rule) -> String {
    let within = rule.shape().within;
    within.map_or_else(String::new, |within| format!(" within {within}"))
}

struct RuleExplanation<'a> {
    rule: &'a Rule,
    context: &'a Judgement<'a>,
    /// Text such as " with the same `args.path`", or " with a literal copy of 20 characters of
    /// `args.body` in `result`".
    same: String,
    /// Text such as "in this trace".
    place: &'static str,
}

impl RuleExplanation<'_> {
    fn called(&self, call_idx: usize) -> String {
        self.context.trajectory.called(call_idx)
    }

    /// Names the first of `n_calls` calls, and counts the rest.
    fn all_called(&self, calls: &[usize], n_calls: usize) -> String {
        const MAX_NAMED: usize = 4;
        let mut text = (calls.iter().take(MAX_NAMED))
            .map(|call| self.called(*call))
            .collect::<Vec<_>>()
            .join(", ");
        if n_calls > MAX_NAMED {
            text.push_str(&format!(", … {} more", n_calls - MAX_NAMED));
        }
        text
    }

    fn of_call(&self, call: usize, breach: &Breach) -> String {
        let RuleShape { a, b, .. } = self.rule.shape();
        let b = b.unwrap_or(a);
        let (called, within, same) = (self.called(call), within_text(self.rule), &self.same);
        match breach {
            Breach::After(lack) => self.lacks(&called, lack, b, true),
            Breach::Before(lack, _) => self.lacks(&called, lack, a, false),
            Breach::Alone { of_b } => {
                let other = if *of_b { a } else { b };
                format!("{called}: no {other}{same}{within} anywhere")
            }
            Breach::Barred(other) => {
                let right = match self.rule {
                    Rule::NotChainSuccession(_) => "right ",
                    _ => "",
                };
                format!(
                    "{called} was called {right}after {}{same}{within}",
                    self.called(*other)
                )
            }
            Breach::BarredBeside(other) => {
                format!(
                    "{called} was called while {} ran{same}",
                    self.called(*other)
                )
            }
            Breach::Together(other) => {
                format!(
                    "{called} and {} were both called{same}{within}",
                    self.called(*other)
                )
            }
            Breach::Total { n_calls, sum } => self.total(*n_calls, sum, &called),
            Breach::Count { .. } | Breach::Edge { .. } => String::new(),
        }
    }

    /// Returns text such as "`args.amount` of 3 calls of `^transfer$` sums to 1250 within 1h (at
    /// most 1000), at …".
    fn total(&self, n_calls: usize, sum: &str, called: &str) -> String {
        let Rule::Total(TotalOf { a, of, max, .. }) = self.rule else {
            return String::new();
        };
        let (path, max) = (code(of.as_str()), max.text());
        let calls = counted(n_calls, "call", "calls");
        let (within, same) = (within_text(self.rule), &self.same);
        let exceeds = if self.context.explain.values {
            format!("{sum}{within} (at most {max})")
        } else {
            format!("more than {max}{within}")
        };
        format!("{path} of {calls} of {a}{same} sums to {exceeds}, at {called}")
    }

    fn lacks(&self, called: &str, lack: &Lack, missing: &Calls, after: bool) -> String {
        let (within, same) = (within_text(self.rule), &self.same);
        let side = if after { "after" } else { "before" };
        match *lack {
            Lack::Nothing if after => format!("{called}: no {missing} after it{same}{within}"),
            Lack::Nothing => {
                format!(
                    "{called}: no {missing} before it {}{same}{within}",
                    self.place
                )
            }
            Lack::Overlap(other) if after => {
                format!("{} began before {called} had finished", self.called(other))
            }
            Lack::Overlap(other) => {
                format!("{called} began before {} had finished", self.called(other))
            }
            Lack::TooFar(other, millis) => {
                let millis = u64::try_from(millis).unwrap_or(0);
                let gap = duration_text(std::time::Duration::from_millis(millis));
                let (nearest, when) = if after {
                    ("next", format!("came after {gap}"))
                } else {
                    ("last", format!("had ended {gap} before"))
                };
                format!(
                    "no {missing} {side} {called}{same}{within}: the {nearest}, call {}, {when}",
                    other + 1
                )
            }
            Lack::InBetween(other, Some(partner)) => {
                let (came, which) = if after { ("before", "next") } else { ("after", "last") };
                format!(
                    "{called} has no {missing}{same} of its own: {} came {came} the {which} \
                     (call {})",
                    self.called(other),
                    partner + 1
                )
            }
            Lack::InBetween(other, None) => format!(
                "right {side} {called} came {}, expected {missing}{same}{within}",
                self.called(other)
            ),
        }
    }

    fn of_run(&self, breach: &Breach) -> String {
        match breach {
            Breach::Count {
                n_made,
                n_ended,
                beyond,
            } => self.count(*n_made, *n_ended, beyond),
            Breach::Edge {
                misfits,
                unended,
                beside,
            } => self.at_edge(misfits, unended, *beside),
            _ => String::new(),
        }
    }

    fn count(&self, n_made: usize, n_ended: usize, beyond: &[usize]) -> String {
        let a = self.rule.shape().a;
        let (min, max) = self.rule.shape().bounds;
        let called = called_and_ended(n_made, n_ended);
        let n_beyond = n_made.saturating_sub(max as usize);
        let beyond = self.all_called(beyond, n_beyond);
        match (self.rule, max) {
            (Rule::Existence(_), _) => format!("{a} {called}, at least {min} needed"),
            (Rule::Exactly(_), _) => format!("{a} {called}, expected {}", times(min as usize)),
            (_, 0) if n_beyond == 1 => format!("{beyond} was called, {a} must not be"),
            (_, 0) => format!("{beyond} were called, {a} must not be"),
            _ => format!(
                "{a} was called {}, at most {max} allowed: {beyond} {} too many",
                times(n_made),
                if n_beyond == 1 { "is" } else { "are" }
            ),
        }
    }

    /// Names the first or last calls that are not the required `a`, or have not ended.
    fn at_edge(&self, misfits: &[usize], unended: &[usize], beside: Option<usize>) -> String {
        let a = self.rule.shape().a;
        let place = match self.rule {
            Rule::Init(_) => format!("first {}", self.place),
            _ => "last".to_owned(),
        };
        let at_fault = if misfits.is_empty() { unended } else { misfits };
        let calls = self.all_called(at_fault, at_fault.len());
        let (has_ended, is_one) = (!misfits.is_empty(), at_fault.len() == 1);
        match (beside, has_ended) {
            (Some(beside), _) => format!(
                "{calls} {}{} {}, so {} may have come {place}; expected {a}",
                if has_ended { "" } else { "never ended and " },
                match (is_one, has_ended) {
                    (true, true) => "overlaps",
                    (true, false) => "overlapped",
                    (false, _) => "overlap",
                },
                self.called(beside),
                if is_one { "it" } else { "one of them" },
            ),
            (None, true) if unended.is_empty() => format!("{calls} came {place}, expected {a}"),
            (None, true) => format!(
                "{calls} may have come {place}, since {} never ended; expected {a}",
                self.all_called(unended, unended.len())
            ),
            (None, false) => format!("{calls} came {place}, but never ended; expected {a}"),
        }
    }
}

/// Returns text such as "was called twice", with the number of calls that ended if some did not.
fn called_and_ended(n_made: usize, n_ended: usize) -> String {
    let called = was_called(n_made);
    match (n_made, n_ended) {
        (1, 0) => format!("{called}, but that call never ended"),
        (_, 0) if n_made > 0 => format!("{called}, but no call ended"),
        _ if n_ended < n_made => {
            format!(
                "{called}, but only {} ended",
                counted(n_ended, "call", "calls")
            )
        }
        _ => called,
    }
}
