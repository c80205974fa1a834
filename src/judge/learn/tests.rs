//! Tests learning with generated runs: planted shifts are found, windows without a shift raise
//! hardly any alarm, and the order of the runs does not matter.

use std::collections::BTreeMap;
use std::sync::Arc;

use otlp::span::TraceId;
use serde_json::{Value, json};

use super::{
    Baseline, DriftReport, GroupKey, LearnedRule, Measure, Template, compare, learn_rules,
};
use crate::extract::{CallUncertainty, CapturedParts, Payload, ToolCall, Trajectory};

const SECOND: u64 = 1_000_000_000;

/// Returns a call that begins and ends at these seconds.
fn call(name: &str, start: u64, end: u64) -> ToolCall {
    ToolCall {
        name: Arc::from(name),
        call_id: None,
        args: None,
        result: None,
        captured: CapturedParts::default(),
        error: false,
        agent: None,
        agent_run: None,
        step: 0,
        parallel_group: None,
        span_id: None,
        start_unix_nanos: start * SECOND,
        end_unix_nanos: end * SECOND,
        convention: Arc::from("tool.name"),
        partial: false,
        untimed: false,
        uncertainty: CallUncertainty::default(),
    }
}

fn with_args(call: ToolCall, args: Value) -> ToolCall {
    ToolCall {
        args: Some(Payload::new(args.to_string(), args, false)),
        ..call
    }
}

fn run(calls: Vec<ToolCall>) -> Trajectory {
    Trajectory {
        service: Arc::from("s"),
        root: Arc::from("run"),
        agent: Some(Arc::from("shop")),
        n_spans: 1,
        ..Trajectory::of_calls(TraceId::try_new(&[1; 16]).unwrap(), calls)
    }
}

/// Returns a run of consecutive calls, each one second long.
fn line(names: &[&str]) -> Trajectory {
    run(names
        .iter()
        .zip(1..)
        .map(|(name, second)| call(name, 2 * second, 2 * second + 1))
        .collect())
}

fn rules_of(runs: &[Trajectory], min_runs: usize, noise: f64) -> Vec<LearnedRule> {
    let runs: Vec<&Trajectory> = runs.iter().collect();
    learn_rules(&runs, min_runs, noise)
}

fn texts(rules: &[LearnedRule]) -> Vec<String> {
    let text = |rule: &LearnedRule| {
        let mut words = vec![rule.template.as_str().to_owned(), rule.a.clone()];
        words.extend(rule.b.clone());
        words.extend(rule.number.map(|number| number.to_string()));
        words.extend(rule.same.clone());
        words.join(" ")
    };
    rules.iter().map(text).collect()
}

#[test]
fn a_chain_is_told_once_and_not_by_what_follows_from_it() {
    let runs: Vec<Trajectory> = (0..10)
        .map(|n| {
            let mut names = vec!["search", "check"];
            names.extend(["note"].iter().filter(|_| n % 2 == 0));
            names.extend(["book", "confirm"]);
            line(&names)
        })
        .collect();
    assert_eq!(
        texts(&rules_of(&runs, 5, 0.0)),
        [
            "exactly book 1",
            "exactly check 1",
            "exactly confirm 1",
            "exactly search 1",
            "absence note 1",
            "init search",
            "end confirm",
            "succession check book",
            // `confirm` at the end does not show that `book` came first.
            "precedence book confirm",
            "precedence check note",
            "response note book",
            "response search check",
        ]
    );
}

#[test]
fn calls_that_overlap_have_no_order() {
    let apart = || run(vec![call("a", 1, 2), call("b", 3, 4), call("c", 9, 10)]);
    let overlapping = || run(vec![call("a", 1, 5), call("b", 3, 7), call("c", 9, 10)]);
    let has_order = |runs: &[Trajectory]| {
        texts(&rules_of(runs, 3, 0.0))
            .iter()
            .any(|rule| rule == "init a" || rule.starts_with("succession a b"))
    };
    assert!(has_order(&[apart(), apart(), apart()]));
    assert!(!has_order(&[apart(), apart(), overlapping()]));
}

#[test]
fn a_rule_needs_enough_runs_that_keep_it() {
    let mut runs: Vec<Trajectory> = (0..9).map(|_| line(&["x", "a", "b", "x"])).collect();
    let precedence = |runs: &[Trajectory], noise| {
        rules_of(runs, 10, noise)
            .into_iter()
            .find(|rule| rule.template == Template::Succession && rule.a == "a")
    };
    assert_eq!(precedence(&runs, 0.0), None, "nine runs");
    runs.push(line(&["x", "a", "b", "x"]));
    assert_eq!(precedence(&runs, 0.0).map(|rule| rule.n_kept), Some(10));
    runs.push(line(&["x", "b", "a", "x"]));
    assert_eq!(precedence(&runs, 0.0), None, "one run breaks it");
    let rule = precedence(&runs, 0.1).unwrap();
    assert_eq!((rule.n_kept, rule.n_broken), (10, 1));
}

#[test]
fn tools_that_never_meet_are_strangers_only_if_both_are_frequent() {
    let mut runs: Vec<Trajectory> = Vec::new();
    for _ in 0..15 {
        runs.push(line(&["card"]));
        runs.push(line(&["invoice"]));
    }
    runs.push(line(&["voucher"]));
    let strangers: Vec<String> = texts(&rules_of(&runs, 10, 0.0))
        .into_iter()
        .filter(|rule| rule.starts_with("not_coexistence"))
        .collect();
    assert_eq!(strangers, ["not_coexistence card invoice"]);
}

#[test]
fn arguments_on_which_calls_always_agree_are_part_of_the_rule() {
    let pair = |n: usize, other: usize| {
        let args = |order: usize| json!({ "order": order, "currency": "EUR" });
        run(vec![
            call("start", 1, 2),
            with_args(call("approve", 3, 4), args(n)),
            with_args(call("pay", 5, 6), args(other)),
            call("stop", 7, 8),
        ])
    };
    let same = |runs: &[Trajectory]| {
        let rules = rules_of(runs, 5, 0.0);
        let rule = rules
            .into_iter()
            .find(|rule| rule.template == Template::Succession && rule.a == "approve");
        rule.unwrap().same
    };
    let agreeing: Vec<Trajectory> = (0..6).map(|n| pair(n, n)).collect();
    assert_eq!(
        same(&agreeing),
        ["args.order"],
        "one currency is no evidence"
    );
    let one_differs: Vec<Trajectory> = (0..6).map(|n| pair(n, n.max(1))).collect();
    assert!(same(&one_differs).is_empty());
    let few: Vec<Trajectory> = (0..6).map(|n| pair(n % 4, n % 4)).collect();
    assert!(same(&few).is_empty(), "four values are an accident");
}

#[test]
fn a_call_that_has_not_ended_answers_nothing() {
    let open = || {
        let mut run = line(&["a", "b"]);
        run.tool_calls[1].partial = true;
        run
    };
    let texts = texts(&rules_of(&[open(), open(), open()], 3, 0.0));
    assert!(texts.contains(&"precedence a b".to_owned()) || texts.contains(&"init a".to_owned()));
    for wrong in [
        "exactly b 1",
        "existence b 1",
        "end b",
        "response a b",
        "succession a b",
    ] {
        assert!(!texts.contains(&wrong.to_owned()), "{wrong}: {texts:?}");
    }
}

// === drift ===

/// Generates reproducible numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Shift {
    None,
    OtherTool,
    Failures,
    MoreCalls,
    Slower,
}

/// Returns a run that searches several times, compares with a chance of one in three, and books.
fn shop(numbers: &mut Numbers, shift: Shift) -> Trajectory {
    let mut names = vec!["login"];
    let n_searches = 5 + numbers.below(10);
    names.extend((0..n_searches).map(|_| "search"));
    if numbers.one_in(3) {
        names.push("compare");
    }
    if shift == Shift::MoreCalls {
        let more = (names.len() + 2) / 5;
        names.extend((0..more + 1).map(|_| "search"));
    }
    names.push(if shift == Shift::OtherTool && numbers.one_in(10) { "reserve" } else { "book" });
    let fails = numbers.one_in(100) || (shift == Shift::Failures && numbers.one_in(10));
    let slow = if shift == Shift::Slower { 6 } else { 5 };
    run_of(names, fails, || (1 + numbers.below(4)) * slow)
}

/// Returns a run of consecutive calls. The last call may fail.
fn run_of(names: Vec<&str>, fails: bool, mut seconds: impl FnMut() -> u64) -> Trajectory {
    let mut second = 1;
    let mut calls = Vec::new();
    for name in names {
        let end = second + seconds();
        calls.push(call(name, second, end));
        second = end;
    }
    if let Some(last) = calls.last_mut() {
        last.error = fails;
    }
    run(calls)
}

/// A generator of runs. The arguments are the seed, the number of runs and the planted change.
type Runs = fn(u64, usize, Shift) -> Vec<Trajectory>;

fn shops(seed: u64, n: usize, shift: Shift) -> Vec<Trajectory> {
    let mut numbers = Numbers(seed);
    (0..n).map(|_| shop(&mut numbers, shift)).collect()
}

/// Returns a run of many tools in random order, as if the agent chose freely. Hardly any two of
/// these runs are equal.
fn wander(numbers: &mut Numbers, shift: Shift) -> Trajectory {
    const TOOLS: [&str; 12] = [
        "search", "open", "read", "edit", "list", "test", "build", "fetch", "grep", "diff", "log",
        "ask",
    ];
    let mut n_calls = 8 + numbers.below(20);
    if shift == Shift::MoreCalls {
        n_calls += n_calls / 5 + 1;
    }
    let mut names: Vec<&str> = (0..n_calls)
        .map(|_| TOOLS[numbers.below(12) as usize])
        .collect();
    if shift == Shift::OtherTool && numbers.one_in(10) {
        let at = numbers.below(n_calls) as usize;
        names[at] = "browse";
    }
    let fails = numbers.one_in(100) || (shift == Shift::Failures && numbers.one_in(10));
    let slow = if shift == Shift::Slower { 6 } else { 5 };
    run_of(names, fails, || (1 + numbers.below(4)) * slow)
}

fn wanders(seed: u64, n: usize, shift: Shift) -> Vec<Trajectory> {
    let mut numbers = Numbers(seed);
    (0..n).map(|_| wander(&mut numbers, shift)).collect()
}

fn grouped(runs: &[Trajectory]) -> BTreeMap<GroupKey, Vec<&Trajectory>> {
    super::group_runs(runs, |run| GroupKey {
        root: run.root.to_string(),
        agent: run.agent.as_deref().map(str::to_owned),
    })
}

fn drift(old: &[Trajectory], new: &[Trajectory]) -> DriftReport {
    compare(&Baseline::new(&grouped(old)), &grouped(new), 20)
}

fn drifted(drift: &DriftReport) -> Vec<&'static str> {
    let measurements = drift.groups.iter().flat_map(|group| &group.measurements);
    measurements
        .filter(|measurement| measurement.has_drifted() == Some(true))
        .map(|measurement| measurement.measure.as_str())
        .collect()
}

#[test]
fn planted_shifts_are_found_in_200_runs() {
    for runs in [shops as Runs, wanders] {
        let old = runs(1, 400, Shift::None);
        for (shift, measure) in [
            (Shift::OtherTool, Measure::ToolUse),
            (Shift::Failures, Measure::Errors),
            (Shift::MoreCalls, Measure::Calls),
            (Shift::Slower, Measure::Duration),
        ] {
            for seed in 2..6 {
                let found = drift(&old, &runs(seed, 200, shift));
                assert!(
                    drifted(&found).contains(&measure.as_str()),
                    "{}: {:?}",
                    measure.as_str(),
                    found.groups[0].measurements
                );
            }
        }
    }
}

#[test]
fn the_tool_that_a_tenth_of_the_runs_took_instead_is_named() {
    let found = drift(
        &wanders(1, 400, Shift::None),
        &wanders(2, 200, Shift::OtherTool),
    );
    let group = &found.groups[0];
    let (tool, [old, new]) = group.tool_use.as_ref().expect("it was compared");
    assert_eq!((tool.as_str(), *old), ("browse", 0.0));
    let measured = &group.measurements[0];
    assert_eq!(
        (measured.measure, measured.value),
        (Measure::ToolUse, Some(*new))
    );
    // `tool_mix` and `variants` do not drift: the tool's share of all calls is too small, and
    // nearly every run has its own sequence.
    assert_eq!(drifted(&found), ["tool_use"]);
}

#[test]
fn a_shift_of_every_agent_is_found_however_many_there_are() {
    let of_agents = |names: &[&str]| -> Vec<Trajectory> {
        let runs = (0..30 * 20).map(|n| Trajectory {
            agent: Some(Arc::from(format!("agent-{}", n % 30))),
            ..line(names)
        });
        runs.collect()
    };
    let found = drift(&of_agents(&["a", "b"]), &of_agents(&["a", "c"]));
    assert_eq!(found.groups.len(), 30);
    for group in &found.groups {
        let tool_use = &group.measurements[0];
        assert_eq!(tool_use.has_drifted(), Some(true), "{tool_use:?}");
    }
}

#[test]
fn windows_of_the_same_kind_raise_no_alarm() {
    // 100 windows at p = 0.01: the goal allows two alarms, Holm's correction promises at most one
    // on average.
    for (runs, n_baseline, n_window) in [(shops as Runs, 120, 40), (wanders, 60, 20)] {
        let baseline = Baseline::new(&grouped(&runs(1, n_baseline, Shift::None)));
        let n_alarms = (0..100)
            .filter(|window| {
                let new = runs(1000 + window, n_window, Shift::None);
                compare(&baseline, &grouped(&new), 20).has_drifted()
            })
            .count();
        assert!(n_alarms <= 2, "{n_alarms} of 100");
    }
}

#[test]
fn new_and_vanished_tools_and_variants_are_named() {
    let old: Vec<Trajectory> = (0..30).map(|_| line(&["a", "b", "b"])).collect();
    let new: Vec<Trajectory> = (0..30).map(|_| line(&["a", "a", "c"])).collect();
    let drift = drift(&old, &new);
    let group = &drift.groups[0];
    assert_eq!(
        (&*group.new_tools, &*group.vanished_tools),
        (&["c".to_owned()][..], &["b".to_owned()][..])
    );
    assert_eq!(
        group.new_variants,
        [(vec!["a".to_owned(), "c".to_owned()], 1.0)]
    );
    assert_eq!(drifted(&drift), ["tool_use", "tool_mix", "variants"]);
}

#[test]
fn the_order_of_the_runs_changes_nothing() {
    let (old, new) = (shops(1, 1500, Shift::None), shops(2, 60, Shift::OtherTool));
    let reverse = |runs: &[Trajectory]| runs.iter().rev().cloned().collect::<Vec<_>>();
    let json = |runs: &[Trajectory]| Baseline::new(&grouped(runs)).to_json().unwrap();
    assert_eq!(json(&old), json(&reverse(&old)));
    assert_eq!(drift(&old, &new), drift(&reverse(&old), &reverse(&new)));
    assert_eq!(rules_of(&old, 10, 0.0), rules_of(&reverse(&old), 10, 0.0));
}

#[test]
fn a_baseline_reads_back_and_a_changed_one_is_refused_with_its_place() {
    let runs = shops(1, 30, Shift::None);
    let text = Baseline::new(&grouped(&runs)).to_json().unwrap();
    assert_eq!(Baseline::parse(&text).unwrap().to_json().unwrap(), text);
    let refused = |text: &str| Baseline::parse(text).unwrap_err().to_string();
    for (from, to, message) in [
        (
            "\"version\":1",
            "\"version\":2",
            "has version 2, and this program reads version 1",
        ),
        ("\"version\":1,", "", "it has no `version`"),
        (
            "\"n_runs\":30",
            "\"n_runs\":3",
            "groups[0] has 30 runs, and `n_runs` says 3",
        ),
        (
            "\"n_runs\":30",
            "\"n_runs\":5000",
            "groups[0] has 30 runs, where a baseline of 5000 runs has 1000",
        ),
        (
            "\"version\":1",
            "\"version\":\"1\"",
            "its `version` is not a number",
        ),
        (
            "\"runs\":[[0,",
            "\"runs\":[[999,",
            "groups[0].runs[0] has sequence 999",
        ),
        ("\"n_runs\"", "\"n_rums\"", "unknown field `n_rums`"),
    ] {
        assert!(text.contains(from), "{from}: {text}");
        let error = refused(&text.replacen(from, to, 1));
        assert!(error.contains(message), "{error}");
        assert!(error.ends_with("write it anew with `spanscore learn --baseline FILE`"));
    }
    assert!(refused("{").contains("is not JSON"));
}

#[test]
fn too_few_runs_are_not_compared() {
    let drift = drift(&shops(1, 30, Shift::None), &shops(2, 19, Shift::Failures));
    assert!(drift.is_empty() && !drift.has_drifted());
    assert_eq!(drift.groups[0].n_runs, 19);
}
