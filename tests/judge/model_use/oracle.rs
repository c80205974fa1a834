//! Compares the limits on model calls and tokens with a recursive count, on random trees of agents,
//! models, tools and chains with usage in random spellings. Also tests properties: a wrapper
//! changes nothing, hidden usage never turns a definite answer into the opposite one, and a result
//! that is certain for a part of a tree does not change. Does not cover two instrumentations of one
//! call.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Cut, Node, judged, rules};

/// The limits that are compared. Each is in the middle of the range that trees reach.
const LIMITS: [(&str, u64); 4] = [
    ("max_model_calls", 3),
    ("max_input_tokens", 40),
    ("max_output_tokens", 20),
    ("max_tokens", 60),
];

/// The recorded input tokens and output tokens of a model call.
type Usage = [Option<u64>; 2];

#[derive(Debug, Clone)]
struct Made {
    kind: &'static str,
    parent: Option<usize>,
    usage: Usage,
    /// Selects the spelling of the usage.
    spelling: usize,
}

const SPELLINGS: [[&str; 2]; 6] = [
    ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"],
    [
        "gen_ai.usage.prompt_tokens",
        "gen_ai.usage.completion_tokens",
    ],
    ["llm.token_count.prompt", "llm.token_count.completion"],
    ["llm.usage.prompt_tokens", "llm.usage.completion_tokens"],
    ["ai.usage.inputTokens", "ai.usage.outputTokens"],
    ["ai.usage.promptTokens", "ai.usage.completionTokens"],
];

impl Made {
    fn node(&self, at: usize, n: usize) -> Node {
        let mut attributes = json!({});
        for (side, key) in SPELLINGS[self.spelling % SPELLINGS.len()]
            .iter()
            .enumerate()
        {
            if let Some(tokens) = self.usage[side] {
                attributes[*key] = json!(tokens);
                // Half of the input tokens were cached. They must not be added to the input tokens.
                if side == 0 && self.spelling.is_multiple_of(5) {
                    attributes["gen_ai.usage.cache_read.input_tokens"] = json!(tokens / 2);
                }
            }
        }
        if self.kind == "agent" {
            attributes["gen_ai.agent.name"] = json!(format!("agent {at}"));
        }
        // Children lie within their parents, and no two times are equal.
        let (at, n) = (at as u64, n as u64);
        Node::new(self.kind, self.parent, (at, 3 * n - at), attributes)
    }
}

fn nodes(tree: &[Made]) -> Vec<Node> {
    let made = tree.iter().enumerate();
    made.map(|(at, made)| made.node(at, tree.len())).collect()
}

/// Returns the agent and the details of the limits of each evaluation.
fn limits(tree: &[Made], scope: &str, arriving: &[usize], cut: Cut) -> Vec<(String, Value)> {
    let fields: serde_json::Map<String, Value> = LIMITS
        .iter()
        .map(|(name, most)| ((*name).to_owned(), json!(most)))
        .collect();
    let criterion = json!({ "name": "c", "scope": scope, "evaluate": { "efficiency": fields } });
    let is_drained = arriving.len() < tree.len() || cut != Cut::Whole;
    let order = arriving.iter().copied();
    let evaluations = judged(&rules(&criterion), &nodes(tree), order, cut, is_drained);
    let agent = |evaluation: &judge::evaluate::Evaluation| {
        evaluation
            .trajectory
            .agent
            .as_deref()
            .unwrap_or_default()
            .to_owned()
    };
    evaluations
        .iter()
        .map(|evaluation| (agent(evaluation), evaluation.details()["limits"].clone()))
        .collect()
}

// === The oracle ===

/// Bounds of a sum; the upper bound is `None` if unknown.
type Sum = (u64, Option<u64>);

/// The input and the output of one model call.
type Call = [Sum; 2];

fn call(usage: Usage) -> Call {
    usage.map(|tokens| (tokens.unwrap_or_default(), tokens))
}

fn plus(one: Sum, other: Sum) -> Sum {
    (
        one.0 + other.0,
        one.1.zip(other.1).map(|(one, other)| one + other),
    )
}

fn sum(calls: &[Call], sides: &[usize]) -> Sum {
    let sides = calls
        .iter()
        .flat_map(|call| sides.iter().map(|&side| call[side]));
    sides.fold((0, Some(0)), plus)
}

fn children(tree: &[Made], at: usize) -> impl Iterator<Item = usize> {
    let is_child = move |child: &usize| tree[*child].parent == Some(at);
    (0..tree.len()).filter(is_child)
}

/// Returns the summed usage of the model calls below a span, except those inside agents and tools;
/// `None` if there are none.
fn usage_below(tree: &[Made], at: usize) -> Option<Call> {
    let mut found: Option<Call> = None;
    for child in children(tree, at) {
        let made = &tree[child];
        let usage = match made.kind {
            "agent" | "tool" => None,
            "model" => Some(usage_of_model(tree, child)),
            _ => usage_below(tree, child),
        };
        let Some(usage) = usage else { continue };
        // If one of several calls did not record a number, the sum of the other calls' numbers is
        // still a lower bound.
        found = Some(match found {
            None => usage,
            Some(sum) => [0, 1].map(|side| plus(sum[side], usage[side])),
        });
    }
    found
}

fn usage_of_model(tree: &[Made], at: usize) -> Call {
    match tree[at].usage {
        [None, None] => usage_below(tree, at).unwrap_or(call([None, None])),
        usage => call(usage),
    }
}

/// Collects the model calls at or below a span, each with the agent that made it. A model span
/// inside another is part of its call, unless an agent or a tool lies between them.
fn model_calls(tree: &[Made], at: usize, agent: usize, found: &mut Vec<(usize, Call)>) {
    let made = &tree[at];
    let agent = if made.kind == "agent" { at } else { agent };
    let mut is_within = false;
    if made.kind == "model" {
        found.push((agent, usage_of_model(tree, at)));
        is_within = true;
    }
    for child in children(tree, at) {
        if is_within {
            beyond(tree, child, agent, found)
        } else {
            model_calls(tree, child, agent, found)
        }
    }
}

/// Collects the model calls of agents and tools at or below a span that is inside a model call.
fn beyond(tree: &[Made], at: usize, agent: usize, found: &mut Vec<(usize, Call)>) {
    if matches!(tree[at].kind, "agent" | "tool") {
        return model_calls(tree, at, agent, found);
    }
    for child in children(tree, at) {
        beyond(tree, child, agent, found);
    }
}

/// Collects the totals of agents; skips agents inside an agent that has a total.
fn totals(tree: &[Made], at: usize, found: &mut Vec<Call>) {
    if tree[at].kind == "agent" && tree[at].usage.iter().any(Option::is_some) {
        found.push(call(tree[at].usage));
        return;
    }
    for child in children(tree, at) {
        totals(tree, child, found);
    }
}

fn expected(tree: &[Made]) -> Value {
    let mut calls = Vec::new();
    model_calls(tree, 0, 0, &mut calls);
    let mut usage: Vec<Call> = calls.iter().map(|(_, usage)| *usage).collect();
    let mut is_total = false;
    // Tokens that may have been used in addition to `usage`, such as the totals of agents whose
    // model calls were not seen.
    let mut possible = Vec::new();
    if calls.is_empty() {
        totals(tree, 0, &mut usage);
        is_total = !usage.is_empty();
        if is_total && !tree[0].usage.iter().any(Option::is_some) {
            possible.push(call([None, None]));
        }
    } else {
        unseen_agents(tree, 0, &mut possible);
    }
    let mut limits = json!({});
    for (name, most) in LIMITS {
        let sides: &[usize] = match name {
            "max_input_tokens" => &[0],
            "max_output_tokens" => &[1],
            _ => &[0, 1],
        };
        let (is_seen, (least, greatest)) = match name {
            "max_model_calls" => {
                let n_calls = calls.len() as u64;
                (n_calls > 0, (n_calls, Some(n_calls)))
            }
            _ => {
                let (least, greatest) = sum(&usage, sides);
                let (_, further) = sum(&possible, sides);
                let is_seen = is_total || !calls.is_empty();
                (is_seen, (least, greatest.zip(further).map(|(a, b)| a + b)))
            }
        };
        let kept = if is_seen && least > most {
            json!(false)
        } else if is_seen && greatest.is_some_and(|greatest| greatest <= most) {
            json!(true)
        } else {
            Value::Null
        };
        let actual = is_seen.then_some(least);
        let mut limit = json!({ "limit": most, "actual": actual, "kept": kept });
        if is_seen && greatest != Some(least) {
            limit["at_least"] = json!(true);
        }
        if is_total && name != "max_model_calls" {
            limit["from"] = json!("agent");
        }
        limits[name] = limit;
    }
    limits
}

/// Collects the outermost totals of agents below which no model was called.
fn unseen_agents(tree: &[Made], at: usize, found: &mut Vec<Call>) {
    let mut calls = Vec::new();
    model_calls(tree, at, at, &mut calls);
    if tree[at].kind == "agent" && calls.is_empty() && !has_model(tree, at) {
        return totals(tree, at, found);
    }
    for child in children(tree, at) {
        unseen_agents(tree, child, found);
    }
}

fn has_model(tree: &[Made], at: usize) -> bool {
    tree[at].kind == "model" || children(tree, at).any(|child| has_model(tree, child))
}

// === Trees ===

fn usage() -> impl Strategy<Value = Usage> {
    let side = || prop_oneof![4 => (0..20_u64).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        3 => [side(), side()],
        2 => Just([None, None]),
    ]
}

fn made() -> impl Strategy<Value = Made> {
    let kind = prop_oneof![
        1 => Just("agent"),
        4 => Just("model"),
        2 => Just("tool"),
        2 => Just("chain"),
        1 => Just("plain"),
    ];
    (kind, any::<prop::sample::Index>(), usage(), 0..30_usize).prop_map(
        |(kind, parent, usage, spelling)| Made {
            kind,
            // Any number; `trees` reduces it modulo the number of earlier spans.
            parent: Some(parent.index(1 << 20)),
            usage: if kind == "tool" { [None, None] } else { usage },
            spelling,
        },
    )
}

fn trees() -> impl Strategy<Value = Vec<Made>> {
    let root = usage().prop_map(|usage| Made {
        kind: "agent",
        parent: None,
        usage,
        spelling: 0,
    });
    (root, prop::collection::vec(made(), 1..10)).prop_map(|(root, rest)| {
        let mut tree = vec![root];
        for mut made in rest {
            made.parent = made.parent.map(|parent| parent % tree.len());
            tree.push(made);
        }
        tree
    })
}

fn all(tree: &[Made]) -> Vec<usize> {
    (0..tree.len()).collect()
}

fn definite(limits: &Value) -> impl Iterator<Item = (&'static str, bool)> {
    let kept = LIMITS.map(|(name, _)| (name, limits[name]["kept"].as_bool()));
    kept.into_iter()
        .filter_map(|(name, kept)| Some((name, kept?)))
}

proptest! {
    #[test]
    fn limits_are_those_of_a_recursive_count(tree in trees()) {
        let found = limits(&tree, "trace", &all(&tree), Cut::Whole);
        prop_assert_eq!(found.len(), 1);
        prop_assert_eq!(&found[0].1, &expected(&tree));
    }

    #[test]
    fn a_wrapper_changes_nothing(
        tree in trees(),
        around in any::<prop::sample::Index>(),
        is_chain in any::<bool>(),
        total in usage(),
    ) {
        // Selects any span except the root.
        let around = 1 + around.index(tree.len() - 1);
        let mut wrapped = tree.clone();
        wrapped[around].parent = Some(tree.len());
        wrapped.push(Made {
            kind: if is_chain { "chain" } else { "plain" },
            parent: tree[around].parent,
            usage: total,
            spelling: 2,
        });
        let plain = limits(&tree, "trace", &all(&tree), Cut::Whole);
        prop_assert_eq!(limits(&wrapped, "trace", &all(&wrapped), Cut::Whole), plain);
    }

    #[test]
    fn an_agent_without_models_in_others_is_counted_alone(tree in trees()) {
        for (agent, found) in limits(&tree, "agent", &all(&tree), Cut::Whole) {
            let at: usize = agent["agent ".len()..].parse().unwrap();
            let mut calls = Vec::new();
            model_calls(&tree, 0, 0, &mut calls);
            let own = calls.iter().filter(|(agent, _)| *agent == at);
            let own: Vec<Call> = own.map(|(_, usage)| *usage).collect();
            if own.is_empty() {
                prop_assert_eq!(&found["max_model_calls"]["actual"], &Value::Null);
                continue;
            }
            let (least, most) = sum(&own, &[0, 1]);
            prop_assert_eq!(&found["max_tokens"]["actual"], &json!(least));
            prop_assert_eq!(&found["max_tokens"]["at_least"] == true, most != Some(least));
            prop_assert_eq!(&found["max_model_calls"]["actual"], &json!(own.len()));
        }
    }

    #[test]
    fn hidden_usage_never_turns_an_answer(
        tree in trees(),
        hidden in any::<prop::sample::Index>(),
        side in 0..2_usize,
    ) {
        let hidden = hidden.index(tree.len());
        // A span inside a model span may record numbers that differ from those of the model span.
        prop_assume!(tree[hidden].kind != "model" || usage_below(&tree, hidden).is_none());
        let before = limits(&tree, "trace", &all(&tree), Cut::Whole);
        let mut less = tree.clone();
        less[hidden].usage[side] = None;
        let after = limits(&less, "trace", &all(&less), Cut::Whole);
        for (name, kept) in definite(&after[0].1) {
            let was = before[0].1[name]["kept"].as_bool();
            prop_assert!(was.is_none_or(|was| was == kept), "{} of {:?}", name, before);
        }
    }

    #[test]
    fn what_is_certain_in_a_part_stays_so(
        tree in trees(),
        is_there in prop::collection::vec(any::<bool>(), 11),
    ) {
        let part: Vec<usize> = all(&tree).into_iter().filter(|&at| is_there[at]).collect();
        let whole = expected(&tree);
        for scope in ["trace", "agent"] {
            let whole: Vec<(String, Value)> = match scope {
                "trace" => vec![(String::new(), whole.clone())],
                _ => limits(&tree, "agent", &all(&tree), Cut::Whole),
            };
            for (agent, found) in limits(&tree, scope, &part, Cut::RootOpen) {
                let same = whole.iter().find(|(name, _)| scope == "trace" || *name == agent);
                let Some((_, whole)) = same else { continue };
                for (name, kept) in definite(&found) {
                    prop_assert_eq!(whole[name]["kept"].as_bool(), Some(kept), "{}", name);
                }
            }
        }
    }
}
