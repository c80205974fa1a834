//! The table of conventions. Each convention has a file, or a row in `look_alikes`. In the rest of
//! `extract`, only comments and the table of keys name frameworks.

mod autogen;
mod claude_code;
mod dspy;
mod gen_ai;
mod haystack;
mod litellm;
mod llama_index;
pub(crate) mod log_calls;
mod logfire;
mod look_alikes;
mod mastra;
mod openinference;
mod smolagents;
mod span_name;
pub(crate) mod tool_name;
mod traceloop;
mod vercel_ai;

use otlp::span::{KeyBits, KeyId};

use super::convention::{Convention, CrossTrace, Prune, Refine};
use super::keys;
use super::view::View;

pub(crate) use gen_ai::is_workflow;

/// The conventions in order of precedence: the first that recognises a tool call names it. A
/// product's convention precedes the conventions that many products share, because products copy
/// the shared attributes to their spans. Hooks run in the same order.
pub(crate) const CONVENTIONS: &[Convention] = &[
    log_calls::LOG_CALLS,
    claude_code::CLAUDE_CODE,
    look_alikes::LANGFUSE,
    look_alikes::JUDGMENT,
    look_alikes::MLFLOW,
    look_alikes::LANGSMITH,
    look_alikes::GENKIT,
    vercel_ai::VERCEL_AI,
    look_alikes::VOLTAGENT,
    mastra::MASTRA,
    traceloop::TRACELOOP,
    autogen::AUTOGEN,
    logfire::LOGFIRE,
    smolagents::SMOLAGENTS,
    llama_index::LLAMA_INDEX,
    haystack::HAYSTACK,
    litellm::LITELLM,
    dspy::DSPY,
    openinference::OPENINFERENCE,
    look_alikes::MCP,
    gen_ai::GEN_AI,
    tool_name::TOOL_NAME,
    span_name::SPAN_NAMES,
];
const _: () = assert!(
    CONVENTIONS.len() <= 32,
    "a mask has a bit for each convention"
);

/// An index in [`CONVENTIONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConventionId(pub(crate) u8);

impl ConventionId {
    /// The convention of spans with an attribute named in the settings.
    pub(crate) const TOOL_NAME: Self = Self::of("tool_name");
    /// The convention of a span that only its log records identify as a model span.
    pub(crate) const GEN_AI: Self = Self::of("gen_ai");

    pub(crate) fn get(self) -> &'static Convention {
        &CONVENTIONS[usize::from(self.0)]
    }

    /// Returns the number for a `Recognition`, in which 0 means no convention.
    pub(crate) fn number(self) -> u16 {
        u16::from(self.0) + 1
    }

    /// Returns the built-in convention with this number.
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        let id = number.checked_sub(1)?;
        (usize::from(id) < CONVENTIONS.len()).then_some(Self(id as u8))
    }

    const fn of(name: &str) -> Self {
        let mut id = 0;
        while !is_equal(CONVENTIONS[id].name, name) {
            id += 1;
        }
        Self(id as u8)
    }
}

const fn is_equal(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

pub(crate) fn is_written_by_many(name: &str) -> bool {
    let mut conventions = CONVENTIONS.iter();
    conventions.any(|convention| convention.written_by_many && convention.name == name)
}

pub(crate) fn is_reply_above(name: &str) -> bool {
    let mut conventions = CONVENTIONS.iter();
    conventions.any(|convention| convention.reply_is_above && convention.name == name)
}

// === Candidate conventions ===

/// Returns the conventions that could recognise a span with these attributes, usually one.
pub(crate) fn candidates(view: &View<'_>) -> impl Iterator<Item = ConventionId> {
    let by_kind = if view.is_record() { OF_RECORDS } else { 0 };
    let marks = view.present().intersection(keys::MARKS);
    conventions_in(by_marks(marks) | by_kind | by_name(view.name()))
}

/// Returns the conventions that use these marks.
fn by_marks(marks: KeyBits) -> u32 {
    const _: () = assert!(
        keys::MARKS.words()[1] == 0 && keys::MARKS.words()[2] == 0,
        "marks are the first rows of the table of keys"
    );
    let (mut marks, mut mask) = (marks.words()[0], 0);
    while marks != 0 {
        mask |= BY_MARK[marks.trailing_zeros() as usize];
        marks &= marks - 1;
    }
    mask
}

/// Returns the conventions that match a span's name. The first byte alone rules out most names.
fn by_name(span_name: &str) -> u32 {
    let first = span_name.as_bytes().first();
    let mask = first.map_or(0, |first| BY_FIRST_BYTE[usize::from(*first)]);
    conventions_in(mask)
        .filter(|id| {
            let mut names = id.get().span_names.iter();
            names.any(|name| span_name.starts_with(name))
        })
        .fold(0, |mask, id| mask | 1 << id.0)
}

fn conventions_in(mut mask: u32) -> impl Iterator<Item = ConventionId> {
    std::iter::from_fn(move || {
        let position = mask.trailing_zeros() as u8;
        mask &= mask.wrapping_sub(1);
        (position < 32).then_some(ConventionId(position))
    })
}

/// Builds a mask of the conventions for which a constant expression is true.
macro_rules! mask {
    ($convention:ident => $holds:expr) => {{
        let mut mask = 0;
        let mut at = 0;
        while at < CONVENTIONS.len() {
            let $convention = &CONVENTIONS[at];
            mask |= ($holds as u32) << at;
            at += 1;
        }
        mask
    }};
}

/// The conventions that recognise span names with a given first byte.
static BY_FIRST_BYTE: [u32; 256] = {
    let mut by_byte = [0; 256];
    let mut convention = 0;
    while convention < CONVENTIONS.len() {
        let names = CONVENTIONS[convention].span_names;
        let mut name = 0;
        while name < names.len() {
            by_byte[names[name].as_bytes()[0] as usize] |= 1 << convention;
            name += 1;
        }
        convention += 1;
    }
    by_byte
};

const OF_RECORDS: u32 = mask!(convention => convention.of_records);

/// The conventions that use each mark.
const BY_MARK: [u32; keys::N_BUILT_IN] = {
    let mut by_mark = [0; keys::N_BUILT_IN];
    let mut mark = 0;
    while mark < by_mark.len() {
        by_mark[mark] = mask!(convention => convention.marks.contains(KeyId(mark as u16)));
        mark += 1;
    }
    by_mark
};

// === Hooks ===

pub(crate) fn prunes() -> impl Iterator<Item = &'static Prune> {
    const MASK: u32 = mask!(convention => convention.prune.is_some());
    conventions_in(MASK).filter_map(|id| id.get().prune.as_ref())
}

pub(crate) fn refines() -> impl Iterator<Item = &'static Refine> {
    const MASK: u32 = mask!(convention => convention.refine.is_some());
    conventions_in(MASK).filter_map(|id| id.get().refine.as_ref())
}

pub(crate) fn cross_traces() -> impl Iterator<Item = &'static CrossTrace> {
    const MASK: u32 = mask!(convention => convention.cross_trace.is_some());
    conventions_in(MASK).filter_map(|id| id.get().cross_trace.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_of_a_convention_has_the_class_of_one() {
        for convention in CONVENTIONS {
            assert_eq!(
                convention.marks.without(keys::MARKS),
                KeyBits::NONE,
                "{}: its marks are rows of the class `Kind` or `Mark`",
                convention.name
            );
        }
    }
}
