//! The evaluators, one file each, and two enums with a variant for each evaluator: [`Evaluator`]
//! contains its parameters, and [`Evidence`] its findings, from which its report is rendered.

mod constraints;
mod efficiency;
mod execution_order;
mod tool_call_args;
mod tool_call_count;
mod tool_call_order;
mod tool_call_output;
mod tool_calls;
mod tool_order;
mod trajectory_match;

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use text::code;

use crate::evaluate::comparison::score::{Judgement, Rendered, Score};
use crate::evaluate::comparison::value_path::ValuePath;
use crate::evaluate::parameters::call_pattern::{CallPattern, CallReader};
use crate::evaluate::parameters::pattern::{FieldError, PatternCompiler, PlacedPattern};
use crate::extract::Trajectory;

use constraints::Constraints;
pub(super) use efficiency::Efficiency;
pub(super) use execution_order::ExecutionOrder;
use tool_call_args::ToolCallArgs;
use tool_call_count::ToolCallCount;
use tool_call_order::ToolCallOrder;
use tool_call_output::ToolCallOutput;
use tool_calls::ToolCalls;
pub use tool_order::ExpectedTool;
pub(super) use tool_order::ToolOrder;
use trajectory_match::TrajectoryMatch;

/// Defines the enums and their dispatch from a single list of evaluators.
macro_rules! evaluators {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// The expectation: one evaluator with its parameters, parsed as a [`WrittenEvaluator`].
        #[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case", remote = "Self")]
        pub enum Evaluator {
            $($(#[$doc])* $name($name),)+
        }

        /// The findings of an evaluator in a trajectory. The report depends only on the findings,
        /// the names of the calls, the value and the label, except that it may show values.
        /// Different findings lead to different reports. So a hash of the findings shows whether a
        /// late span changed anything visible.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub(super) enum Evidence {
            $($name(<$name as Evaluate>::Evidence),)+
        }

        const NAMES: &[&str] = &[$($name::NAME,)+];

        impl Evaluator {
            /// Returns the name used in the configuration, in `spanscore.evaluator` and in jsonl
            /// lines.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $name::NAME,)+ }
            }

            /// Returns warnings about valid but probably unintended settings, one sentence each.
            pub fn warnings(&self) -> Vec<String> {
                match self { $(Self::$name(of) => of.warnings(),)+ }
            }

            pub(super) fn patterns_mut(&mut self) -> Vec<PlacedPattern<'_>> {
                match self { $(Self::$name(of) => of.patterns_mut(),)+ }
            }

            fn check(&self) -> Result<(), FieldError> {
                match self { $(Self::$name(of) => of.check(),)+ }
            }

            pub(super) fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
                match self { $(Self::$name(of) => of.named_tools(),)+ }
            }

            pub(super) fn threshold(&self, written: Option<f64>) -> f64 {
                match self { $(Self::$name(of) => of.threshold(written),)+ }
            }

            pub(super) fn reads_order(&self) -> bool {
                match self { $(Self::$name(of) => of.reads_order(),)+ }
            }

            pub(super) fn watched(&self) -> Result<WatchedCalls, String> {
                match self { $(Self::$name(of) => of.watched(),)+ }
            }

            pub(super) fn reads_models(&self) -> bool {
                match self { $(Self::$name(of) => of.reads_models(),)+ }
            }

            pub(super) fn reads_duration(&self) -> bool {
                matches!(self, Self::Efficiency(limits) if limits.max_duration.is_some())
            }

            pub(super) fn evaluate(
                &self,
                trajectory: &Trajectory,
                max_search: u64,
            ) -> (Score, Evidence) {
                match self {
                    $(Self::$name(of) => {
                        let (score, found) = of.evaluate(trajectory, max_search);
                        (score, Evidence::$name(found))
                    })+
                }
            }

            pub(super) fn follows_paths(&self) -> bool {
                match self { $(Self::$name(of) => !of.paths().is_empty(),)+ }
            }

            /// Returns a sentence for each path at which no call has a value. `paths` has one bit
            /// for each path, as in
            /// [`PathsSeen::nowhere`](crate::evaluate::comparison::score::PathsSeen::nowhere).
            pub(super) fn nowhere(&self, paths: u64) -> Vec<String> {
                let followed = match self { $(Self::$name(of) => of.paths(),)+ };
                let mut sentences: Vec<String> = Vec::new();
                let leads_nowhere = |(_, at): &(_, u32)| paths >> at & 1 == 1;
                for (followed, _) in followed.iter().zip(0..u64::BITS).filter(leads_nowhere) {
                    let sentence = followed.leads_nowhere();
                    if !sentences.contains(&sentence) {
                        sentences.push(sentence);
                    }
                }
                sentences
            }

            /// Renders evidence of this evaluator. Evidence of another evaluator gives an empty
            /// report.
            pub(super) fn report(
                &self,
                evidence: &Evidence,
                judgement: &Judgement<'_>,
            ) -> Rendered {
                match (self, evidence) {
                    $((Self::$name(of), Evidence::$name(found)) => of.report(found, judgement),)+
                    _ => Rendered::default(),
                }
            }
        }
    };
}

evaluators! {
    /// Were the tools called in the expected order?
    ToolCallOrder,
    /// Was each tool called as often as expected?
    ToolCallCount,
    /// Do the expected calls, with their parameters, occur in this order?
    ToolOrder,
    /// How well do the tools called, or the nodes visited, match the expected ones?
    ExecutionOrder,
    /// Were the required calls made, in the right sequence, and no disallowed calls?
    ToolCalls,
    /// Were the tools called with the expected arguments?
    ToolCallArgs,
    /// Did the tools return what was expected?
    ToolCallOutput,
    /// Did the calls follow rules about their order, number and values?
    Constraints,
    /// How well do the calls match a reference, by a score of your choice?
    TrajectoryMatch,
    /// Did the run stay within limits of effort?
    Efficiency,
}

/// An evaluator as it is written: its patterns are not compiled.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct WrittenEvaluator(Evaluator);

/// The calls whose arrival can permanently violate a criterion.
#[derive(Debug, Clone)]
pub(super) struct WatchedCalls {
    /// Regular expressions of the tools' names; `None` for all tools.
    pub(super) names: Option<Vec<String>>,
    /// True if model calls can violate the criterion, too.
    pub(super) models: bool,
    /// The highest score still possible after these calls have violated all that they can violate.
    pub(super) most: f64,
}

impl WatchedCalls {
    fn of<'a>(patterns: impl Iterator<Item = &'a CallPattern>, most: f64) -> Self {
        Self {
            names: Some(
                patterns
                    .map(|pattern| pattern.name.rewritten().to_owned())
                    .collect(),
            ),
            models: false,
            most,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ToolName<'a> {
    Exact(&'a str),
    /// A pattern that matches the tool's calls.
    Of(&'a CallPattern),
}

pub(super) struct FollowedPath<'a> {
    pub(super) path: &'a ValuePath,
    /// The calls in which the path is followed.
    calls: &'a dyn fmt::Display,
    /// True if the texts at the path are compared.
    is_of_texts: bool,
}

impl<'a> FollowedPath<'a> {
    fn of_conditions(
        patterns: impl Iterator<Item = &'a CallPattern>,
    ) -> impl Iterator<Item = Self> {
        patterns.flat_map(|pattern| {
            let paths = pattern.conditions.keys();
            paths.map(|path| Self::new(path, &pattern.name))
        })
    }

    fn new(path: &'a ValuePath, calls: &'a dyn fmt::Display) -> Self {
        Self {
            path,
            calls,
            is_of_texts: false,
        }
    }

    fn leads_nowhere(&self) -> String {
        let (calls, path) = (self.calls, code(self.path.as_str()));
        if self.is_of_texts {
            format!("no call of {calls} has a text in {path} (an empty one counts as none)")
        } else {
            format!("no call of {calls} has {path}")
        }
    }
}

impl Score {
    /// Stores what the reader noticed: faults, missing and unusable values, and the outcome for
    /// each path.
    fn read_by(&mut self, reader: CallReader<'_>, paths: &[FollowedPath<'_>]) {
        let CallReader { captured, fault } = reader;
        self.fault = fault;
        self.paths = captured.paths_seen(paths.iter().map(|followed| followed.path));
        self.searched = captured.searched();
        (self.missing, self.unusable) = (captured.missing, captured.unusable);
    }
}

impl Serialize for Evaluator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Evaluator::serialize(self, serializer)
    }
}

impl WrittenEvaluator {
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Compiles the patterns, then checks the fields.
    ///
    /// # Errors
    /// Returns an error for every pattern that does not compile, or else for the first invalid
    /// field.
    pub fn compile(mut self, compiler: &mut PatternCompiler) -> Result<Evaluator, Vec<FieldError>> {
        compiler.compile(self.0.patterns_mut())?;
        let evaluator = self.0;
        (evaluator.check()).map_err(|error| vec![error.below(&[evaluator.name()])])?;
        Ok(evaluator)
    }
}

impl<'de> Deserialize<'de> for WrittenEvaluator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Evaluator::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for WrittenEvaluator {
    fn schema_name() -> Cow<'static, str> {
        Evaluator::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Evaluator::json_schema(generator)
    }
}

/// An evaluator, implemented by its serde struct. `evaluate` and `report` cannot fail, and no
/// method waits, logs or updates metrics.
pub(super) trait Evaluate {
    /// The name in the configuration.
    const NAME: &'static str;

    /// The evaluator's findings in a trajectory.
    type Evidence;

    /// Returns the score of the trajectory, with bounds for missing evidence, and the evidence.
    /// Spends at most `max_search` units of work on searching.
    fn evaluate(&self, trajectory: &Trajectory, max_search: u64) -> (Score, Self::Evidence);

    /// Renders the evidence, with values only if the judgement allows them.
    fn report(&self, found: &Self::Evidence, judgement: &Judgement<'_>) -> Rendered;

    /// Returns true if the order of the calls matters.
    fn reads_order(&self) -> bool;

    /// Returns true if the evaluator judges model calls.
    fn reads_models(&self) -> bool {
        false
    }

    /// Returns the calls that can permanently violate the criterion. The error is a clause that
    /// says why no call can.
    fn watched(&self) -> Result<WatchedCalls, String> {
        let name = code(Self::NAME);
        Err(format!("{name} cannot be: later calls change its score"))
    }

    /// Returns the tools that the parameters name, and whether calls of each are expected, rather
    /// than forbidden or allowed. A tool that no run ever calls is probably misspelt.
    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)>;

    /// Returns the paths that the evaluator follows, in the order of the parameters.
    fn paths(&self) -> Vec<FollowedPath<'_>> {
        Vec::new()
    }

    /// Returns the patterns among the parameters, with their paths.
    fn patterns_mut(&mut self) -> Vec<PlacedPattern<'_>> {
        Vec::new()
    }

    /// Checks what serde cannot check: fields that contradict each other, and required fields that
    /// are all missing. The error contains the field's path.
    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }

    /// Returns warnings about valid but probably unintended settings.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the effective threshold, given the written one (0 to 1).
    fn threshold(&self, written: Option<f64>) -> f64 {
        written.unwrap_or(1.0)
    }
}

impl<'a> ToolName<'a> {
    fn all_expected(names: impl IntoIterator<Item = &'a str>) -> Vec<(Self, bool)> {
        let names = names.into_iter();
        names.map(|name| (Self::Exact(name), true)).collect()
    }

    pub(super) fn matches(self, tool: &str) -> bool {
        match self {
            Self::Exact(name) => name == tool,
            Self::Of(pattern) => pattern.name.is_match(tool),
        }
    }

    /// Returns the name, or the pattern without its anchors, which reads like a name.
    pub(super) fn word(self) -> &'a str {
        match self {
            Self::Exact(name) => name,
            Self::Of(pattern) => {
                let pattern = pattern.name.as_str().trim_start_matches('^');
                pattern.trim_end_matches('$')
            }
        }
    }
}

/// The reason why an entry with `command` or `path` raises no alarm.
const SHORTCUTS_RAISE_NO_ALARM: &str = "an entry with `command` or `path` cannot be: a later call \
    without that argument makes the verdict an `error`; write the argument under `args`";

/// Returns the static name of an evaluator; `None` if the name is unknown.
pub fn evaluator_named(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|known| **known == name).copied()
}

fn names_of(trajectory: &Trajectory) -> Vec<&str> {
    trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect()
}
