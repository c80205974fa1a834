//! Encodes the reported results of traces and sessions for a journal, so that a restarted pipeline
//! reports nothing twice and continues with the same revisions.

use std::sync::Arc;

use hashbrown::HashMap;
use otlp::span::{SpanId, TraceId};

use super::{ReportState, Reported, ReportedCriterion, ReportedEvaluation};
use crate::assemble::CloseReason;
use crate::evaluate::{self, Previous, Verdict};
use crate::pipeline::Rules;

/// Encoded marks of traces and sessions, which can be concatenated.
#[derive(Debug, Default)]
pub struct Marks {
    earlier: Vec<u8>,
    /// Names of criteria and evaluators, each once.
    names: HashMap<Box<str>, u32>,
    name_bytes: Vec<u8>,
    bytes: Vec<u8>,
    /// The oldest record that one of the traces needs.
    oldest: Option<u64>,
}

#[derive(Debug)]
pub struct TraceMark {
    /// The id of the trace, or of the session.
    pub trace_id: TraceId,
    /// All records below this number were used for the judgement; 0 for a session.
    pub judged_below: u64,
    /// The first record with spans of the trace; `u64::MAX` for a session.
    pub first_record: u64,
    pub(in crate::pipeline) marked: Marked,
    pub(in crate::pipeline) reported: Reported,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline) enum Marked {
    /// A trace that was closed for this reason, or is open.
    Trace(CloseReason),
    Session {
        is_final: bool,
    },
}

const NAMED: u8 = 1;
const OF_AGENT_RUN: u8 = 2;
const HAS_SUBJECT: u8 = 4;
const CERTAIN: u8 = 8;
const WITHDRAWN: u8 = 16;
const ALARM: u8 = 32;

/// The name of an evaluator that is not known, such as that of a removed criterion.
const UNKNOWN: &str = "unknown";

impl Marks {
    /// Adds the mark of a judged trace or session, or of an open trace with alarms. The judgement
    /// used all records below `judged_below`; the trace still needs the records from `first_record`
    /// on.
    pub(in crate::pipeline) fn add(
        &mut self,
        id: TraceId,
        marked: Marked,
        reported: &Reported,
        judged_below: u64,
        first_record: u64,
    ) {
        self.oldest = Some(self.oldest.map_or(first_record, |at| at.min(first_record)));
        self.bytes.extend_from_slice(id.as_bytes());
        self.put_u64(judged_below);
        self.put_u64(first_record);
        self.bytes.push(match marked {
            Marked::Trace(reason) => reason_number(reason),
            Marked::Session { is_final: false } => OPEN_SESSION,
            Marked::Session { is_final: true } => FINAL_SESSION,
        });
        self.put_u32(u32::try_from(reported.0.len()).unwrap_or(u32::MAX));
        for evaluation in &reported.0 {
            self.add_evaluation(evaluation);
        }
    }

    fn add_evaluation(&mut self, evaluation: &ReportedEvaluation) {
        let ReportedEvaluation {
            criterion,
            agent_run,
            fingerprint,
            certain,
            previous,
            state,
        } = evaluation;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(matches!(criterion, ReportedCriterion::Named { .. }), NAMED)
            | flag(agent_run.is_some(), OF_AGENT_RUN)
            | flag(previous.subject.is_some(), HAS_SUBJECT)
            | flag(*certain, CERTAIN)
            | flag(*state == ReportState::Withdrawn, WITHDRAWN)
            | flag(*state == ReportState::Alarm, ALARM);
        let name = self.name(criterion.name());
        self.put_u32(name);
        self.bytes.push(flags);
        self.bytes.push(verdict_number(previous.verdict));
        self.put_u32(previous.revision);
        self.put_u64(*fingerprint);
        for span_id in [agent_run, &previous.subject].into_iter().flatten() {
            self.bytes.extend_from_slice(&span_id.to_bytes());
        }
        if let ReportedCriterion::Named { evaluator, .. } = criterion {
            let name = self.name(evaluator);
            self.put_u32(name);
        }
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(number) = self.names.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.insert(name.into(), number);
        let n_bytes = u32::try_from(name.len()).unwrap_or(u32::MAX);
        self.name_bytes.extend_from_slice(&n_bytes.to_le_bytes());
        self.name_bytes.extend_from_slice(name.as_bytes());
        number
    }

    fn put_u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Returns all marks, encoded, and the oldest record that they need; `None` without marks.
    pub fn encode(&self) -> Option<(Vec<u8>, u64)> {
        let lengths = [self.names.len(), self.name_bytes.len(), self.bytes.len()];
        let mut encoded = self.earlier.clone();
        if self.bytes.is_empty() {
            return Some((encoded, self.oldest?));
        }
        for length in lengths {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            encoded.extend_from_slice(&length.to_le_bytes());
        }
        encoded.extend_from_slice(&self.name_bytes);
        encoded.extend_from_slice(&self.bytes);
        Some((encoded, self.oldest?))
    }

    pub(in crate::pipeline) fn append(&mut self, other: &mut Self) {
        if let Some((bytes, oldest)) = std::mem::take(other).encode() {
            // Each `Marks` numbers names separately, so the marks here are encoded first.
            let (mut earlier, before) = self.encode().unwrap_or((Vec::new(), oldest));
            earlier.extend(bytes);
            *self = Self {
                earlier,
                oldest: Some(before.min(oldest)),
                ..Self::default()
            };
        }
    }
}

impl TraceMark {
    /// Decodes marks. Stops at invalid input; skips evaluations, but not alarms, of criteria that
    /// were removed.
    pub fn decode_all(bytes: &[u8], rules: &Rules) -> Vec<Self> {
        let mut marks = Vec::new();
        let mut input = Input(bytes);
        while !input.0.is_empty() && input.chunk(rules, &mut marks).is_some() {}
        marks
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn chunk(&mut self, rules: &Rules, marks: &mut Vec<TraceMark>) -> Option<()> {
        let [n_names, n_name_bytes, n_bytes] = [self.u32()?, self.u32()?, self.u32()?];
        let mut names_input = Input(self.take(n_name_bytes as usize)?);
        let mut chunk = Input(self.take(n_bytes as usize)?);
        let mut names = Vec::new();
        for _ in 0..n_names {
            let n_bytes = names_input.u32()?;
            let name = names_input.take(n_bytes as usize)?;
            names.push(std::str::from_utf8(name).ok()?);
        }
        while !chunk.0.is_empty() {
            marks.push(chunk.mark(&names, rules)?);
        }
        Some(())
    }

    fn mark(&mut self, names: &[&str], rules: &Rules) -> Option<TraceMark> {
        let trace_id = TraceId::try_new(self.take(16)?)?;
        let (judged_below, first_record) = (self.u64()?, self.u64()?);
        let marked = match self.u8()? {
            OPEN_SESSION => Marked::Session { is_final: false },
            FINAL_SESSION => Marked::Session { is_final: true },
            number => Marked::Trace(reason_of(number)?),
        };
        let n_evaluations = self.u32()?;
        let mut reported = Reported::default();
        for _ in 0..n_evaluations {
            reported.0.extend(self.evaluation(names, rules)?);
        }
        Some(TraceMark {
            trace_id,
            judged_below,
            first_record,
            marked,
            reported,
        })
    }

    /// Decodes the next evaluation; `Some(None)` if it is no alarm and its criterion was removed.
    fn evaluation(&mut self, names: &[&str], rules: &Rules) -> Option<Option<ReportedEvaluation>> {
        let name = *names.get(self.u32()? as usize)?;
        let (flags, verdict) = (self.u8()?, verdict_of(self.u8()?)?);
        let (revision, fingerprint) = (self.u32()?, self.u64()?);
        let agent_run = self.span_id(flags & OF_AGENT_RUN != 0)?;
        let subject = self.span_id(flags & HAS_SUBJECT != 0)?;
        let named = |evaluator| {
            let name = name.into();
            ReportedCriterion::Named { name, evaluator }
        };
        let criterion = if flags & NAMED != 0 {
            let evaluator = *names.get(self.u32()? as usize)?;
            Some(named(
                evaluate::evaluator_named(evaluator).unwrap_or(UNKNOWN),
            ))
        } else {
            let mut registered = rules.criteria.iter();
            let criterion = registered.find(|criterion| criterion.name == name);
            let removed = (flags & ALARM != 0).then(|| named(UNKNOWN));
            criterion
                .map(|it| ReportedCriterion::Registered(Arc::clone(it)))
                .or(removed)
        };
        Some(criterion.map(|criterion| ReportedEvaluation {
            criterion,
            agent_run,
            fingerprint,
            certain: flags & CERTAIN != 0,
            previous: Previous {
                subject,
                verdict,
                revision,
            },
            state: if flags & WITHDRAWN != 0 {
                ReportState::Withdrawn
            } else if flags & ALARM != 0 {
                ReportState::Alarm
            } else {
                ReportState::Unconfirmed
            },
        }))
    }

    fn span_id(&mut self, is_there: bool) -> Option<Option<SpanId>> {
        if is_there { SpanId::try_new(self.take(8)?).map(Some) } else { Some(None) }
    }

    fn take(&mut self, n_bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n_bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

// === Numbers stored in journals: never change them ===

const OPEN_SESSION: u8 = 14;
const FINAL_SESSION: u8 = 15;

fn reason_number(reason: CloseReason) -> u8 {
    match reason {
        CloseReason::RootEnded => 1,
        CloseReason::NoRoot => 2,
        CloseReason::Inactive => 3,
        CloseReason::Expired => 4,
        CloseReason::SpanLimit => 5,
        CloseReason::SizeLimit => 6,
        CloseReason::Evicted => 7,
        CloseReason::Shutdown => 8,
        CloseReason::Incomplete => 9,
        CloseReason::Open => 10,
        CloseReason::Silent => 11,
        CloseReason::StartUnseen => 12,
        CloseReason::NotWhole => 13,
    }
}

fn reason_of(number: u8) -> Option<CloseReason> {
    let mut all = CloseReason::ALL.into_iter().chain([CloseReason::Open]);
    all.find(|reason| reason_number(*reason) == number)
}

fn verdict_number(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Pass => 1,
        Verdict::Fail => 2,
        Verdict::NotEvaluated => 3,
        Verdict::Error => 4,
    }
}

fn verdict_of(number: u8) -> Option<Verdict> {
    let mut all = Verdict::ALL.into_iter();
    all.find(|verdict| verdict_number(*verdict) == number)
}
