//! Writes a first configuration, on request with criteria proposed from recorded runs. Its comments
//! warn that the recorded runs may not be good ones.

use std::collections::{BTreeMap, BTreeSet};

use judge::evaluate::lcs;
use judge::extract::Trajectory;
use judge::learn::{GroupKey, limits};
use located::to_yaml;
use serde_json::{Map, Value, json};

const HEAD: &str = "\
# The configuration of spanscore: ports, destinations, and the criteria that judge every trace.
# Everything is optional. Check this file with `spanscore validate`; see every key with \
`spanscore validate --print`.

# Agents send their telemetry here: OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 (gRPC) or \
http://localhost:4318 (HTTP).
receivers:
  otlp:
    grpc: { listen: \"127.0.0.1:4317\" }
    http: { listen: \"127.0.0.1:4318\" }

# spanscore forwards it, unchanged, to your tracing backend or Collector, and sends the scores \
there, too.
# Without an endpoint, telemetry is scored and not forwarded, and the scores are printed.
forward:
  # endpoint: https://otlp.example.com      # http(s)://host:port, and a path if the backend has one
  # headers: { authorization: \"Bearer ${env:OTLP_API_KEY}\" }
  # signals: [traces]                       # signals that the backend accepts; all if left out

";

const EXAMPLE: &str = "\
# The criteria that judge every trace. Without one, `spanscore run` prints the tool calls of runs, \
each with a criterion to paste here.
criteria:
  # - name: checkout-order
  #   description: customers are checked before an order is created
  #   select: { root: \"invoke_agent *\", calls: create_order }     \
# the traces to judge; all if left out
  #   evaluate:
  #     tool_call_order: { tool_calls_order: [validate_user, check_inventory, create_order] }
  #   threshold: 0.8                        \
# the lowest score that passes; 1.0 if left out
  # - name: authenticate-first
  #   description: before each transfer, an authentication had finished
  #   evaluate:
  #     constraints: { rules: [{ precedence: { a: \"^authenticate$\", b: \"^transfer$\" } }] }
";

const PROPOSED: &str = "\
# The criteria that judge every trace. They are proposed from recorded traces, and expect what was \
done there, which may not be what should be done.
# Remove calls that do not matter, and check that names and selectors are not too narrow.
# `spanscore learn` finds further rules that good runs follow, such as the order of two tools.
";

const NOTHING_TO_PROPOSE: &str = "\
# No tool call is common to all recorded runs of an agent, so nothing can be proposed; this is an \
example.
";

/// Returns a commented first configuration. With trajectories, it has at most two criteria for each
/// kind of run (equal root and agent). One expects, in order, calls that all recorded runs of the
/// kind made; the other limits the effort of such runs.
pub fn starter(trajectories: Option<&[Trajectory]>) -> String {
    let Some(trajectories) = trajectories else {
        return format!("{HEAD}{EXAMPLE}");
    };
    match starter_criteria(trajectories) {
        Some(criteria) => format!("{HEAD}{PROPOSED}{criteria}"),
        None => format!("{HEAD}{NOTHING_TO_PROPOSE}{EXAMPLE}"),
    }
}

/// Returns the criteria of [`starter`] about order and about effort, byte for byte but without
/// comments; `None` if there is nothing to propose.
pub fn starter_criteria(trajectories: &[Trajectory]) -> Option<String> {
    let (kinds, all) = (kinds(trajectories), keys(trajectories));
    let mut criteria = proposed(&kinds, &all);
    if criteria.is_empty() {
        return None;
    }
    criteria.extend(proposed_limits(&kinds, &all));
    Some(to_yaml(&json!({ "criteria": criteria })))
}

/// Returns the proposed criteria about order, ready to paste into a configuration; `None` if there
/// is nothing to propose.
pub fn proposal(trajectories: &[Trajectory]) -> Option<String> {
    let criteria = proposed(&kinds(trajectories), &keys(trajectories));
    (!criteria.is_empty()).then(|| to_yaml(&json!({ "criteria": criteria })))
}

/// Runs of one kind, and the calls that all of them made in the same order.
struct Kind<'a> {
    key: GroupKey,
    shared: Vec<&'a str>,
    runs: Vec<&'a Trajectory>,
}

fn kinds(trajectories: &[Trajectory]) -> Vec<Kind<'_>> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for trajectory in trajectories
        .iter()
        .filter(|trajectory| !trajectory.tool_calls.is_empty())
    {
        let key = key(trajectory);
        // Consecutive calls of one tool count once, because retries and loops are rarely part of a
        // rule. Names that contain an id are skipped, because later runs have other ids.
        let mut names: Vec<&str> = trajectory
            .tool_calls
            .iter()
            .map(|call| &*call.name)
            .filter(|name| !has_id(name))
            .collect();
        names.dedup();
        match kinds.iter_mut().find(|kind| kind.key == key) {
            Some(kind) => {
                kind.shared = common(&names, &kind.shared);
                kind.runs.push(trajectory);
            }
            None => kinds.push(Kind {
                key,
                shared: names,
                runs: vec![trajectory],
            }),
        }
    }
    kinds
}

/// Returns the root and agent of a run, as globs.
pub(super) fn key(run: &Trajectory) -> GroupKey {
    GroupKey {
        root: glob(&run.root),
        agent: run.agent.as_deref().map(glob),
    }
}

fn keys(trajectories: &[Trajectory]) -> BTreeSet<GroupKey> {
    trajectories.iter().map(key).collect()
}

fn proposed(kinds: &[Kind<'_>], all: &BTreeSet<GroupKey>) -> Vec<Value> {
    let mut taken = BTreeMap::new();
    let with_shared = kinds.iter().filter(|kind| !kind.shared.is_empty());
    let criterion = |kind: &Kind<'_>| {
        let expected = json!({ "tool_calls_order": kind.shared });
        kind.criterion(
            unused(&kind.name("order"), &mut taken),
            format!("what {} did, in this order", kind.n_recorded()),
            json!({ "tool_call_order": expected }),
            all,
        )
    };
    with_shared.map(criterion).collect()
}

/// Returns limits that are well above the effort of the recorded runs, so that only runs that are
/// out of hand exceed them.
fn proposed_limits(kinds: &[Kind<'_>], all: &BTreeSet<GroupKey>) -> Vec<Value> {
    const LEAST_REPEATS: u64 = 2;
    let mut taken = BTreeMap::new();
    let criterion = |kind: &Kind<'_>| {
        let mut fields = Map::new();
        for (limit, most) in limits(&kind.runs) {
            let most = match limit {
                "max_calls" => most * 2,
                "max_repeats" => most.max(LEAST_REPEATS),
                _ => continue,
            };
            fields.insert(limit.to_owned(), most.into());
        }
        let runs = match kind.runs.len() {
            1 => "the recorded run".to_owned(),
            n_runs => format!("any of {n_runs} recorded runs"),
        };
        let loops = if fields.contains_key("max_repeats") { ", and few repeats" } else { "" };
        (!fields.is_empty()).then(|| {
            kind.criterion(
                unused(&kind.name("effort"), &mut taken),
                format!("at most twice as many calls as {runs} made{loops}"),
                json!({ "efficiency": fields }),
                all,
            )
        })
    };
    kinds.iter().filter_map(criterion).collect()
}

impl Kind<'_> {
    fn name(&self, about: &str) -> String {
        let GroupKey { root, agent } = &self.key;
        named(&slug(agent.as_deref().unwrap_or(root)), about)
    }

    fn n_recorded(&self) -> String {
        match self.runs.len() {
            1 => "one recorded run".to_owned(),
            n_runs => format!("all {n_runs} recorded runs"),
        }
    }

    fn criterion(
        &self,
        name: String,
        description: String,
        evaluate: Value,
        all: &BTreeSet<GroupKey>,
    ) -> Value {
        json!({
            "name": name,
            "description": description,
            "select": select(&self.key, all),
            "evaluate": evaluate,
        })
    }
}

fn common<'a>(names: &[&'a str], shared: &[&'a str]) -> Vec<&'a str> {
    let mut ids = BTreeMap::new();
    let mut ids_of = |names: &[&'a str]| -> Vec<u32> {
        names
            .iter()
            .map(|name| {
                let next = ids.len() as u32;
                *ids.entry(*name).or_insert(next)
            })
            .collect()
    };
    let (actual, expected) = (ids_of(names), ids_of(shared));
    let pairs = lcs::common_subsequence(&actual, &expected).unwrap_or_default();
    pairs
        .iter()
        .map(|(_, name_idx)| shared[*name_idx])
        .collect()
}

/// Returns the selector of the runs with this root and agent, among runs with the keys `all`. Omits
/// a glob that matches everything. Omits an empty name, too, unless the criterion would then also
/// judge runs with a name.
pub(super) fn select(key: &GroupKey, all: &BTreeSet<GroupKey>) -> Map<String, Value> {
    let agent = key.agent.as_deref().unwrap_or_default();
    let fits = |glob: &str, other: &str| glob.is_empty() || glob == other;
    let beside = |other: &&GroupKey| {
        fits(&key.root, &other.root) && fits(agent, other.agent.as_deref().unwrap_or_default())
    };
    let others = || all.iter().filter(beside);
    let hides = [
        others().any(|other| !other.root.is_empty()),
        others().any(|other| other.agent.as_ref().is_some_and(|agent| !agent.is_empty())),
    ];
    [("root", key.root.as_str()), ("agent", agent)]
        .into_iter()
        .zip(hides)
        .filter(|((_, glob), hides)| *glob != "*" && (*hides || !glob.is_empty()))
        .map(|((field, glob), _)| (field.to_owned(), glob.into()))
        .collect()
}

/// Returns a glob that matches a name and the name of the next run: an id (`Crew_<uuid>.kickoff`)
/// becomes `*`. `*` and `?` cannot be escaped, but `?` matches both.
pub(super) fn glob(name: &str) -> String {
    let mut glob = String::new();
    for (part, is_id) in parts(name) {
        if !is_id {
            glob.push_str(&part.replace('*', "?"));
        } else if !glob.ends_with('*') {
            glob.push('*');
        }
    }
    glob
}

fn has_id(name: &str) -> bool {
    parts(name).into_iter().any(|(_, is_id)| is_id)
}

/// Splits a name into parts; true marks an id.
fn parts(name: &str) -> Vec<(&str, bool)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let word = rest
            .find(|c: char| !c.is_alphanumeric())
            .unwrap_or(rest.len());
        let (len, is_id) = match (uuid_len(rest).or_else(|| time_len(rest)), word) {
            (Some(len), _) => (len, true),
            (None, 0) => (first.len_utf8(), false),
            (None, word) if is_id(&rest[..word]) => (word, true),
            (None, word) => (word - counter_len(&rest[..word]), false),
        };
        parts.push((&rest[..len], is_id));
        rest = &rest[len..];
    }
    parts
}

fn uuid_len(text: &str) -> Option<usize> {
    const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
    const LEN: usize = 36;
    let mut groups = text.get(..LEN)?.split('-');
    let is_uuid = GROUPS.into_iter().all(|len| {
        groups
            .next()
            .is_some_and(|group| group.len() == len && group.bytes().all(|b| b.is_ascii_hexdigit()))
    });
    let ends = !text[LEN..].starts_with(char::is_alphanumeric);
    (is_uuid && groups.next().is_none() && ends).then_some(LEN)
}

/// Returns the length of the date and time at the start of a text, such as `2026-03-20T12:36:00Z`.
/// A date alone may be a version (`gpt-4o-2024-08-06`).
fn time_len(text: &str) -> Option<usize> {
    const SHAPE: &[u8] = b"0000-00-00T00:00";
    let shape = SHAPE.iter().zip(text.as_bytes().get(..SHAPE.len())?);
    let mut shape = shape.map(|(shape, byte)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b' ' | b'_'),
        _ => byte == shape,
    });
    let is_rest = |c: char| c.is_ascii_digit() || matches!(c, ':' | '.' | ',' | 'Z');
    shape.all(|fits| fits).then(|| {
        let rest = &text[SHAPE.len()..];
        SHAPE.len() + rest.find(|c| !is_rest(c)).unwrap_or(rest.len())
    })
}

/// Returns the length of the counter at the end of a word (`order6332`).
fn counter_len(word: &str) -> usize {
    let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let counter = &word[name.len()..];
    if is_counter(counter) { counter.len() } else { 0 }
}

/// Returns true if a number looks like a counter by its digits alone. Fewer digits may be a version
/// or a code (`v2`, `error 404`), and four a year.
fn is_counter(number: &str) -> bool {
    match number.len() {
        4 => !number.starts_with("19") && !number.starts_with("20"),
        n_digits => n_digits >= 5,
    }
}

/// Returns true if the word is an id: a counter, a long hexadecimal number, a long mix of digits
/// and letters, such as a ULID, or letters of changing case with a digit.
fn is_id(word: &str) -> bool {
    let n_digits = word.bytes().filter(u8::is_ascii_digit).count();
    let is = |is: fn(&u8) -> bool| word.bytes().all(|byte| is(&byte));
    match word.len() {
        len if n_digits == len => is_counter(word),
        len if n_digits > 0 && is(u8::is_ascii_hexdigit) => len >= 8,
        len if n_digits >= 3 => len >= 12 && is(u8::is_ascii_alphanumeric),
        len => {
            let is_long = n_digits > 0 && len >= 20 && is(u8::is_ascii_alphanumeric);
            is_long && n_words(word) * 5 >= len * 2
        }
    }
}

/// Returns the number of words in a name in camel case. The words of a random name are short.
fn n_words(name: &str) -> usize {
    let bytes = name.as_bytes();
    let begins = |at: &usize| {
        let (before, byte, next) = (bytes[at - 1], bytes[*at], bytes.get(at + 1));
        if byte.is_ascii_uppercase() {
            !before.is_ascii_uppercase() || next.is_some_and(u8::is_ascii_lowercase)
        } else {
            byte.is_ascii_digit() != before.is_ascii_digit()
        }
    };
    1 + (1..bytes.len()).filter(begins).count()
}

/// Returns a criterion's name: `slug-about`, or only `about` without a slug.
pub(super) fn named(slug: &str, about: &str) -> String {
    if slug.is_empty() { about.to_owned() } else { format!("{slug}-{about}") }
}

/// Converts a name to lower case, with hyphens between its words.
pub(super) fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    words.join("-")
}

pub(super) fn unused(slug: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let n = taken.entry(slug.to_owned()).or_default();
    *n += 1;
    if *n == 1 { slug.to_owned() } else { format!("{slug}-{n}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_names_become_stars() {
        for (name, expected) in [
            (
                "Crew_c9e4a5d1-3b1f-4f62-9a43-0b7a3a5d7e11.kickoff",
                "Crew_*.kickoff",
            ),
            ("c9e4a5d1-3b1f-4f62-9a43-0b7a3a5d7e11", "*"),
            ("run 01JD5Z3K8QWERTY2X4ABCDEFGH", "run *"),
            ("task:827b1ba03b42deebf9171748d094dad8", "task:*"),
            ("job-1732262400123 of 17", "job-* of 17"),
            ("agent_7f3a21bc_9c0d11ee", "agent_*_*"),
            ("invoke_agent billing_agent", "invoke_agent billing_agent"),
            ("gpt-4o-2024 v2", "gpt-4o-2024 v2"),
            ("task-6332", "task-*"),
            ("task 0017 of 1999", "task * of 1999"),
            ("order6332.refund", "order*.refund"),
            ("error 404 in room101", "error 404 in room101"),
            ("what * is", "what ? is"),
            ("décade 12345é", "décade 12345é"),
            ("thread_7SIftRutlZfOjUStEkUdfMI7", "thread_*"),
            ("run_FrGYJ3GxeYYXwSLQcWtxJTQr execute", "run_* execute"),
            ("agent Q7AtNJX3OrUbmkLCNPloW", "agent *"),
            ("GetUserByIdAndRoleV2Api", "GetUserByIdAndRoleV2Api"),
            (
                "MicrosoftAgentFramework2Workflow",
                "MicrosoftAgentFramework2Workflow",
            ),
            ("batch 2026-03-20T12:36:00.125Z of shop", "batch * of shop"),
            ("batch 2026-03-20 12:36:00", "batch *"),
            ("batch 2026-03-20Té12:36", "batch 2026-03-20Té12:36"),
            ("gpt-4o-2024-08-06 loop", "gpt-4o-2024-08-06 loop"),
            ("", ""),
        ] {
            assert_eq!(glob(name), expected, "{name}");
        }
    }
}
