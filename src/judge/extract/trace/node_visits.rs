//! The agents and graph nodes that a trace visits, in order.

use std::sync::Arc;

use super::interner::Interner;
use super::span_roles::SpanRoles;
use crate::extract::spans::SpanIdx;
use crate::extract::spans::shared_keys::{GraphNode, MAY_NAME_NODE, graph_node};

/// Agent runs, and the nodes of graphs: every span within a node names it, and its topmost ones
/// count.
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
    // A run that is a node itself comes as run and node; they fold if they are of one name.
    visits.sort_by_key(|(span_idx, _)| roles.rank(*span_idx));
    visits.dedup_by(|(_, name), (_, name_before)| name == name_before);
    visits.into_iter().map(|(_, name)| name).collect()
}
