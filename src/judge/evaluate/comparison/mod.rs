//! Compares calls with expectations: orders, arguments, results and assignments, and the resulting
//! score.

pub mod lcs;

pub(super) mod agreement;
pub(super) mod alignment;
pub(super) mod arguments;
pub(super) mod assignment;
pub(super) mod captured;
pub(super) mod copies;
pub(super) mod rows;
pub(super) mod score;
pub(super) mod value_path;

pub(super) mod best_order;
mod bipartite;
pub(super) mod matched;
pub(super) mod order;
