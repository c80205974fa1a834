//! Lists the agents and graph nodes that a trace visits.

use std::sync::Arc;

use super::interner::Interner;
use super::span_roles::SpanRoles;
use crate::extract::spans::SpanIdx;
use crate::extract::spans::shared_keys::{GraphNode, MAY_NAME_NODE, graph_node};

/// Returns the agent runs and graph nodes that a trace visits, in order. Every span within a node
/// names the node; only the topmost ones count.
pub(crate) fn node_visits(roles: &SpanRoles<'_>, interner: &mut Interner) -> Arc<[Arc<str>]> {
    let nodes: Vec<Option<GraphNode<'_>>> = if roles.present.intersects(MAY_NAME_NODE) {
        (roles.recognised.iter())
            .map(|span| graph_node(&span.view))
            .collect()
    } else {
        Vec::new()
    };
    let runs = roles.runs.iter();
    let mut visits: Vec<(SpanIdx, Arc<str>)> = runs
        .map(|run| (run.span, interner.shared(&run.name)))
        .collect();
    for (span_idx, node) in nodes.iter().enumerate() {
        let Some(node) = node else { continue };
        let above = roles.tree.parent[span_idx].and_then(|parent| nodes[parent].as_ref());
        if above != Some(node) {
            visits.push((span_idx, interner.shared(&node.name)));
        }
    }
    // A run that is also a node appears twice; the two entries merge if their names are equal.
    visits.sort_by_key(|(span_idx, _)| roles.rank(*span_idx));
    visits.dedup_by(|(_, name), (_, name_before)| name == name_before);
    visits.into_iter().map(|(_, name)| name).collect()
}
