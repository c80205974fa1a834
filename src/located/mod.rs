//! Reads YAML or JSON into serde types and reports every mistake at once, each with its place, a
//! caret and a remedy. Knows nothing of spanscore: its keys and their hints are passed in.

mod parse;
mod problem;
mod texts;
mod tree;

mod de_error;
mod diagnose;
mod interpolate;
mod reader;
mod yaml;

pub(crate) use crate::text::nearest;
pub(crate) use de_error::DeError;
pub(crate) use diagnose::{Extent, Hints, Rewrite, read, start_of};
pub use interpolate::Files;
pub(crate) use interpolate::{ITEM, Interpolation, Secrets, holds_credentials};
pub(crate) use parse::{TextBounds, infer, parse, parse_within};
pub use problem::{Problem, Problems, Severity};
pub(crate) use reader::{Reader, lift_inlined};
pub use texts::Spot;
pub(crate) use texts::{Place, TextKind, Texts};
pub(crate) use tree::{Kind, Map, MapEntry, Node, NodeValue, OnConflict, Scalar};
pub use yaml::to_yaml;
pub(crate) use yaml::{flow, to_commented_yaml};
