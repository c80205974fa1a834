//! Pure. Tells in words how a rule was broken. Knows the names of the calls, and no values.

use super::activations::{Breach, RuleFound};
use crate::evaluate::comparison::alignment::{times, was_called};
use crate::evaluate::comparison::partners::Lack;
use crate::evaluate::parameters::call_pattern::CallPattern;
use crate::evaluate::parameters::limits::Period;
use crate::evaluate::parameters::rule::{AtLeast, AtMost, Edge, ExactlyMany, Rule};
use crate::evaluate::parameters::same::Same;
use crate::extract::ToolCall;
use crate::text::duration_text;

/// The first violation of a rule, and how many more there are.
pub(crate) fn violation(rule: &Rule, found: &RuleFound, calls: &[ToolCall]) -> Option<String> {
    let (call, breach) = found.first.as_ref()?;
    let words = Words { rule, calls };
    let mut sentence = match call {
        Some(call) => words.of_call(*call, breach),
        None => words.of_run(breach),
    };
    if found.n_violations > 1 {
        sentence.push_str(&format!(", and {} more", found.n_violations - 1));
    }
    Some(sentence)
}

/// The calls of which a rule asks something: where there are none, nothing can be held against.
pub(crate) fn asking(rule: &Rule) -> String {
    let (a, b) = kinds(rule);
    match (rule, b) {
        (Rule::Init(_) | Rule::End(_), _) => "no call".to_owned(),
        (_, None) => format!("no call of {a}"),
        (Rule::Coexistence(_) | Rule::NotCoexistence(_), Some(b)) => either(a, b),
        (
            Rule::Succession(_) | Rule::AlternateSuccession(_) | Rule::ChainSuccession(_),
            Some(b),
        ) => either(a, b),
        (
            Rule::RespondedExistence(_)
            | Rule::Response(_)
            | Rule::AlternateResponse(_)
            | Rule::ChainResponse(_),
            Some(_),
        ) => format!("no call of {a}"),
        (_, Some(b)) => format!("no call of {b}"),
    }
}

fn either(a: &CallPattern, b: &CallPattern) -> String {
    match a == b {
        true => format!("no call of {a}"),
        false => format!("no call of {a} or {b}"),
    }
}

/// The patterns of a rule.
pub(crate) fn kinds(rule: &Rule) -> (&CallPattern, Option<&CallPattern>) {
    match rule {
        Rule::Existence(AtLeast { a, .. })
        | Rule::Absence(AtMost { a, .. })
        | Rule::Exactly(ExactlyMany { a, .. })
        | Rule::Init(Edge { a, .. })
        | Rule::End(Edge { a, .. }) => (&a.pattern, None),
        Rule::RespondedExistence(of) | Rule::Coexistence(of) | Rule::NotCoexistence(of) => {
            (&of.a.pattern, Some(&of.b.pattern))
        }
        Rule::Response(of)
        | Rule::AlternateResponse(of)
        | Rule::ChainResponse(of)
        | Rule::Precedence(of)
        | Rule::AlternatePrecedence(of)
        | Rule::ChainPrecedence(of)
        | Rule::Succession(of)
        | Rule::AlternateSuccession(of)
        | Rule::ChainSuccession(of)
        | Rule::NotSuccession(of)
        | Rule::NotChainSuccession(of) => (&of.a.pattern, Some(&of.b.pattern)),
    }
}

fn conditions(rule: &Rule) -> (Option<Period>, &[Same]) {
    match rule {
        Rule::Existence(_) | Rule::Absence(_) | Rule::Exactly(_) => (None, &[]),
        Rule::Init(_) | Rule::End(_) => (None, &[]),
        Rule::RespondedExistence(of) | Rule::Coexistence(of) | Rule::NotCoexistence(of) => {
            (of.within, &of.same)
        }
        Rule::Response(of)
        | Rule::AlternateResponse(of)
        | Rule::ChainResponse(of)
        | Rule::Precedence(of)
        | Rule::AlternatePrecedence(of)
        | Rule::ChainPrecedence(of)
        | Rule::Succession(of)
        | Rule::AlternateSuccession(of)
        | Rule::ChainSuccession(of)
        | Rule::NotSuccession(of)
        | Rule::NotChainSuccession(of) => (of.within, &of.same),
    }
}

struct Words<'a> {
    rule: &'a Rule,
    calls: &'a [ToolCall],
}

impl Words<'_> {
    fn called(&self, call_idx: usize) -> String {
        match self.calls.get(call_idx) {
            Some(call) => format!("`{}` (call {})", call.name, call_idx + 1),
            None => format!("call {}", call_idx + 1),
        }
    }

    fn all_called(&self, calls: &[usize]) -> String {
        const MAX_NAMED: usize = 4;
        let mut text = (calls.iter().take(MAX_NAMED))
            .map(|call| self.called(*call))
            .collect::<Vec<_>>()
            .join(", ");
        if calls.len() > MAX_NAMED {
            text.push_str(&format!(", … {} more", calls.len() - MAX_NAMED));
        }
        text
    }

    /// " with the same `args.path`".
    fn same(&self) -> String {
        let (_, same) = conditions(self.rule);
        if same.is_empty() {
            return String::new();
        }
        let paths: Vec<String> = same.iter().map(Same::describe).collect();
        format!(" with the same {}", paths.join(" and "))
    }

    /// " within 10s".
    fn within(&self) -> String {
        let (within, _) = conditions(self.rule);
        within.map_or_else(String::new, |within| format!(" within {within}"))
    }

    fn of_call(&self, call: usize, breach: &Breach) -> String {
        let (a, b) = kinds(self.rule);
        let b = b.unwrap_or(a);
        let (called, within, same) = (self.called(call), self.within(), self.same());
        match breach {
            Breach::After(lack) => self.lacks(&called, lack, b, true),
            Breach::Before(lack) => self.lacks(&called, lack, a, false),
            Breach::Alone => {
                let other = if a.name.is_match(&self.calls[call].name) {
                    b
                } else {
                    a
                };
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
            Breach::Count(..) | Breach::Edge(_) => self.of_run(breach),
        }
    }

    fn lacks(&self, called: &str, lack: &Lack, asked: &CallPattern, after: bool) -> String {
        let (within, same) = (self.within(), self.same());
        let side = if after { "after" } else { "before" };
        match *lack {
            Lack::Nothing => format!("{called}: no {asked} {side} it{same}{within}"),
            Lack::Overlap(other) if after => {
                format!("{} began before {called} had finished", self.called(other))
            }
            Lack::Overlap(other) => {
                format!("{called} began before {} had finished", self.called(other))
            }
            Lack::TooFar(other, millis) => {
                let millis = u64::try_from(millis).unwrap_or(0);
                let gap = duration_text(std::time::Duration::from_millis(millis));
                let (nearest, when) = match after {
                    true => ("next", format!("came after {gap}")),
                    false => ("last", format!("had ended {gap} before")),
                };
                format!(
                    "no {asked} {side} {called}{same}{within}: the {nearest}, call {}, {when}",
                    other + 1
                )
            }
            Lack::InBetween(other, Some(partner)) => {
                let (came, which) = if after {
                    ("before", "next")
                } else {
                    ("after", "last")
                };
                format!(
                    "{called} has no {asked}{same} of its own: {} came {came} the {which} \
                     (call {})",
                    self.called(other),
                    partner + 1
                )
            }
            Lack::InBetween(other, None) => format!(
                "right {side} {called} came {}, expected {asked}{same}{within}",
                self.called(other)
            ),
        }
    }

    fn of_run(&self, breach: &Breach) -> String {
        let (a, _) = kinds(self.rule);
        match (self.rule, breach) {
            (Rule::Existence(of), Breach::Count(n, _)) => {
                format!("{a} {}, at least {} needed", was_called(*n), of.min.0)
            }
            (Rule::Absence(of), Breach::Count(n, beyond)) => match of.max.0 {
                0 => format!(
                    "{} {} called, {a} must not be",
                    self.all_called(beyond),
                    if beyond.len() == 1 { "was" } else { "were" }
                ),
                max => format!(
                    "{a} was called {}, at most {max} allowed: {} {} too many",
                    times(*n),
                    self.all_called(beyond),
                    if beyond.len() == 1 { "is" } else { "are" }
                ),
            },
            (Rule::Exactly(of), Breach::Count(n, _)) => {
                let count = of.count.0 as usize;
                // A call that never ended is none of the expected ones.
                let ended = if *n == count { " to its end" } else { "" };
                format!("{a} {}, expected {}{ended}", was_called(*n), times(count))
            }
            (Rule::Init(_), Breach::Edge(calls)) => {
                format!("{} came first, expected {a}", self.all_called(calls))
            }
            (Rule::End(_), Breach::Edge(calls)) => {
                format!("{} came last, expected {a}", self.all_called(calls))
            }
            _ => String::new(),
        }
    }
}
