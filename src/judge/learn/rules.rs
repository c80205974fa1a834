//! Learns the rules that a group of runs satisfies: the number of calls of each tool, the first and
//! the last tool, the order of tools, and the arguments that ordered calls share.

use std::collections::{BTreeMap, BTreeSet};

use crate::evaluate::{Concurrency, Intervals};
use crate::extract::{ToolCall, Trajectory};

/// Maximum number of tools of a group for which rules are learned; the most frequent tools are
/// used.
const MAX_TOOLS: usize = 200;

/// Highest `max` of a learned `absence` rule. A higher maximum may be a coincidence.
const MAX_ABSENCE: usize = 3;

/// Minimum expected number of runs with both tools. If at least this many are expected and no run
/// has both tools, that is no coincidence.
const MIN_EXPECTED_TOGETHER: f64 = 5.0;

/// Minimum number of distinct values. If calls agree on an argument with fewer values, that may be
/// a coincidence.
const MIN_DISTINCT_VALUES: usize = 5;

/// A template of `constraints`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "docs/evaluators.md describes the templates")]
pub enum Template {
    Exactly,
    Existence,
    Absence,
    Init,
    End,
    Succession,
    Precedence,
    Response,
    NotSuccession,
    NotCoexistence,
}

/// A rule that the runs of a group satisfy, except `n_broken` runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LearnedRule {
    /// The rule's template.
    pub template: Template,
    /// The tool for `a`.
    pub a: String,
    /// The tool for `b`, if the template has one.
    pub b: Option<String>,
    /// The value of `count`, `min` or `max`, if the template has one.
    pub number: Option<usize>,
    /// The arguments on which both calls always agreed.
    pub same: Vec<String>,
    /// The number of runs with an activation that satisfy the rule.
    pub n_kept: usize,
    /// The number of runs that violate the rule.
    pub n_broken: usize,
}

impl Template {
    /// Returns the name used in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exactly => "exactly",
            Self::Existence => "existence",
            Self::Absence => "absence",
            Self::Init => "init",
            Self::End => "end",
            Self::Succession => "succession",
            Self::Precedence => "precedence",
            Self::Response => "response",
            Self::NotSuccession => "not_succession",
            Self::NotCoexistence => "not_coexistence",
        }
    }

    /// Returns the name of the template's number; `None` if it has none.
    pub fn number_key(self) -> Option<&'static str> {
        match self {
            Self::Exactly => Some("count"),
            Self::Existence => Some("min"),
            Self::Absence => Some("max"),
            _ => None,
        }
    }
}

/// Returns the rules that the runs of one group satisfy. A rule is satisfied by at least `min_runs`
/// runs, and violated by at most a share of `noise` of the runs with an activation. Omits most
/// rules that others imply. The order of the runs does not matter.
pub fn learn_rules(runs: &[&Trajectory], min_runs: usize, noise: f64) -> Vec<LearnedRule> {
    let miner = Miner::new(runs, min_runs.max(1), noise);
    let mut rules = miner.counts();
    rules.extend(miner.firsts_and_lasts());
    let pairs = miner.pairs();
    let (orders, bars) = miner.orders_and_bars(&pairs, &rules);
    rules.extend(orders);
    rules.extend(bars);
    rules.sort_unstable();
    rules
}

/// The rank of a moment among all starts and ends. If an end has a smaller rank than a start, it
/// came before that start.
type Moment = i64;

#[derive(Debug, Clone)]
struct Calls<'a> {
    calls: Vec<&'a ToolCall>,
    times: Vec<(Moment, Moment)>,
    n_ended: usize,
    /// True if the time of some call is unknown.
    is_unplaced: bool,
    first_start: Moment,
    first_end: Moment,
    last_start: Moment,
    last_end: Moment,
    /// The last start of a call that has ended. A call that has not ended satisfies nothing.
    last_answer: Moment,
}

/// A run: the calls of each tool for which rules are learned, and the tools of the first and the
/// last calls.
struct RunCalls<'a> {
    by_tool: BTreeMap<usize, Calls<'a>>,
    init: Option<&'a str>,
    end: Option<&'a str>,
}

/// The number of runs that support each relation of `a` before `b`.
#[derive(Debug, Clone, Copy, Default)]
struct PairSupport {
    together: usize,
    precedence: usize,
    response: usize,
    succession: usize,
    not_succession: usize,
}

struct Miner<'a> {
    tools: Vec<&'a str>,
    n_with: Vec<usize>,
    runs: Vec<RunCalls<'a>>,
    min_runs: usize,
    noise: f64,
}

fn frequencies<'a>(runs: &[&'a Trajectory]) -> BTreeMap<&'a str, usize> {
    let mut frequency: BTreeMap<&str, usize> = BTreeMap::new();
    for run in runs {
        let names: BTreeSet<&str> = run.tool_calls.iter().map(|call| &*call.name).collect();
        for name in names {
            *frequency.entry(name).or_default() += 1;
        }
    }
    frequency
}

/// Returns the number of tools without rules because these runs call more than `MAX_TOOLS` tools.
pub fn n_tools_left_out(runs: &[&Trajectory]) -> usize {
    frequencies(runs).len().saturating_sub(MAX_TOOLS)
}

impl<'a> Miner<'a> {
    fn new(runs: &[&'a Trajectory], min_runs: usize, noise: f64) -> Self {
        let mut tools: Vec<(&str, usize)> = frequencies(runs).into_iter().collect();
        tools.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
        tools.truncate(MAX_TOOLS);
        tools.sort_unstable();
        let ids: BTreeMap<&str, usize> = tools
            .iter()
            .enumerate()
            .map(|(tool, (name, _))| (*name, tool))
            .collect();
        Self {
            runs: runs.iter().map(|run| RunCalls::new(run, &ids)).collect(),
            n_with: tools.iter().map(|(_, n)| *n).collect(),
            tools: tools.into_iter().map(|(name, _)| name).collect(),
            min_runs,
            noise,
        }
    }

    /// Returns true if enough runs satisfy a rule, and few enough violate it.
    fn holds(&self, n_kept: usize, n_broken: usize) -> bool {
        n_kept >= self.min_runs && n_broken as f64 <= self.noise * (n_kept + n_broken) as f64
    }

    fn rule(&self, template: Template, a: usize, n_kept: usize, n_broken: usize) -> LearnedRule {
        LearnedRule {
            template,
            a: self.tools[a].to_owned(),
            b: None,
            number: None,
            same: Vec::new(),
            n_kept,
            n_broken,
        }
    }

    fn pair_rule(&self, template: Template, pair: Pair, n_kept: usize, of: usize) -> LearnedRule {
        LearnedRule {
            b: Some(self.tools[pair.b].to_owned()),
            ..self.rule(template, pair.a, n_kept, of - n_kept)
        }
    }

    /// Learns `exactly` for each tool, or else `existence` and `absence`.
    fn counts(&self) -> Vec<LearnedRule> {
        let n_runs = self.runs.len();
        let mut rules = Vec::new();
        for tool in 0..self.tools.len() {
            // For each run, the number of ended calls and of all calls of the tool.
            let mut counts: Vec<(usize, usize)> = self
                .runs
                .iter()
                .map(|run| {
                    run.by_tool
                        .get(&tool)
                        .map_or((0, 0), |calls| (calls.n_ended, calls.calls.len()))
                })
                .collect();
            counts.sort_unstable();
            let median = counts[n_runs / 2].0;
            let with_number = |template, number, n_kept: usize| LearnedRule {
                number: Some(number),
                ..self.rule(template, tool, n_kept, n_runs - n_kept)
            };
            let exact = counts
                .iter()
                .filter(|(ended, all)| *ended == median && *all == median)
                .count();
            if median > 0 && self.holds(exact, n_runs - exact) {
                rules.push(with_number(Template::Exactly, median, exact));
                continue;
            }
            let least = |min: usize| counts.iter().filter(|(ended, _)| *ended >= min).count();
            let n_least = least(1);
            if self.holds(n_least, n_runs - n_least) {
                let min = (2..=median)
                    .rev()
                    .find(|min| self.holds(least(*min), n_runs - least(*min)))
                    .unwrap_or(1);
                rules.push(with_number(Template::Existence, min, least(min)));
            }
            let most = |max: usize| counts.iter().filter(|(_, all)| *all <= max).count();
            let max = (1..=MAX_ABSENCE).find(|max| self.holds(most(*max), n_runs - most(*max)));
            if let Some(max) = max {
                rules.push(with_number(Template::Absence, max, most(max)));
            }
        }
        rules
    }

    fn firsts_and_lasts(&self) -> Vec<LearnedRule> {
        let n_called = self.runs.iter().filter(|run| run.called()).count();
        let mut rules = Vec::new();
        for (tool, name) in self.tools.iter().enumerate() {
            let count = |place: fn(&RunCalls<'a>) -> Option<&'a str>| {
                let runs = self.runs.iter().filter(|run| place(run) == Some(*name));
                runs.count()
            };
            for (template, n) in [
                (Template::Init, count(|run| run.init)),
                (Template::End, count(|run| run.end)),
            ] {
                if self.holds(n, n_called - n) {
                    rules.push(self.rule(template, tool, n, n_called - n));
                }
            }
        }
        rules
    }

    fn pairs(&self) -> BTreeMap<Pair, PairSupport> {
        let mut pairs: BTreeMap<Pair, PairSupport> = BTreeMap::new();
        for run in &self.runs {
            for (&a, first) in &run.by_tool {
                for (&b, second) in run.by_tool.iter().filter(|(b, _)| **b != a) {
                    let support = pairs.entry(Pair { a, b }).or_default();
                    // Precedence: each `b` has an `a` before it. Response: each `a` has a `b` after
                    // it. Some: at least one `a` is before a `b`.
                    let precedence = first.first_end < second.first_start;
                    let response = first.last_end < second.last_answer;
                    let may_be = first.is_unplaced || second.is_unplaced;
                    let some = may_be || first.first_end < second.last_start;
                    support.together += 1;
                    support.precedence += usize::from(precedence);
                    support.response += usize::from(response);
                    support.succession += usize::from(precedence && response);
                    support.not_succession += usize::from(!some);
                }
            }
        }
        pairs
    }

    /// Learns `precedence`, `response`, `succession`, `not_succession` and `not_coexistence`. Skips
    /// most rules that other rules imply.
    fn orders_and_bars(
        &self,
        pairs: &BTreeMap<Pair, PairSupport>,
        counts: &[LearnedRule],
    ) -> (Vec<LearnedRule>, Vec<LearnedRule>) {
        let select = |support: fn(&PairSupport) -> usize, active: fn(Pair) -> usize| {
            let holds = |(pair, seen): (&Pair, &PairSupport)| {
                let n_kept = support(seen);
                self.holds(n_kept, self.n_with[active(*pair)] - n_kept)
            };
            let chosen = pairs.iter().filter(|entry| holds(*entry));
            chosen.map(|(pair, _)| *pair).collect::<BTreeSet<Pair>>()
        };
        let all_precedences = select(|seen| seen.precedence, |pair| pair.b);
        let all_responses = select(|seen| seen.response, |pair| pair.a);
        let names = |template| -> BTreeSet<&str> {
            let chosen = counts.iter().filter(|rule| rule.template == template);
            chosen.map(|rule| rule.a.as_str()).collect()
        };
        let (inits, ends) = (names(Template::Init), names(Template::End));
        let mut precedences = reduced(&all_precedences);
        precedences.retain(|pair| !inits.contains(self.tools[pair.a]));
        let mut responses = reduced(&all_responses);
        responses.retain(|pair| !ends.contains(self.tools[pair.b]));

        let mut orders = Vec::new();
        for pair in precedences.union(&responses) {
            let seen = pairs[pair];
            let (template, n_kept, of) =
                match (precedences.contains(pair), responses.contains(pair)) {
                    (true, true) => {
                        let either = self.n_with[pair.a] + self.n_with[pair.b] - seen.together;
                        (Template::Succession, seen.succession, either)
                    }
                    (true, false) => (Template::Precedence, seen.precedence, self.n_with[pair.b]),
                    (false, _) => (Template::Response, seen.response, self.n_with[pair.a]),
                };
            orders.push(LearnedRule {
                same: self.agreed_arguments(template, *pair),
                ..self.pair_rule(template, *pair, n_kept, of)
            });
        }

        let at_most_once: BTreeSet<&str> = counts
            .iter()
            .filter(|rule| {
                rule.number == Some(1)
                    && matches!(rule.template, Template::Exactly | Template::Absence)
            })
            .map(|rule| rule.a.as_str())
            .collect();
        let is_once = |tool: usize| at_most_once.contains(self.tools[tool]);
        let mut bars = Vec::new();
        for (pair, seen) in pairs {
            let reverse = Pair {
                a: pair.b,
                b: pair.a,
            };
            // If a single `b` precedes every `a`, or a single `a` follows every `b`, another rule
            // already implies that no `b` follows an `a`.
            let implied = (all_precedences.contains(&reverse) && is_once(reverse.a))
                || (all_responses.contains(&reverse) && is_once(reverse.b));
            if !implied && self.holds(seen.not_succession, seen.together - seen.not_succession) {
                let (kept, of) = (seen.not_succession, seen.together);
                bars.push(self.pair_rule(Template::NotSuccession, *pair, kept, of));
            }
        }
        bars.extend(self.strangers(pairs));
        (orders, bars)
    }

    /// Learns `not_coexistence`: pairs of frequent tools that, apart from `noise`, no run called
    /// together.
    fn strangers(&self, pairs: &BTreeMap<Pair, PairSupport>) -> Vec<LearnedRule> {
        let n_runs = self.runs.len() as f64;
        let mut rules = Vec::new();
        for a in 0..self.tools.len() {
            for b in a + 1..self.tools.len() {
                let together = pairs.get(&Pair { a, b }).map_or(0, |seen| seen.together);
                let expected = self.n_with[a] as f64 * self.n_with[b] as f64 / n_runs;
                let either = self.n_with[a] + self.n_with[b] - together;
                if expected >= MIN_EXPECTED_TOGETHER && self.holds(either - together, together) {
                    let pair = Pair { a, b };
                    let kept = either - together;
                    rules.push(self.pair_rule(Template::NotCoexistence, pair, kept, either));
                }
            }
        }
        rules
    }

    /// Returns the arguments on which the calls of an order rule agree in every run. Each argument
    /// must have enough distinct values to rule out a coincidence.
    fn agreed_arguments(&self, template: Template, pair: Pair) -> Vec<String> {
        let mut shared: Option<BTreeSet<&str>> = None;
        for calls in self.runs.iter().flat_map(|run| {
            [pair.a, pair.b]
                .into_iter()
                .filter_map(|tool| run.by_tool.get(&tool))
        }) {
            for call in &calls.calls {
                let keys = argument_names(call);
                shared = Some(match shared {
                    None => keys,
                    Some(shared) => shared.intersection(&keys).copied().collect(),
                });
            }
        }
        let mut agreed: Vec<&str> = Vec::new();
        for key in shared.unwrap_or_default() {
            agreed.push(key);
            if !self.agree(template, pair, &agreed) {
                agreed.pop();
            }
        }
        agreed
            .into_iter()
            .map(|key| format!("args.{key}"))
            .collect()
    }

    /// Returns true if every activation of a rule has a partner with equal arguments, and the last
    /// of the arguments has enough distinct values.
    fn agree(&self, template: Template, pair: Pair, keys: &[&str]) -> bool {
        let last = keys.last().copied();
        let mut distinct = BTreeSet::new();
        for run in &self.runs {
            let none = Calls::default();
            let first = run.by_tool.get(&pair.a).unwrap_or(&none);
            let second = run.by_tool.get(&pair.b).unwrap_or(&none);
            // For each value, the earliest end of an `a` and the latest start of an ended `b`.
            let (mut ends, mut starts) = (BTreeMap::new(), BTreeMap::new());
            for (call, (_, end)) in first.calls.iter().zip(&first.times) {
                let Some(values) = argument_values(call, keys) else {
                    return false;
                };
                let earliest = ends.entry(values).or_insert(*end);
                *earliest = (*earliest).min(*end);
            }
            for (call, (start, _)) in second.calls.iter().zip(&second.times) {
                let Some(values) = argument_values(call, keys) else {
                    return false;
                };
                distinct.extend(last.and_then(|key| argument_values(call, &[key])));
                if template != Template::Response
                    && ends.get(&values).is_none_or(|end| end >= start)
                {
                    return false;
                }
                if !call.partial {
                    let latest = starts.entry(values).or_insert(*start);
                    *latest = (*latest).max(*start);
                }
            }
            if template != Template::Precedence {
                for (call, (_, end)) in first.calls.iter().zip(&first.times) {
                    let values = argument_values(call, keys).unwrap_or_default();
                    if starts.get(&values).is_none_or(|start| end >= start) {
                        return false;
                    }
                }
            }
        }
        distinct.len() >= MIN_DISTINCT_VALUES
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    a: usize,
    b: usize,
}

/// Removes the pairs that two other pairs imply.
fn reduced(pairs: &BTreeSet<Pair>) -> BTreeSet<Pair> {
    let mut following: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for pair in pairs {
        following.entry(pair.a).or_default().push(pair.b);
    }
    let is_implied = |pair: &Pair| {
        following[&pair.a].iter().any(|&middle| {
            let (through, back) = (
                Pair {
                    a: middle,
                    b: pair.b,
                },
                Pair {
                    a: middle,
                    b: pair.a,
                },
            );
            // With noise, two tools can follow each other in both directions. Such pairs imply
            // nothing.
            pairs.contains(&through) && !pairs.contains(&back)
        })
    };
    let kept = pairs.iter().filter(|pair| !is_implied(pair));
    kept.copied().collect()
}

impl Default for Calls<'_> {
    fn default() -> Self {
        Self {
            calls: Vec::new(),
            times: Vec::new(),
            n_ended: 0,
            is_unplaced: false,
            first_start: Moment::MAX,
            first_end: Moment::MAX,
            last_start: Moment::MIN,
            last_end: Moment::MIN,
            last_answer: Moment::MIN,
        }
    }
}

impl<'a> RunCalls<'a> {
    fn new(run: &'a Trajectory, ids: &BTreeMap<&str, usize>) -> Self {
        let intervals = Intervals::new(run, Concurrency::Interval);
        let times: Vec<(Moment, Moment)> = (intervals
            .start
            .iter()
            .copied()
            .zip(intervals.end.iter().copied()))
        .collect();
        let mut by_tool: BTreeMap<usize, Calls<'a>> = BTreeMap::new();
        for (call_idx, (call, time)) in run.tool_calls.iter().zip(&times).enumerate() {
            let Some(tool) = ids.get(&*call.name) else {
                continue;
            };
            let (start, end) = *time;
            let calls = by_tool.entry(*tool).or_default();
            calls.calls.push(call);
            calls.times.push(*time);
            calls.n_ended += usize::from(!call.partial);
            calls.is_unplaced |= intervals.is_unplaced(call_idx);
            calls.first_start = calls.first_start.min(start);
            calls.first_end = calls.first_end.min(end);
            calls.last_start = calls.last_start.max(start);
            calls.last_end = calls.last_end.max(end);
            if !call.partial {
                calls.last_answer = calls.last_answer.max(start);
            }
        }
        // The tool of the first calls (no call precedes them), and the tool of the last calls.
        let first_end = times.iter().map(|(_, end)| *end).min();
        let last_start = times.iter().map(|(start, _)| *start).max();
        let only_tool = |is_there: &dyn Fn(&(Moment, Moment)) -> bool| {
            let mut names = run
                .tool_calls
                .iter()
                .zip(&times)
                .filter(|(_, time)| is_there(time))
                .map(|(call, _)| (!call.partial).then_some(&*call.name));
            let name = names.next()?;
            names.all(|other| other == name).then_some(name).flatten()
        };
        Self {
            init: only_tool(&|(start, _)| first_end.is_some_and(|end| *start <= end)),
            end: only_tool(&|(_, end)| last_start.is_some_and(|start| *end >= start)),
            by_tool,
        }
    }

    fn called(&self) -> bool {
        !self.by_tool.is_empty()
    }
}

/// Returns the names of a call's arguments, except names that a path cannot express: the empty name
/// and names with `.` or `*`.
fn argument_names(call: &ToolCall) -> BTreeSet<&str> {
    let whole = call.args.as_ref().filter(|args| !args.is_cut());
    let map = whole.and_then(|args| args.json().as_object());
    let names = map.into_iter().flat_map(|map| map.keys());
    names
        .map(String::as_str)
        .filter(|name| !name.is_empty() && !name.contains(['.', '*']))
        .collect()
}

/// Returns the values of these arguments as JSON texts. `None` if a value is missing, null or cut.
fn argument_values(call: &ToolCall, keys: &[&str]) -> Option<String> {
    let args = call.args.as_ref().filter(|args| !args.is_cut())?;
    let values: Option<Vec<String>> = keys
        .iter()
        .map(|key| args.json().get(key).filter(|value| !value.is_null()))
        .map(|value| value.map(ToString::to_string))
        .collect();
    values.map(|values| values.join("\n"))
}
