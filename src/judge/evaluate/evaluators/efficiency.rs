//! The evaluator `efficiency`: did the run stay within limits of effort?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use text::{code, counted, duration_text};

use super::{Evaluate, FollowedPath, ToolName, WatchedCalls};
use crate::evaluate::comparison::alignment::times;
use crate::evaluate::comparison::captured::Tri;
use crate::evaluate::comparison::rows::AlignmentRow;
use crate::evaluate::comparison::score::{Judgement, Rendered, Score};
use crate::evaluate::parameters::call_pattern::{
    CallPattern, ignored, ignored_schema, list_patterns_mut, list_warnings,
};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::limits::{Period, limit};
use crate::evaluate::parameters::optional::written;
use crate::evaluate::parameters::pattern::{FieldError, PlacedPattern};
use crate::evaluate::rules::effort::{EffortLook, Limit, LimitFound};
use crate::extract::Trajectory;

/// Did the run stay within limits of effort?
///
/// # What it checks
/// Checks limits on calls, failures, retries and repetitions, on the duration of the run, and on
/// the use of models. The score is the share of limits that the run does not exceed.
///
/// # Why
/// An agent that runs in circles may still reach the right answer, at ten times the price.
///
/// # Example
/// ```yaml
/// evaluate:
///   efficiency: { max_calls: 20, max_errors: 3, max_repeats: 2, ignore: ["^poll_"] }
/// ```
/// Calls `search, open, search, open, search, open`, each pair with the same arguments, satisfy all
/// three limits: the block of two was repeated twice. With `max_repeats: 1` they score 2/3.
///
/// # Parameters
/// At least one limit; numbers are whole, 0 or more.
///
/// - `max_calls`, `max_errors`: the number of calls, and of calls that failed.
/// - `max_retries`: the longest chain of retries. A call is a retry if the last call of the same
///   tool that ended before it, in the same agent run, had failed.
/// - `max_repeats`: how often a call, or a block of 2 to 6 calls, was immediately repeated with the
///   same names and arguments.
/// - `max_duplicates`: calls with the name and arguments of an earlier call, anywhere in the run.
/// - `max_duration`: the time from start to end of the evaluated span, such as `2m`; for a run of
///   [log records](design.md#log-records), from the first start to the last end.
/// - `max_model_calls`: model calls, including failed ones, excluding embeddings.
/// - `max_input_tokens`, `max_output_tokens`, `max_tokens`: tokens that models read, tokens that
///   models wrote, and the sum of both.
/// - `ignore`: calls that do not count: patterns of names, or maps with `name`, `error`, `args`,
///   `result` and `where` as in `tool_calls`. If it is unknown whether a call matches, all limits
///   on calls are open.
///
/// If arguments were not captured, the number of repeats and duplicates is only bounded: from 0 to
/// the number that names alone suggest. `max_retries`, `max_repeats` and `max_duration` need times:
/// they are open if they depend on a span that has no start, or ends before it starts.
///
/// Each token counts once: if model spans are nested, the outermost span that recorded usage
/// counts. Overlapping spans of several instrumentations below one parent count as one call, unless
/// their response ids or their tokens differ. With `scope: agent`, a model call belongs to the
/// agent run that encloses it. Limits on models also apply to runs without tool calls. A model call
/// without recorded usage may have used any number of tokens. Then a limit is exceeded if the other
/// calls alone exceed it, else it is open. If a model call recorded only a total, the total counts
/// only for `max_tokens`. Totals that agents recorded are read only if there is no model span.
/// Without model spans and totals, all limits on models are open, because the run may have made
/// unrecorded model calls. Exception: if one of the service's latest 200 traces has a model span,
/// this run made 0 model calls (not with `assemble.peers` or spans from Kafka).
/// [conventions.md](conventions.md#shared-attributes) lists the attributes that are read. In a
/// sidecar, the tokens of spans that arrived before the first limit on models was set are unknown.
///
/// Input tokens include cached tokens, as the OpenTelemetry conventions require. If a producer
/// excludes cached tokens, spanscore notices only if a span has more cached tokens than input
/// tokens. It then adds the two numbers.
///
/// Details: `limits`, one entry per limit, with `limit`, `actual` and `kept` (`null` if open).
/// Durations are in milliseconds, rounded up. Numbers of model calls and tokens have `at_least:
/// true` if there may be more, and `from: agent` if agents recorded them as totals.
///
/// # When the trace was cut short
/// An exceeded `max_calls`, `max_errors` or `max_duplicates` remains exceeded. The same is true for
/// a limit on models if the model calls that exceed it are below an agent run or a root. Otherwise
/// a missing span above a model call may be a second report of the same call, so the sum may be too
/// high. `max_duration` is certain if it is certain which span is evaluated. All other limits are
/// open.
#[derive(Debug, Default, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, remote = "Self", deny_unknown_fields)]
pub struct Efficiency {
    /// Maximum number of calls.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_calls: Option<u32>,
    /// Maximum number of calls that failed.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_errors: Option<u32>,
    /// Maximum number of retries of one call.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_retries: Option<u32>,
    /// Maximum number of times that a call or a block of calls is immediately repeated.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_repeats: Option<u32>,
    /// Maximum number of calls that repeat an earlier call.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_duplicates: Option<u32>,
    /// Maximum duration.
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub max_duration: Option<Period>,
    /// Maximum number of model calls.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_model_calls: Option<u32>,
    /// Maximum number of tokens that models read.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_input_tokens: Option<u32>,
    /// Maximum number of tokens that models write.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_output_tokens: Option<u32>,
    /// Maximum number of tokens that models read and write together.
    #[serde(deserialize_with = "limit", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub max_tokens: Option<u32>,
    /// Calls that do not count.
    #[serde(deserialize_with = "ignored", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "ignored_schema")]
    pub ignore: Vec<CallPattern>,
}

read_with_hints!(Efficiency);

impl Evaluate for Efficiency {
    const NAME: &'static str = "efficiency";

    type Evidence = Vec<LimitFound>;

    fn evaluate(&self, trajectory: &Trajectory, max_search: u64) -> (Score, Vec<LimitFound>) {
        let mut look = EffortLook::new(&self.ignore, trajectory, max_search);
        let limits = self.limits();
        let found: Vec<LimitFound> = limits
            .map(|(limit, most)| look.judge(limit, most))
            .collect();
        let share = |is: &dyn Fn(&LimitFound) -> bool| {
            found.iter().filter(|found| is(found)).count() as f64 / found.len().max(1) as f64
        };
        let least = share(&|found| found.kept == Tri::Yes);
        let most = share(&|found| found.kept != Tri::No);
        let value = share(&|found| match (found.kept, found.actual) {
            (Tri::Maybe, Some(actual)) => actual <= found.most,
            (kept, _) => kept == Tri::Yes,
        });
        let mut score = Score::between(value, least, most);
        score.read_by(look.reader, &self.paths());
        (score, found)
    }

    fn check(&self) -> Result<(), FieldError> {
        match self.limits().count() {
            0 => Err(FieldError::of_key(
                &[],
                "there is no limit: write at least one, such as `max_calls: 20`",
            )),
            _ => Ok(()),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = list_warnings("ignore", &self.ignore);
        if let (Some(total), Some(input)) = (self.max_tokens, self.max_input_tokens)
            && total < input
        {
            warnings.push(format!(
                "`max_tokens` is {total}, so `max_input_tokens` of {input} is never reached: input \
                 tokens count in both"
            ));
        }
        warnings
    }

    fn watched(&self) -> Result<WatchedCalls, String> {
        let n_of = |is: fn(Limit) -> bool| self.limits().filter(|(limit, _)| is(*limit)).count();
        let n_on_models = n_of(Limit::is_on_models);
        let n_on_calls = n_of(Limit::stays_exceeded) - n_on_models;
        let n_limits = self.limits().count();
        if n_on_calls + n_on_models == 0 {
            return Err(
                "limits on retries, repeats and the duration cannot be: they are certain only \
                 when the trace has closed"
                    .to_owned(),
            );
        }
        Ok(WatchedCalls {
            names: if n_on_calls > 0 { None } else { Some(Vec::new()) },
            models: n_on_models > 0,
            most: (n_limits - n_on_calls - n_on_models) as f64 / n_limits as f64,
        })
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        let ignored = self.ignore.iter();
        ignored
            .map(|pattern| (ToolName::Of(pattern), false))
            .collect()
    }

    fn paths(&self) -> Vec<FollowedPath<'_>> {
        FollowedPath::of_conditions(self.ignore.iter()).collect()
    }

    fn reads_models(&self) -> bool {
        self.limits().any(|(limit, _)| limit.is_on_models())
    }

    fn reads_order(&self) -> bool {
        self.max_retries.is_some() || self.max_repeats.is_some()
    }

    fn report(&self, found: &Vec<LimitFound>, judgement: &Judgement<'_>) -> Rendered {
        let mut limits = Map::new();
        let (mut rows, mut broken, mut offending) = (Vec::new(), Vec::new(), Vec::new());
        for found in found {
            let most = found.most;
            let (word, unit) = (found.limit.as_str(), found.limit.unit());
            let mut limit = json!({
                "limit": most,
                "actual": found.actual,
                "kept": found.kept.known(),
            });
            if found.at_least {
                limit["at_least"] = json!(true);
            }
            if found.from_agent {
                limit["from"] = json!("agent");
            }
            limits.insert(word.to_owned(), limit);
            let what = word.trim_start_matches("max_").replace('_', " ");
            let row =
                AlignmentRow::kept(found.kept.known(), format!("at most {most}{unit} {what}"));
            let row = row.of(found.calls.iter().copied());
            rows.push(match (found.kept, found.actual) {
                (Tri::No, _) => {
                    let sentence = sentence(found, judgement.trajectory);
                    broken.push(sentence.clone());
                    offending.extend(&found.calls);
                    row.noting(sentence)
                }
                (_, Some(actual)) => row.noting(format!("{}{actual}{unit}", found.prefix())),
                (_, None) => row,
            });
        }
        let n_kept = found.iter().filter(|found| found.kept == Tri::Yes).count();
        Rendered {
            text: if broken.is_empty() {
                format!("{} kept", counted(n_kept, "limit", "limits"))
            } else {
                broken.join("; ")
            },
            offending,
            rows,
            details: json!({ "limits": limits }),
        }
    }

    fn patterns_mut(&mut self) -> Vec<PlacedPattern<'_>> {
        list_patterns_mut(&["efficiency", "ignore"], &mut self.ignore)
    }
}

impl Efficiency {
    /// Returns the limits that are set, in the order of [`Limit`], with their values.
    fn limits(&self) -> impl Iterator<Item = (Limit, u64)> {
        let number = |most: Option<u32>| most.map(u64::from);
        let limits = [
            (Limit::Calls, number(self.max_calls)),
            (Limit::Errors, number(self.max_errors)),
            (Limit::Retries, number(self.max_retries)),
            (Limit::Repeats, number(self.max_repeats)),
            (Limit::Duplicates, number(self.max_duplicates)),
            (Limit::Duration, self.max_duration.map(Period::millis)),
            (Limit::ModelCalls, number(self.max_model_calls)),
            (Limit::InputTokens, number(self.max_input_tokens)),
            (Limit::OutputTokens, number(self.max_output_tokens)),
            (Limit::Tokens, number(self.max_tokens)),
        ];
        let limits = limits.into_iter();
        limits.filter_map(|(limit, most)| Some((limit, most?)))
    }
}

fn sentence(found: &LimitFound, trajectory: &Trajectory) -> String {
    let n = usize::try_from(found.actual.unwrap_or(0)).unwrap_or(usize::MAX);
    let most = usize::try_from(found.most).unwrap_or(usize::MAX);
    let name = |call_idx: &usize| {
        let call = trajectory.tool_calls.get(*call_idx);
        code(call.map_or("", |call| &*call.name))
    };
    let called = |call_idx: &usize| trajectory.called(*call_idx);
    let all_called = || {
        found
            .calls
            .iter()
            .map(called)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match found.limit {
        Limit::Calls => format!(
            "{} made, at most {most}: {} came after that",
            counted(n, "call was", "calls were"),
            all_called()
        ),
        Limit::Errors => {
            format!(
                "{} failed, at most {most}: {}",
                counted(n, "call", "calls"),
                all_called()
            )
        }
        Limit::Retries => {
            let first = found.calls.first().map(name).unwrap_or_default();
            let numbers = found.calls.iter().map(|call| (call + 1).to_string());
            format!(
                "{first} was retried {} (calls {}), at most {}",
                times(n),
                numbers.collect::<Vec<_>>().join(", "),
                counted(most, "retry", "retries")
            )
        }
        Limit::Repeats => {
            let allowed = counted(most, "repeat", "repeats");
            let first = found.calls.first().copied().unwrap_or(0);
            match found.block {
                1 => {
                    let last = found.calls.last().map(called).unwrap_or_default();
                    format!(
                        "{last} came with the same arguments for the {} time in a row, at most \
                             {allowed}",
                        ordinal(n + 1)
                    )
                }
                block => {
                    let names = found.calls.iter().take(block).map(name);
                    format!(
                        "{} ran {} in a row (from call {}), at most {allowed}",
                        names.collect::<Vec<_>>().join(", "),
                        times(n + 1),
                        first + 1
                    )
                }
            }
        }
        Limit::Duplicates => format!(
            "{} with the same arguments, at most {most}: {}",
            counted(
                n,
                "call repeats an earlier call",
                "calls repeat earlier calls"
            ),
            all_called()
        ),
        Limit::ModelCalls => format!(
            "{}{} made, at most {most}",
            found.prefix(),
            counted(n, "model call was", "model calls were")
        ),
        Limit::InputTokens | Limit::OutputTokens | Limit::Tokens => {
            let side = match found.limit {
                Limit::InputTokens => "input ",
                Limit::OutputTokens => "output ",
                _ => "",
            };
            let source = if found.from_agent {
                " (the agent's own total: no model span was seen)"
            } else {
                ""
            };
            let tokens = counted(n, "token was", "tokens were");
            let tokens = tokens.replacen(' ', &format!(" {side}"), 1);
            format!("{}{tokens} used, at most {most}{source}", found.prefix())
        }
        Limit::Duration => {
            let text =
                |millis: usize| duration_text(std::time::Duration::from_millis(millis as u64));
            format!("the run took {}, at most {}", text(n), text(most))
        }
    }
}

fn ordinal(n: usize) -> String {
    let suffix = match (n % 10, n % 100) {
        (1, hundred) if hundred != 11 => "st",
        (2, hundred) if hundred != 12 => "nd",
        (3, hundred) if hundred != 13 => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}
