//! Encodes an evaluation as an OTLP span that dashboards show as a score.
//!
//! docs/design.md#how-scores-leave lists the attributes: the GenAI evaluation attributes, the
//! attributes by which Phoenix, MLflow and Langfuse show a span as an evaluator, and our own.
//! Arguments and results are omitted unless `explain.values` is set.

use judge::evaluate::{Evaluation, Explain, Previous, Scope, Stage, Verdict};
use judge::extract::{CASE_ID, Payload, Subject, ToolCall, Trajectory};
use otlp::span::{SpanId, SpanRow, TraceId};
use otlp::wire::otlp::{link, span, status};
use otlp::wire::write;
use serde::Serialize;
use sha2::{Digest, Sha256};
use text::{hex, truncated};

use super::score_wire::{Attributes, ScoreBatch};
use crate::config::{OnRevision, Scores, StatusOnFail};

/// Maximum number of links to offending calls on one span: the default limit of OpenTelemetry's
/// SDKs.
const MAX_LINKS: usize = 128;
/// Maximum bytes of `input.value` and of `output.value`, so that a batch stays far below 4 MiB, the
/// default limit of gRPC peers.
const MAX_VALUE_SIZE: usize = 32 << 10;
/// The duration of a score span in nanoseconds, long enough to be drawn. A score span ends with its
/// parent, the judged span, and does not start before it: Jaeger treats a child that exceeds its
/// parent as clock skew, warns and moves the child.
const DURATION_NANOS: u64 = 1_000;

/// Adds the score span of an evaluation, if it becomes one.
pub(super) fn push(
    batch: &mut ScoreBatch,
    evaluation: &Evaluation,
    scores: &Scores,
    explain: &Explain,
) {
    // Trajectories made of log records have no span that could be the parent: they are reported as
    // event and metric.
    if evaluation.trajectory.subject.is_none() {
        return;
    }
    if !is_wanted(evaluation, scores) {
        return;
    }
    if let Some(subject) = evaluation.subject() {
        batch.push(&subject.resource.encoded, |out| {
            span(out, evaluation, &subject, scores, explain)
        });
    }
}

/// Returns the id of a score span: the first 8 bytes of SHA-256(trace id ‖ evaluated span id ‖
/// criterion name ‖ the revision as 4 bytes, big-endian, unless it is 0). All versions and replicas
/// compute the same id, so a score that is sent twice is one score.
pub(super) fn span_id_of(mut hash: Sha256, revision: u32) -> SpanId {
    if revision > 0 {
        hash.update(revision.to_be_bytes());
    }
    let digest = hash.finalize();
    // An id must not be zero. All four windows are zero with a probability of 2^-256.
    digest
        .chunks_exact(8)
        .find_map(SpanId::try_new)
        .expect("a SHA-256 digest is not all zero")
}

/// Returns the key under which a backend stores a score, equal for all revisions: the first 16
/// bytes, in hex, of the digest that [`span_id_of`] computes for revision 0. The key is longer
/// than a span id because it must be unique among all traces. For a session the key is the
/// verdict's id, because the last turn, to which the score belongs, may change.
pub(super) fn score_key(evaluation: &Evaluation, evaluated: SpanId) -> String {
    let (trace_id, name) = (evaluation.trajectory.trace_id, evaluation.criterion.name());
    let hash = evaluation.session_hash();
    let hash = hash.unwrap_or_else(|| score_hash(trace_id, evaluated, name));
    hex(&hash.finalize()[..16])
}

pub(super) fn score_hash(trace_id: TraceId, evaluated: SpanId, criterion: &str) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update(trace_id.as_bytes());
    hash.update(evaluated.to_bytes());
    hash.update(criterion.as_bytes());
    hash
}

/// Returns the time of a score in Unix nanoseconds: the evaluated span's end, else the latest end
/// in the trace.
pub(super) fn score_time(trajectory: &Trajectory) -> u64 {
    let end = trajectory
        .subject
        .as_ref()
        .map_or(0, |subject| subject.end_unix_nanos);
    if end == 0 { trajectory.latest_end_unix_nanos } else { end }
}

/// Writes the `gen_ai.evaluation.*` attributes and `error.type`, which span and event share.
pub(super) fn evaluation_attributes(attributes: &mut Attributes<'_>, evaluation: &Evaluation) {
    attributes.text("gen_ai.evaluation.name", evaluation.criterion.name());
    if let Some(value) = evaluation.value {
        attributes.number("gen_ai.evaluation.score.value", value);
    }
    attributes.text("gen_ai.evaluation.score.label", evaluation.verdict.as_str());
    attributes.text("gen_ai.evaluation.explanation", evaluation.explanation());
    if let Some(error) = &evaluation.error {
        attributes.text("error.type", error.kind);
    }
    if let Some(turns) = &evaluation.trajectory.turns {
        attributes.text("spanscore.scope", Scope::Session.as_str());
        attributes.count("spanscore.session.turns", turns.traces.len());
    }
    if let Some(verdict_id) = evaluation.verdict_id() {
        attributes.text("spanscore.verdict.id", &verdict_id);
        attributes.flag("spanscore.final", evaluation.stage != Stage::Alarm);
    }
}

/// Writes the copied attributes. If the evaluated span names its agent or session under another
/// key, writes the extracted name under the copied key, because dashboards group runs by that key.
pub(super) fn copied_attributes(
    attributes: &mut Attributes<'_>,
    trajectory: &Trajectory,
    keys: &[String],
) {
    for key in keys {
        let subject = trajectory.subject.iter();
        let of_span = subject
            .flat_map(|subject| &subject.attributes)
            .find(|(of_span, _)| **of_span == *key.as_str())
            .map(|(_, value)| &**value);
        let value = of_span.or(match key.as_str() {
            "gen_ai.agent.name" => trajectory.agent.as_deref(),
            "gen_ai.conversation.id" | "session.id" => trajectory.session.as_deref(),
            _ => None,
        });
        if let Some(value) = value {
            attributes.text(key, value);
        }
    }
}

/// Returns true if the evaluation becomes a span. Every evaluation that did not pass becomes one,
/// and so does a share of the passed ones, chosen by trace so that all criteria and replicas agree.
/// A pass that replaces another verdict is always sent; otherwise dashboards would still show that
/// verdict. With `on_revision: none`, revisions become no spans.
fn is_wanted(evaluation: &Evaluation, scores: &Scores) -> bool {
    if evaluation.revision > 0 {
        if scores.span.on_revision == OnRevision::None {
            return false;
        }
        if evaluation.previous.map(|previous| previous.verdict) != Some(Verdict::Pass) {
            return true;
        }
    }
    evaluation.verdict != Verdict::Pass
        || scores.span.sample_pass >= 1.0
        || share(evaluation.trajectory.trace_id) < scores.span.sample_pass
}

/// Returns a number from 0 to 1 for a trace, by a hash of its id, because ids need not be random.
fn share(trace_id: TraceId) -> f64 {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(trace_id.as_bytes()));
    let head = u32::from_be_bytes([a, b, c, d]);
    f64::from(head) / (f64::from(u32::MAX) + 1.0)
}

/// Writes the fields of `opentelemetry.proto.trace.v1.Span`, in the order of their numbers.
fn span(
    out: &mut Vec<u8>,
    evaluation: &Evaluation,
    subject: &Subject,
    scores: &Scores,
    explain: &Explain,
) {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let trace_id = trajectory.trace_id;
    // The final verdict may be about the same span as the alarm, and needs a separate id.
    let of_alarm = if evaluation.stage == Stage::Alarm { "\0alarm" } else { "" };
    let hash_at = |evaluated| {
        let hash = evaluation.session_hash();
        let hash = hash.unwrap_or_else(|| score_hash(trace_id, evaluated, criterion.name()));
        hash.chain_update(of_alarm)
    };
    let id_of = |revision| span_id_of(hash_at(subject.span_id), revision);
    let end = match subject.end_unix_nanos {
        0 => score_time(trajectory),
        end => end,
    };
    let start = end
        .saturating_sub(DURATION_NANOS)
        .max(subject.start_unix_nanos.min(end));

    write::bytes(out, span::TRACE_ID, trace_id.as_bytes());
    write::bytes(
        out,
        span::SPAN_ID,
        &id_of(if scores.span.on_revision == OnRevision::SameId {
            0
        } else {
            evaluation.revision
        })
        .to_bytes(),
    );
    write::bytes(out, span::TRACE_STATE, subject.trace_state.as_bytes());
    write::bytes(out, span::PARENT_SPAN_ID, &subject.span_id.to_bytes());
    write::message(out, span::NAME, |out| {
        out.extend_from_slice(b"evaluation ");
        out.extend_from_slice(criterion.name().as_bytes());
    });
    write::uint(out, span::KIND, 1); // SPAN_KIND_INTERNAL
    write::fixed64(out, span::START_TIME, start);
    write::fixed64(out, span::END_TIME, end);
    attributes(out, evaluation, scores, explain);
    let mut n_links = 0;
    if let Some(Previous {
        subject: Some(evaluated),
        revision,
        ..
    }) = evaluation.previous
        && scores.span.on_revision == OnRevision::NewSpan
        // The previous score of a session may be in the trace of another turn.
        && (trajectory.turns.is_none() || evaluated == subject.span_id)
    {
        link(
            out,
            trace_id,
            span_id_of(hash_at(evaluated), revision),
            "replaces",
        );
        n_links += 1;
    }
    let calls = evaluation.offending().iter().filter_map(|&call_idx| {
        let span_id = trajectory.tool_calls.get(call_idx)?.span_id?;
        Some((trajectory.trace_of(call_idx), span_id))
    });
    let mut n_dropped = 0;
    for (trace_id, span_id) in calls {
        if n_links == MAX_LINKS {
            n_dropped += 1;
            continue;
        }
        link(out, trace_id, span_id, "offending_call");
        n_links += 1;
    }
    write::uint(out, span::DROPPED_LINKS_COUNT, n_dropped);
    if evaluation.verdict == Verdict::Fail && scores.span.status_on_fail == StatusOnFail::Error {
        write::message(out, span::STATUS, |out| {
            write::bytes(out, status::MESSAGE, evaluation.explanation().as_bytes());
            write::uint(out, status::CODE, 2); // STATUS_CODE_ERROR
        });
    }
    // Mark the parent as not remote, because the score has the agent's resource. Backends would
    // draw a span with a remote parent as an entry into the agent's service.
    write::fixed32(
        out,
        span::FLAGS,
        subject.flags & 0xff | u32::from(SpanRow::HAS_IS_REMOTE),
    );
}

fn attributes(out: &mut Vec<u8>, evaluation: &Evaluation, scores: &Scores, explain: &Explain) {
    let (criterion, trajectory) = (&evaluation.criterion, &evaluation.trajectory);
    let mut attributes = Attributes::new(out, span::ATTRIBUTES);
    attributes.text("gen_ai.operation.name", "evaluation");
    evaluation_attributes(&mut attributes, evaluation);
    attributes.text("openinference.span.kind", "EVALUATOR");
    attributes.text("langfuse.observation.type", "evaluator");
    attributes.text_with("input.value", |out| {
        observed(out, &trajectory.tool_calls, explain)
    });
    attributes.text("input.mime_type", "application/json");
    attributes.text_with("output.value", |out| {
        justification(out, evaluation.details())
    });
    attributes.text("output.mime_type", "application/json");
    attributes.text("spanscore.evaluator", criterion.evaluator());
    if let Some(severity) = criterion.severity() {
        attributes.text("spanscore.severity", severity.as_str());
    }
    attributes.text("spanscore.criterion.revision", criterion.revision());
    attributes.text("spanscore.completeness", trajectory.completeness.as_str());
    if let Some(case_id) = &trajectory.expectation_attributes.case_id {
        attributes.text(CASE_ID, case_id);
    }
    attributes.count("spanscore.revision", evaluation.revision as usize);
    attributes.count("spanscore.calls.observed", trajectory.tool_calls.len());
    attributes.count("spanscore.calls.expected", evaluation.n_expected);
    if evaluation.replayed {
        attributes.flag("spanscore.replayed", true);
    }
    if trajectory.clock_adjusted {
        attributes.flag("spanscore.clock_adjusted", true);
    }
    copied_attributes(&mut attributes, trajectory, &scores.copy_attributes);
}

fn link(out: &mut Vec<u8>, trace_id: TraceId, span_id: SpanId, reason: &str) {
    write::message(out, span::LINKS, |out| {
        write::bytes(out, link::TRACE_ID, trace_id.as_bytes());
        write::bytes(out, link::SPAN_ID, &span_id.to_bytes());
        Attributes::new(out, link::ATTRIBUTES).text("spanscore.link", reason);
    });
}

/// Writes the observed calls as JSON: their names, and with `explain.values` their arguments and
/// results. A list that is too long ends with the number of omitted calls.
fn observed(out: &mut Vec<u8>, calls: &[ToolCall], explain: &Explain) {
    let start = out.len();
    out.push(b'[');
    for (call_idx, call) in calls.iter().enumerate() {
        if call_idx > 0 {
            out.push(b',');
        }
        let before = out.len();
        out.extend_from_slice(b"{\"name\":");
        json(out, &*call.name);
        if explain.values {
            value(out, "args", call.args.as_ref(), explain);
            value(out, "result", call.result.as_ref(), explain);
        }
        out.push(b'}');
        if out.len() - start > MAX_VALUE_SIZE {
            out.truncate(before);
            out.extend_from_slice(format!("{{\"omitted\":{}}}", calls.len() - call_idx).as_bytes());
            break;
        }
    }
    out.push(b']');
}

/// Writes one value: short, complete JSON unchanged, else the beginning of its text.
fn value(out: &mut Vec<u8>, key: &str, payload: Option<&Payload>, explain: &Explain) {
    let Some(payload) = payload else { return };
    out.extend_from_slice(b",\"");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
    let start = truncated(&payload.text, explain.max_value_length);
    if start.len() == payload.text.len() && !payload.is_cut() {
        json(out, payload.json());
    } else {
        json(out, &format!("{start}…"));
    }
}

fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("writing JSON to memory cannot fail");
}

/// Writes the details of the evaluation, or only their size if they are too long.
fn justification(out: &mut Vec<u8>, details: &serde_json::Value) {
    let start = out.len();
    json(out, details);
    let len = out.len() - start;
    if len > MAX_VALUE_SIZE {
        out.truncate(start);
        out.extend_from_slice(format!("{{\"omitted_bytes\":{len}}}").as_bytes());
    }
}
