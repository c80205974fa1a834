//! Joins the trajectories of a session's turns into one, as if all calls were in one trace.

use std::sync::Arc;

use otlp::span::TraceId;
use sha2::{Digest, Sha256};

use super::model_use::ModelUse;
use super::tool_call::ToolCall;
use super::trajectory::{AgentRun, SessionTurns, Subject, Trajectory};
use super::uncertainty::TrajectoryUncertainty;
use crate::assemble::CloseReason;

impl Trajectory {
    /// Joins the turns of one session. The turns must be sorted by start. The evaluated span, its
    /// agent and its root are those of the last turn. The result is cut short unless `completeness`
    /// is `Silent`, because an unseen turn may have further calls, or be the last one. Returns
    /// `None` if there are no turns.
    pub fn merge(turns: &[Arc<Self>], completeness: CloseReason) -> Option<Self> {
        let (first, last) = (turns.first()?, turns.last()?);
        let cut_short = completeness != CloseReason::Silent;
        let mut agent_runs: Vec<AgentRun> = Vec::new();
        let mut node_visits: Vec<Arc<str>> = Vec::new();
        let mut calls: Vec<(u64, usize, ToolCall)> = Vec::new();
        let (mut n_groups, mut n_lines) = (0, 1);
        for (turn_idx, turn) in turns.iter().enumerate() {
            let mut moment = turn.start_unix_nanos();
            let (mut max_group, mut max_line) = (None, 0);
            for call in &turn.tool_calls {
                max_group = max_group.max(call.parallel_group);
                max_line = max_line.max(call.uncertainty.line);
                // Preserve the order of calls within a turn, even if their times contradict it.
                moment = moment.max(call.start_unix_nanos);
                let mut call = call.clone();
                call.uncertainty.args |= call.partial;
                call.agent_run = call.agent_run.map(|run| run + agent_runs.len());
                call.parallel_group = call.parallel_group.map(|group| group + n_groups);
                if turn.cut_short {
                    call.uncertainty.line += n_lines;
                }
                calls.push((moment, turn_idx, call));
            }
            n_groups += max_group.map_or(0, |group| group + 1);
            // Calls of complete turns have line 0 (see `CallUncertainty::line`).
            n_lines += if turn.cut_short { max_line + 1 } else { 0 };
            let n_runs = agent_runs.len();
            agent_runs.extend(turn.agent_runs.iter().cloned().map(|run| AgentRun {
                parent: run.parent.map(|parent| parent + n_runs),
                ..run
            }));
            node_visits.extend(turn.node_visits.iter().cloned());
        }
        node_visits.dedup();
        // Interleave the calls of overlapping turns by time.
        calls.sort_by_key(|(moment, ..)| *moment);
        let (of_calls, tool_calls) = calls
            .into_iter()
            .map(|(_, turn, call)| (turn, call))
            .unzip();
        let any = |is: fn(&Self) -> bool| turns.iter().any(|turn| is(turn));
        Some(Self {
            trace_id: last.trace_id,
            subject: last.subject.clone(),
            service: last.service.clone(),
            root: last.root.clone(),
            agent: last.agent.clone(),
            session: last.session.clone(),
            completeness,
            cut_short,
            from_messages: any(|turn| turn.from_messages),
            completed_elsewhere: any(|turn| turn.completed_elsewhere),
            is_agent_run: false,
            continues_session: first.continues_session,
            earlier_turns: None,
            turns: Some(Arc::new(SessionTurns {
                traces: turns.iter().map(|turn| turn.trace_id).collect(),
                of_calls,
            })),
            uncertainty: TrajectoryUncertainty {
                subject: cut_short,
                root: cut_short,
                service: any(|turn| turn.uncertainty.service),
                all: any(|turn| turn.uncertainty.all),
            },
            clock_adjusted: any(|turn| turn.clock_adjusted),
            n_spans: turns.iter().map(|turn| turn.n_spans).sum(),
            latest_end_unix_nanos: (turns.iter().map(|turn| turn.latest_end_unix_nanos))
                .max()
                .unwrap_or_default(),
            model_use: ModelUse::sum(turns.iter().map(|turn| &turn.model_use)),
            tool_calls,
            agent_runs: agent_runs.into(),
            node_visits: node_visits.into(),
            expectation_attributes: Arc::default(),
            arrival: last.arrival,
        })
    }

    /// Returns the trajectory cut short after `max_calls` calls; unchanged if it has no more.
    pub(crate) fn with_first_calls(self: &Arc<Self>, max_calls: usize) -> Arc<Self> {
        if self.tool_calls.len() <= max_calls {
            return Arc::clone(self);
        }
        Arc::new(Self {
            cut_short: true,
            ..self.with_calls(self.tool_calls[..max_calls].to_vec())
        })
    }

    /// Returns a hash of the service's name and the session's id; `None` without a session.
    pub(crate) fn session_hash(&self) -> Option<Sha256> {
        let session = self.session.as_deref()?;
        let names = [self.service.as_bytes(), &[0], session.as_bytes(), &[0]];
        Some(names.into_iter().fold(Sha256::new(), Digest::chain_update))
    }

    /// Returns the id under which a journal records the verdicts and alarms sent for the session.
    pub(crate) fn session_id(&self) -> Option<TraceId> {
        TraceId::try_new(&self.session_hash()?.finalize()[..16])
    }

    /// Returns the size in bytes, as if no text were shared. Counts arguments and results only if
    /// `has_values`.
    pub fn size(&self, has_values: bool) -> usize {
        /// Bytes that the allocator and the reference counts add to a shared text.
        const OF_TEXT: usize = 32;
        let text = |text: &str| text.len() + OF_TEXT;
        let of_subject = |subject: &Subject| {
            let attributes = subject.attributes.iter();
            let attributes = attributes.map(|(_, value)| text(value) + 2 * OF_TEXT);
            text(&subject.name) + attributes.sum::<usize>()
        };
        let calls = self.tool_calls.iter().map(|call| {
            let values = [&call.args, &call.result].into_iter().flatten();
            // A value is stored as text and, once a criterion has read it, also as JSON.
            let copies = if has_values { 4 } else { 0 };
            let values = values.map(|value| value.text.len() * copies + 2 * OF_TEXT);
            let id = call.call_id.as_deref().map_or(0, text);
            size_of::<ToolCall>() + text(&call.name) + id + values.sum::<usize>()
        });
        let runs = self.agent_runs.iter();
        let runs = runs.map(|run| size_of::<AgentRun>() + of_subject(&run.subject));
        let subject = self.subject.as_ref();
        let subject = subject.map_or(0, |it| of_subject(it) + it.resource.size());
        let earlier = self.earlier_turns.iter().flat_map(|it| &it.names);
        let names = self.node_visits.iter().chain(earlier);
        let names = names
            .chain([&self.service, &self.root])
            .map(|name| text(name));
        let of_calls = calls.sum::<usize>() + runs.sum::<usize>();
        size_of::<Self>() + of_calls + subject + names.sum::<usize>()
    }
}
