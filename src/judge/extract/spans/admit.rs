//! Classifies an arriving span and prunes its attributes according to its class.

use otlp::span::{
    KeySet, ScopeHash, Span, SpanAdmission, SpanClass, StoredAttributesBuilder, Value,
};

use super::keys;
use super::log_records::place;
use super::prune::{cut_results, pruning};
use super::recognise::Recogniser;
use super::view::View;

impl SpanAdmission for Recogniser {
    fn keys(&self) -> &KeySet {
        Recogniser::keys(self)
    }

    /// Returns false for spanscore's own scores and for log records that `place` rejects.
    /// Classifies a span that is not a log record, and cuts or drops its long values.
    fn admit(&self, span: &mut Span, kept: &mut StoredAttributesBuilder) -> bool {
        if span.is_record {
            return place(span, kept).is_some();
        }
        let view = View::new(kept.current(), span);
        span.class = classify(span, &view, self);
        if span.scope == ScopeHash::OWN && is_own_score(span.class, &view) {
            return false;
        }
        let max_value_size = self.tools.max_value_size;
        if span.class.tool_call {
            cut_results(kept, max_value_size);
        } else if view.has_any(keys::PAYLOADS) || view.may_have_events() {
            pruning(&view, span.class, max_value_size)(kept);
        }
        true
    }
}

/// Returns true for an evaluation that no convention recognises. A recognised span is judged even
/// if its scope is spanscore's.
fn is_own_score(class: SpanClass, view: &View<'_>) -> bool {
    !(class.tool_call || class.agent_run || class.model)
        && view.str(keys::OPERATION) == Some("evaluation")
}

/// Recognises an arriving span. Sets `span.is_watched` and returns the span's class.
fn classify(span: &mut Span, view: &View<'_>, recogniser: &Recogniser) -> SpanClass {
    let found = recogniser.recognise(view);
    span.is_watched = recogniser.watches(found, view);
    let update = match view.get(keys::UPDATE_ID) {
        Some(Value::Int(update)) => u64::try_from(update).ok(),
        Some(Value::Str(update)) => update.parse().ok(),
        _ => None,
    };
    let update = update.map(|update: u64| u32::try_from(update).unwrap_or(u32::MAX));
    SpanClass {
        tool_call: found.call != 0,
        agent_run: found.agent != 0,
        model: found.model != 0,
        partial: update == Some(0) && span.start_unix_nanos == span.end_unix_nanos,
        update: update.unwrap_or_default(),
        recognition: found,
    }
}
