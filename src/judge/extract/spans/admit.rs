//! Admits a span that arrives: classifies it and prunes it by its class, with one view of its
//! attributes.

use otlp::span::{KeptAttributesBuilder, Span, SpanClass};

use super::keys;
use super::prune::{cut_results, prune};
use super::recognise::{Recogniser, classify_view, is_own_score};
use super::view::View;

/// Classifies and prunes a span that arrives: results longer than the settings allow are cut.
/// Returns `None` for a score of ours, which is not judged. The builder lends its scratch space.
pub fn admit(
    span: &mut Span,
    recogniser: &Recogniser,
    builder: &mut KeptAttributesBuilder,
) -> Option<SpanClass> {
    let view = View::new(span);
    let class = classify_view(span, &view, recogniser);
    if is_own_score(span, class) {
        return None;
    }
    let max_value_size = recogniser.tools.max_value_size;
    let may_have_payloads = view.has_any(keys::PAYLOADS) || view.may_have_events();
    if class.tool_call {
        cut_results(&mut span.kept, max_value_size, builder);
    } else if may_have_payloads {
        prune(span, class, max_value_size, builder);
    }
    Some(class)
}
