//! The evaluator `constraints`: did the calls follow rules about their order, number and values?

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::json;
use text::{code, counted};

use super::{Evaluate, FollowedPath, SHORTCUTS_RAISE_NO_ALARM, ToolName, WatchedCalls};
use crate::evaluate::comparison::captured::{MAX_SEARCH, Tri};
use crate::evaluate::comparison::order::Concurrency;
use crate::evaluate::comparison::rows::AlignmentRow;
use crate::evaluate::comparison::score::{Judgement, Rendered, Score};
use crate::evaluate::parameters::call_pattern::{CallPattern, CallReader, Calls};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::pattern::PlacedPattern;
use crate::evaluate::parameters::rule::{Rule, TotalOf};
use crate::evaluate::parameters::shown_values::ShownValues;
use crate::evaluate::rules::activations::{Breach, NearMiss, RuleFound};
use crate::evaluate::rules::judged::{RuleJudge, most_after_violation};
use crate::evaluate::rules::rule_explanation;
use crate::evaluate::rules::templates::{is_never_kept, requirements};
use crate::extract::Trajectory;

/// Did the calls follow rules about their order, number and values?
///
/// # What it checks
/// Checks rules, each written with one template: `total`, or a template of the process language
/// DECLARE. The *activations* of a rule are the calls that it checks, or the run. For example,
/// `precedence: { a, b }` checks each call `b`, and requires a call `a` before it. The *target* of
/// an activation is the call that the rule requires or forbids for it. The score of a rule is the
/// share of its activations that are satisfied, or 1 if it has no activations. The evaluator's
/// score is the mean over all rules. Use `select.calls` to exclude runs without activations.
///
/// A call is an interval of time. It is *before* another call if it ended before the other call
/// began. Two calls that overlap have no order.
///
/// # Why
/// Teams write rules, not lists: authenticate before every transfer, read a file before editing
/// that file, use an approval once, run tests after the last edit, never act twice on one order.
/// [rules.md](rules.md) has eighteen rules to copy, each with a satisfying and a violating run.
///
/// # Example
/// ```yaml
/// evaluate:
///   constraints:
///     rules:
///       - precedence: { a: "^authenticate$", b: "^transfer$", within: 10m }
///       - precedence: { a: "^read_file$", b: "^edit_file$", same: [args.path] }
///       - chain_response: { a: { name: "^deploy$", error: true }, b: "^roll_back$" }
///       - absence: { a: "^delete_account$" }
/// ```
/// Calls `transfer, authenticate, transfer` score 7/8: the first rule scores 1/2, each of the other
/// three scores 1.
///
/// # Parameters
/// - `rules`: at least one template, each with its fields.
/// - `concurrency` (`interval`): the calls that count as overlapping. `interval`: calls that
///   overlap in time. `reply`: also calls that one model reply requested, even if they ran one by
///   one, because none of them could use the result of another. `none`: calls never overlap; they
///   are ordered by start.
///
/// | template | activations | requirement | fields besides `a` |
/// |---|---|---|---|
/// | `existence` | the run | at least `min` (default 1) calls match `a` | `min` |
/// | `absence` | the run | at most `max` (default 0) calls match `a` | `max` |
/// | `exactly` | the run | `count` (default 1) calls match `a` | `count` |
/// | `init`, `end` | the run, if it has calls | the first or the last call is an `a` | `overlap` |
/// | `responded_existence` | each `a` | there is a `b`, in any order | `b`, `within`, `same` |
/// | `coexistence` | each `a`, each `b` | a call of the other kind | `b`, `within`, `same` |
/// | `not_coexistence` | each `a`, each `b` | no call of the other kind | `b`, `within`, `same` |
/// | `response` | each `a` | a `b` follows it | `b`, `within`, `same`, `overlap` |
/// | `alternate_response` | each `a` | a `b` follows it before the next `a` | as above |
/// | `chain_response` | each `a` | the next call is a `b` | as above |
/// | `precedence` | each `b` | an `a` precedes it | as above |
/// | `alternate_precedence` | each `b` | an `a` lies between the previous `b` and it | as above |
/// | `chain_precedence` | each `b` | the previous call is an `a` | as above |
/// | `succession` | each `a`, each `b` | `response` and `precedence` | as above |
/// | `alternate_succession` | each `a`, each `b` | both `alternate_…` rules above | as above |
/// | `chain_succession` | each `a`, each `b` | both `chain_…` rules above | as above |
/// | `not_succession` | each `b` | no `a` precedes it | as above |
/// | `not_chain_succession` | each `b` | the previous call is not an `a` | as above |
/// | `total` | each `a` | the sum of `of` so far is at most `max` | `of`, `max`, `within`, `same` |
///
/// - `a`, `b`: call patterns as in `tool_calls`, with `name`, `error`, `command`, `path`, `args`,
///   `result` and `where`; a text is a pattern of the name. A list of patterns matches a call if
///   one of them matches. A call is never its own target.
/// - `of`, `max`: the path of the values that `total` adds up, and the highest sum that satisfies
///   the rule. For each call `a`, spanscore adds up the values of this call and of all calls `a`
///   that started earlier or at the same time. With `within`, an earlier call counts only if it
///   started at most this long before this call; with `same`, only if it agrees with this call on
///   every path. All values that `*` selects are added; a call without a value adds nothing. Sums
///   are exact up to 38 digits. If all calls `a` lack a value at `of`, the path may be misspelt:
///   there is no verdict.
/// - `within`: the longest gap between two calls, from the end of the earlier to the start of the
///   later (`total`: between their starts). A call further away is no target: it meets no
///   requirement, and is not forbidden.
/// - `same`: both calls must agree on every path. A path is `args` or `result` with keys, indices
///   or `*` (every element), such as `args.path`; `{ a: result.items.*.id, b: args.id }` compares
///   one path of `a` with another of `b`. Two calls agree if they share a value, equal as JSON. A
///   value that is absent or null agrees with nothing. A result that is JSON text is parsed first
///   (`7` is a number). Any other result is one text, which only the path `result` selects. In
///   `alternate_…` rules, a call counts as in between only if it agrees with the activation.
///   Missing values at a path of `same`, or at `of`, are reported as under [Values](#values).
/// - `compare`, in an entry of `same` such as `{ a: result, b: args.body, compare: a_in_b }`,
///   requires a literal copy instead of equal values (`equal`, the default). `a_in_b`: a text of at
///   least 8 characters at `a` is inside a text at `b`. `b_in_a`: every text or number at `b`
///   occurs in a text at `a` as a whole word (words consist of letters, digits and `_`).
///   `shared_text`: both share at least `min_length` (default 24, minimum 16) consecutive
///   characters. In a list or a map, every text and number is compared as written; empty texts are
///   ignored. A translated, summarised or encoded copy is not found: a satisfied `not_…` rule means
///   only that no literal copy was seen.
/// - `overlap`: the outcome if overlapping calls could have run in several orders, and only some of
///   these orders satisfy the rule: `fail`, `pass` or `not_evaluated`. Default: `fail` for rules
///   that require an order, `pass` for rules that forbid one (`not_…`).
///
/// If an earlier turn of the conversation, recorded as a separate trace, may have made the call
/// that a rule misses, the verdict is `not_evaluated`
/// ([Earlier turns of a session](design.md#earlier-turns-of-a-session)).
///
/// A call that has not ended precedes no other call and satisfies no requirement. But it can be an
/// activation, violate a rule that forbids it, and, by its start, lie between two calls. Calls read
/// from model messages lack times and outcomes: the calls of one reply overlap, and evidence for
/// `within` and `error` is missing. A call whose span has no start, or ends before it starts, may
/// have run at any time: if a rule's outcome depends on that time, it is open. A rule compares each
/// activation with each possible target. After 134 million comparisons (many thousand calls), the
/// remaining activations are open.
///
/// Details: `rules`, one entry per rule:
///
/// - `template`; `satisfied`, `null` if open; `vacuous`, true if there is no activation.
/// - `activations`, `violations`, `open`: the number of activations, and of those violated or open.
/// - `violated`: the positions (from 1) of the violating calls, at most 100.
/// - `because`: for each violating call, or for the run, the calls that caused the violation.
/// - with `where` or `same`: `values` and `nearest`, in the form of `tool_calls`. `values`
///   describes the first violating call. `nearest` describes the call most similar to a missing
///   target: a call that differs only at paths of `same`, or else a call that matches only the
///   target's name. At a path of `same`, `operator` is the value of `compare`, and `expected` is
///   absent.
/// - for a `total`: `path`, `max` and, with `explain.values: true`, the first `sum` above `max`.
///
/// # When the trace was cut short
/// Further calls can have any position, so few outcomes are certain. A satisfied `existence` stays
/// satisfied. So do `coexistence` and `responded_existence` without `within` and `same`, once the
/// other kind was called. An exceeded `absence` or `exactly`, a violated `not_coexistence` and,
/// except with `concurrency: reply`, a violated `not_succession` stay violated. So does an exceeded
/// `total`, if no value was negative: unseen values are assumed not to be.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Constraints {
    /// The rules, at least one.
    #[serde(deserialize_with = "at_least_one")]
    #[schemars(length(min = 1))]
    pub rules: Vec<Rule>,
    /// The calls that count as overlapping.
    #[serde(default, skip_serializing_if = "Concurrency::is_default")]
    pub concurrency: Concurrency,
}

read_with_hints!(Constraints);

/// Maximum number of rules that an explanation describes.
const MAX_DESCRIBED: usize = 8;

const NO_COPY: &str = "no literal copy was seen";

/// Returns true if a rule that forbids literal copies is satisfied.
fn forbids_copies(rule: &Rule, found: &RuleFound) -> bool {
    found.is_satisfied() == Some(true)
        && rule.shape().same.iter().any(|same| same.copied().is_some())
        && requirements(rule)
            .iter()
            .any(|requirement| requirement.is_forbidden)
}

/// Search budget for explaining one rule: its calls are matched again, and copies are measured.
const MAX_SEARCH_FOR_TEXT: u64 = MAX_SEARCH / 8;

/// Returns the conditions and values of the first call to blame and of the call most similar to a
/// missing target, and a text about both.
fn values_of(
    rule: &Rule,
    found: &RuleFound,
    context: &Judgement<'_>,
    reader: &mut CallReader<'_>,
) -> ([ShownValues; 2], String) {
    let [mut values, mut of_nearest] = [ShownValues::default(), ShownValues::default()];
    let Some((violating, breach)) = &found.first else {
        return Default::default();
    };
    let shape = rule.shape();
    let kind = |is_b: bool| if is_b { shape.b.unwrap_or(shape.a) } else { shape.a };
    let (asks, wants) = breach.kinds();
    let asked = match asks {
        Some(is_b) => [Some(kind(is_b)), None],
        None => [Some(shape.a), shape.b],
    };
    if let Some(first) = found.offending().next() {
        for pattern in asked.into_iter().flatten().flat_map(Calls::patterns) {
            if !pattern.conditions.is_empty() && reader.fit(pattern, Tri::Yes, first) > Tri::No {
                pattern.show_values(first, context, &mut values);
            }
        }
    }
    let is_b = wants.unwrap_or_default();
    let near = match (&found.nearest, violating) {
        (Some(NearMiss::Differs { call, same }), Some(violating)) => {
            let entries = same.iter().filter_map(|at| shape.same.get(*at));
            let paths = entries.map(|entry| {
                entry.show_value(*violating, !is_b, context, &mut values);
                let path = entry.show_value(*call, is_b, context, &mut of_nearest);
                code(path.as_str())
            });
            let paths = paths.collect::<Vec<_>>().join(" and ");
            let called = context.trajectory.called(*call);
            let is_told = !of_nearest.text("", "").is_empty();
            let paths = if is_told { String::new() } else { format!(" in {paths}") };
            Some(format!("{called} differs{paths}"))
        }
        (Some(NearMiss::ByName { call, pattern }), _) => {
            if let Some(pattern) = kind(is_b).patterns().nth(*pattern) {
                pattern.show_values(*call, context, &mut of_nearest);
            }
            Some(format!("by name {}", context.trajectory.called(*call)))
        }
        _ => None,
    };
    let near = near.map(|near| format!(" ({near}{})", of_nearest.text(": ", "")));
    let text = values.text(" (", ")") + &near.unwrap_or_default();
    ([values, of_nearest], text)
}

fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rule>, D::Error> {
    let rules = Vec::<Rule>::deserialize(deserializer)?;
    if rules.is_empty() {
        Err(de::Error::custom(
            "there is no rule: write at least one, such as `precedence: { a: \"^read$\", b: \
             \"^write$\" }`",
        ))
    } else {
        Ok(rules)
    }
}

impl Evaluate for Constraints {
    const NAME: &'static str = "constraints";

    type Evidence = Vec<RuleFound>;

    fn evaluate(&self, trajectory: &Trajectory, max_search: u64) -> (Score, Vec<RuleFound>) {
        let mut judge = RuleJudge::new(trajectory, self.concurrency, max_search);
        let (mut sums, mut found) = ([0.0; 3], Vec::with_capacity(self.rules.len()));
        for rule in &self.rules {
            let (shares, of_rule) = judge.judge(rule);
            for (sum, share) in sums.iter_mut().zip(shares) {
                *sum += share;
            }
            found.push(of_rule);
        }
        let [value, least, most] = sums.map(|sum| self.mean(sum));
        let mut score = Score::between(value, least, most);
        score.read_by(judge.reader, &self.paths());
        score.may_fault = trajectory.cut_short && self.reads_shortcut();
        (score, found)
    }

    fn watched(&self) -> Result<WatchedCalls, String> {
        let most_after = |rule| most_after_violation(rule, self.concurrency);
        let mut breakable = (self.rules.iter())
            .filter(|rule| most_after(rule) < 1.0)
            .peekable();
        if self.reads_shortcut() {
            Err(SHORTCUTS_RAISE_NO_ALARM.to_owned())
        } else if breakable.peek().is_some() {
            let patterns = breakable.flat_map(|rule| rule.shape().patterns());
            let most = self.mean(self.rules.iter().map(most_after).sum());
            Ok(WatchedCalls::of(patterns, most))
        } else {
            let template = code(self.rules.first().map_or("", Rule::template));
            Err(format!(
                "{template} cannot be: a later call may still satisfy it"
            ))
        }
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        let mut named = Vec::new();
        for rule in &self.rules {
            // These templates require a call `a`; `init` and `end` do so only in a run with calls.
            // A run that never calls a template's tools satisfies every other template.
            let is_expected = matches!(
                rule,
                Rule::Existence(_) | Rule::Exactly(_) | Rule::Init(_) | Rule::End(_)
            );
            let patterns = rule.shape().patterns();
            named.extend(patterns.map(|pattern| (ToolName::Of(pattern), is_expected)));
        }
        named
    }

    fn paths(&self) -> Vec<FollowedPath<'_>> {
        let mut paths = Vec::new();
        for rule in &self.rules {
            let shape = rule.shape();
            paths.extend(FollowedPath::of_conditions(shape.patterns()));
            for same in shape.same {
                let kinds = [(&same.a, shape.a), (&same.b, shape.b.unwrap_or(shape.a))];
                paths.extend(kinds.map(|(path, calls)| FollowedPath {
                    is_of_texts: same.copied().is_some(),
                    ..FollowedPath::new(path, calls)
                }));
            }
            if let Rule::Total(TotalOf { a, of, .. }) = rule {
                paths.push(FollowedPath::new(of, a));
            }
        }
        paths
    }

    fn reads_order(&self) -> bool {
        !self.rules.iter().all(|rule| match rule {
            Rule::Existence(_) | Rule::Absence(_) | Rule::Exactly(_) => true,
            // The distance between two calls follows from their times.
            Rule::RespondedExistence(of) | Rule::Coexistence(of) | Rule::NotCoexistence(of) => {
                of.within.is_none()
            }
            _ => false,
        })
    }

    fn report(&self, found: &Vec<RuleFound>, judgement: &Judgement<'_>) -> Rendered {
        let from_one = |calls: &[usize]| calls.iter().map(|call| call + 1).collect::<Vec<_>>();
        let (mut rows, mut rules) = (Vec::new(), Vec::new());
        let (mut violations, mut offending) = (Vec::new(), Vec::new());
        for (rule, found) in self.rules.iter().zip(found) {
            let mut reader = CallReader::new(judgement.trajectory, MAX_SEARCH_FOR_TEXT);
            let captured = &mut reader.captured;
            let mut violation = rule_explanation::violation(rule, found, judgement, captured);
            let ([values, nearest], shown) = values_of(rule, found, judgement, &mut reader);
            violation
                .iter_mut()
                .for_each(|sentence| sentence.push_str(&shown));
            let note = match (&violation, found.n_activations) {
                (Some(sentence), _) => Some(sentence.clone()),
                (None, 0) => Some(rule_explanation::no_activations(rule)),
                (None, _) => forbids_copies(rule, found).then(|| NO_COPY.to_owned()),
            };
            let same = rule_explanation::same_text(rule, |_| None);
            let within = rule_explanation::within_text(rule);
            let kinds: Vec<String> = rule.shape().kinds().map(Calls::to_string).collect();
            let template = rule.template().replace('_', " ");
            let kinds = kinds.join(", ");
            let asked = match rule {
                Rule::Total(TotalOf { of, max, .. }) => {
                    let path = code(of.as_str());
                    format!(
                        "{template} of {path} of {kinds}{same}{within}, at most {}",
                        max.text()
                    )
                }
                _ => format!("{template} of {kinds}{same}{within}"),
            };
            let row = AlignmentRow::kept(found.is_satisfied(), asked);
            rows.push(AlignmentRow {
                note,
                ..row.of(found.offending())
            });
            offending.extend(violation.iter().flat_map(|_| found.offending()));
            violations.extend(violation);
            let because: Vec<_> = found.because.iter().map(|calls| from_one(calls)).collect();
            let mut details = json!({
                "template": rule.template(),
                "satisfied": found.is_satisfied(),
                "activations": found.n_activations,
                "violations": found.n_violations,
                "open": found.n_open,
                "vacuous": found.n_activations == 0,
                "violated": from_one(&found.violated),
                "because": because,
            });
            values.add_to(&mut details, "values");
            nearest.add_to(&mut details, "nearest");
            if let Rule::Total(TotalOf { of, max, .. }) = rule {
                details["path"] = json!(of);
                details["max"] = json!(max);
                if let Some((_, Breach::Total { sum, .. })) = &found.first
                    && judgement.explain.values
                {
                    details["sum"] = json!(sum);
                }
            }
            rules.push(details);
        }
        if violations.is_empty() {
            violations = vec![self.stored_text(found)];
        } else if violations.len() > MAX_DESCRIBED {
            let n_more = violations.len() - MAX_DESCRIBED;
            violations.truncate(MAX_DESCRIBED);
            let broken = counted(n_more, "more rule is", "more rules are");
            violations.push(format!("{broken} violated"));
        }
        Rendered {
            text: violations.join("; "),
            offending,
            rows,
            details: json!({ "rules": rules }),
        }
    }

    fn patterns_mut(&mut self) -> Vec<PlacedPattern<'_>> {
        let rules = self.rules.iter_mut().enumerate();
        rules
            .flat_map(|(at, rule)| rule.patterns_mut(&["constraints", "rules", &at.to_string()]))
            .collect()
    }

    fn warnings(&self) -> Vec<String> {
        let rules = self.rules.iter().enumerate();
        rules
            .flat_map(|(at, rule)| {
                let place = format!("rules[{at}].{}", rule.template());
                let never = is_never_kept(rule).then(|| {
                    format!(
                        "`{place}` has one pattern as `a` and `b`: it is never kept once such a \
                         call is made, since none comes before the first or after the last"
                    )
                });
                let shape = rule.shape();
                let kinds = [("a", Some(shape.a)), ("b", shape.b)].into_iter();
                let warnings = kinds
                    .filter_map(|(key, calls)| Some((key, calls?)))
                    .flat_map(|(key, calls)| calls.placed().map(move |placed| (key, placed)))
                    .flat_map(|(key, (at, pattern))| {
                        pattern.warnings(&format!("{place}.{key}{at}"))
                    });
                never.into_iter().chain(warnings).collect::<Vec<_>>()
            })
            .collect()
    }
}

impl Constraints {
    /// Returns the mean over the rules. Rounds it, because sums of floating-point numbers are
    /// inexact: nine times 0.1 adds up to less than 0.9.
    fn mean(&self, sum: f64) -> f64 {
        (sum / self.rules.len() as f64 * 1e12).round() / 1e12
    }

    fn reads_shortcut(&self) -> bool {
        let mut kinds = self.rules.iter().flat_map(|rule| rule.shape().patterns());
        kinds.any(CallPattern::reads_shortcut)
    }

    /// Returns text such as "2 rules kept, 5 activations".
    fn stored_text(&self, found: &[RuleFound]) -> String {
        let n_activations: usize = found.iter().map(|found| found.n_activations).sum();
        if n_activations > 0 {
            let kept = found
                .iter()
                .filter(|found| found.is_satisfied() == Some(true));
            let mut rules = self.rules.iter().zip(found);
            let copies = rules.any(|(rule, found)| forbids_copies(rule, found));
            return format!(
                "{} kept, {}{}",
                counted(kept.count(), "rule", "rules"),
                counted(n_activations, "activation", "activations"),
                if copies { format!(", {NO_COPY}") } else { String::new() }
            );
        }
        const MAX_NAMED: usize = 4;
        let mut nothing: Vec<String> = self
            .rules
            .iter()
            .map(rule_explanation::no_activations)
            .collect();
        nothing.dedup();
        nothing.truncate(MAX_NAMED);
        format!("nothing to check: {}", nothing.join(", "))
    }
}
