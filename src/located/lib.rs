//! Reads YAML or JSON into serde types and reports every mistake together, each with its place, a
//! caret and a remedy. Independent of spanscore, because the hints for its keys are passed as
//! arguments.

#![expect(
    missing_docs,
    reason = "only the program uses this crate; fields and variants say what they hold"
)]

mod parse;
mod problem;
mod texts;
mod tree;

mod de_error;
mod diagnose;
mod interpolate;
mod reader;
mod yaml;

pub use de_error::DeError;
pub use diagnose::{Extent, Hints, Rewrite, read, start_of};
pub use interpolate::Files;
pub use interpolate::{ITEM, Interpolation, Secrets, contains_credentials};
pub use parse::{TextBounds, infer, parse, parse_within};
pub use problem::{Problem, Problems, Severity};
pub use reader::{Reader, lift_inlined};
pub use texts::Spot;
pub use texts::{Place, TextKind, Texts};
pub use tree::{Kind, Map, MapEntry, Node, NodeValue, OnConflict, Scalar};
pub use yaml::to_yaml;
pub use yaml::{flow, to_commented_yaml};
