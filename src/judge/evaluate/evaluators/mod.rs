//! The evaluators, one file each, and the two enums that list them: [`Evaluator`] and the
//! [`Evidence`] that its report is rendered from. Knows neither thresholds nor criteria.

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
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use text::code;

use crate::evaluate::comparison::rows::AlignmentRow;
use crate::evaluate::comparison::score::{Explain, Rendered, Score, Verdict};
use crate::evaluate::comparison::value_path::ValuePath;
use crate::evaluate::parameters::call_pattern::{CallPattern, Told};
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

/// Makes the enums and their dispatch from the one list of evaluators.
macro_rules! evaluators {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What is expected of the calls: one evaluator with its parameters. It is read as a
        /// [`WrittenEvaluator`].
        #[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case", remote = "Self")]
        pub enum Evaluator {
            $($(#[$doc])* $name($name),)+
        }

        /// The findings of an evaluator in a trajectory. Together with the names of the calls, the
        /// value and the label they determine the report, unless this shows values; and they differ
        /// only where the report does. So their hash tells whether a late span changed anything
        /// visible.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub(super) enum Evidence {
            $($name(<$name as Evaluate>::Evidence),)+
        }

        impl Evaluator {
            /// Its name in the configuration, in `spanscore.evaluator` and in the jsonl lines.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $name::NAME,)+ }
            }

            /// Warnings about valid but probably unintended settings, one sentence each.
            pub fn warnings(&self) -> Vec<String> {
                match self { $(Self::$name(of) => of.warnings(),)+ }
            }

            /// The patterns among its parameters.
            fn patterns_mut(&mut self) -> Vec<PlacedPattern<'_>> {
                match self { $(Self::$name(of) => of.patterns_mut(),)+ }
            }

            /// The first field that contradicts another, by its path.
            fn check(&self) -> Result<(), FieldError> {
                match self { $(Self::$name(of) => of.check(),)+ }
            }

            /// The tools that its parameters name.
            pub(super) fn named_tools(&self) -> Vec<NamedTool<'_>> {
                match self { $(Self::$name(of) => of.named_tools(),)+ }
            }

            /// The threshold that applies, given the one that was written (0 to 1).
            pub(super) fn threshold(&self, written: Option<f64>) -> f64 {
                match self { $(Self::$name(of) => of.threshold(written),)+ }
            }

            /// Does the order of the calls matter?
            pub(super) fn reads_order(&self) -> bool {
                match self { $(Self::$name(of) => of.reads_order(),)+ }
            }

            /// Does it judge calls of models?
            pub(super) fn reads_models(&self) -> bool {
                match self { $(Self::$name(of) => of.reads_models(),)+ }
            }

            /// Evaluates a trajectory. Spends at most this much work on searching texts with
            /// patterns.
            pub(super) fn evaluate(
                &self,
                trajectory: &Trajectory,
                max_search: u64,
            ) -> Score<Evidence> {
                match self {
                    $(Self::$name(of) => {
                        of.evaluate(trajectory, max_search).map(Evidence::$name)
                    })+
                }
            }

            /// A sentence for each path that leads nowhere, a bit of
            /// [`PathsSeen::nowhere`](crate::evaluate::comparison::score::PathsSeen::nowhere).
            pub(super) fn nowhere(&self, paths: u64) -> Vec<String> {
                let asked = match self { $(Self::$name(of) => of.paths(),)+ };
                let mut sentences: Vec<String> = Vec::new();
                let leads_nowhere = |(_, at): &(_, u32)| paths >> at & 1 == 1;
                for (asked, _) in asked.iter().zip(0..u64::BITS).filter(leads_nowhere) {
                    let sentence = asked.leads_nowhere();
                    if !sentences.contains(&sentence) {
                        sentences.push(sentence);
                    }
                }
                sentences
            }

            /// Renders evidence of this evaluator; empty for that of another.
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
    /// Were the required calls made, the disallowed ones not, and a sequence kept?
    ToolCalls,
    /// Were the tools called with the expected arguments?
    ToolCallArgs,
    /// Did the tools return what was expected?
    ToolCallOutput,
    /// Were rules over the calls and their order kept?
    Constraints,
    /// How well do the calls match a reference, by one of a family of scores?
    TrajectoryMatch,
    /// Did the run stay within limits of effort?
    Efficiency,
}

/// An evaluator as it is written: its patterns are not compiled yet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct WrittenEvaluator(Evaluator);

/// A tool that an evaluator names.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedTool<'a> {
    pub(super) name: ToolName<'a>,
    /// Is a call of it expected? Otherwise it is forbidden or allowed.
    pub(super) is_expected: bool,
}

/// How an evaluator names a tool.
#[derive(Debug, Clone, Copy)]
pub(super) enum ToolName<'a> {
    /// By its name.
    Exact(&'a str),
    /// By a pattern of its calls.
    Of(&'a CallPattern),
}

/// A path that an evaluator follows.
pub(super) struct AskedPath<'a> {
    pub(super) path: &'a ValuePath,
    /// The calls that it is followed in.
    calls: &'a dyn fmt::Display,
    /// It leads to texts that are compared.
    is_of_texts: bool,
}

impl<'a> AskedPath<'a> {
    /// The paths of the conditions of patterns.
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

/// The judgement that evidence is rendered for.
#[derive(Clone, Copy)]
pub(super) struct Judgement<'a> {
    pub(super) trajectory: &'a Trajectory,
    pub(super) verdict: Verdict,
    pub(super) explain: &'a Explain,
    /// Are rows wanted? Only people who look at one run read them.
    pub(super) with_rows: bool,
}

impl<'a> Judgement<'a> {
    /// What the text about a call may show.
    fn told(&self) -> Told<'a> {
        Told {
            trajectory: self.trajectory,
            explain: self.explain,
        }
    }

    /// Makes rows if they are wanted.
    fn rows(&self, make: impl FnOnce() -> Vec<AlignmentRow>) -> Vec<AlignmentRow> {
        if self.with_rows { make() } else { Vec::new() }
    }
}

impl Serialize for Evaluator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Evaluator::serialize(self, serializer)
    }
}

impl WrittenEvaluator {
    /// The evaluator's name.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Compiles its patterns, and checks that its fields go together.
    ///
    /// # Errors
    /// Every pattern that cannot be compiled, or else the first field that contradicts another.
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

/// The work of each evaluator. The serde struct is the evaluator; no method can fail, wait, log or
/// count.
pub(super) trait Evaluate {
    /// Its name in the configuration.
    const NAME: &'static str;

    /// What it found in a trajectory.
    type Evidence;

    /// How well the trajectory does, and how far missing evidence could still move that. Spends at
    /// most this much work on searching.
    fn evaluate(&self, trajectory: &Trajectory, max_search: u64) -> Score<Self::Evidence>;

    /// The evidence for readers, with values only if the judgement allows them.
    fn report(&self, found: &Self::Evidence, judgement: &Judgement<'_>) -> Rendered;

    /// Does the order of the calls matter?
    fn reads_order(&self) -> bool;

    /// Does it judge calls of models?
    fn reads_models(&self) -> bool {
        false
    }

    /// The tools that its parameters name: a name that no run ever calls is probably misspelt.
    fn named_tools(&self) -> Vec<NamedTool<'_>>;

    /// The paths that it follows, in the order of its parameters.
    fn paths(&self) -> Vec<AskedPath<'_>> {
        Vec::new()
    }

    /// The patterns among its parameters, with their paths.
    fn patterns_mut(&mut self) -> Vec<PlacedPattern<'_>> {
        Vec::new()
    }

    /// The first field that contradicts another, by its path.
    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }

    /// Warnings about valid but probably unintended settings.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The threshold that applies, given the one that was written (0 to 1).
    fn threshold(&self, written: Option<f64>) -> f64 {
        written.unwrap_or(1.0)
    }
}

impl<'a> NamedTool<'a> {
    fn expected(name: &'a str) -> Self {
        Self {
            name: ToolName::Exact(name),
            is_expected: true,
        }
    }

    fn all_expected(names: impl IntoIterator<Item = &'a str>) -> Vec<Self> {
        names.into_iter().map(Self::expected).collect()
    }
}

impl<'a> ToolName<'a> {
    /// Does it name this tool?
    pub(super) fn matches(self, tool: &str) -> bool {
        match self {
            Self::Exact(name) => name == tool,
            Self::Of(pattern) => pattern.name.is_match(tool),
        }
    }

    /// The name, or the pattern without its anchors, which then reads like one.
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

/// The name of an evaluator as a constant, if there is one of this name.
pub fn evaluator_named(name: &str) -> Option<&'static str> {
    let mut names: &'static [&'static str] = &[];
    // It fails, having shown the names.
    let _ = Evaluator::deserialize(VariantNames(&mut names));
    names.iter().find(|known| **known == name).copied()
}

/// Shows the variants of an enum that is deserialized from it.
struct VariantNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for VariantNames<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("shows variants only"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = variants;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The names of the calls, in the order they were made.
fn names_of(trajectory: &Trajectory) -> Vec<&str> {
    trajectory
        .tool_calls
        .iter()
        .map(|call| &*call.name)
        .collect()
}
