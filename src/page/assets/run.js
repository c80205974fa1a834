// One run: where it deviated from the expected calls, and what happened when.

const KINDS = {
  match: { word: "as expected", sign: "✓" },
  missing: { word: "missing", sign: "−" },
  extra: { word: "extra", sign: "+" },
  moved: { word: "moved", sign: "↕" },
  forbidden: { word: "forbidden", sign: "⊘" },
  wrong_arguments: { word: "wrong arguments", sign: "≠" },
  replaced: { word: "another call", sign: "≠" },
  broken: { word: "broken", sign: "✕" },
  open: { word: "open", sign: "?" },
};

function RunView({ source, id, query }) {
  useSource(source);
  const version = source.runs.byId.get(id)?.change;
  const { value: run, failure } = useAsked(() => source.detail(id), [id, version, source.state]);
  const back = html`<a class="back" href=${address(["runs"], query)}>← Runs</a>`;
  if (failure && !run) {
    return html`<main class="run">${back}<${Failure} failure=${failure} /></main>`;
  }
  if (!run) return html`<main class="run">${back}<p class="dim">Loading …</p></main>`;
  const isShown = (found) => !query.criterion || found.criterion === query.criterion;
  const evaluations = [...run.evaluations].sort(
    (a, b) =>
      Number(isShown(b)) - Number(isShown(a)) ||
      SEVERITY.indexOf(b.label) - SEVERITY.indexOf(a.label),
  );
  return html`<main class="run">
    ${back}
    <${RunHead} source=${source} run=${run} />
    <section aria-labelledby="verdicts">
      <h2 id="verdicts">Verdicts</h2>
      ${evaluations.length === 0 && html`<p class="dim">${run.withdrawn ? `Withdrawn. ${WITHDRAWN}` : "No criterion in force selects this run."}</p>`}
      <${Verdicts} run=${run} evaluations=${evaluations} />
    </section>
    <section aria-labelledby="timeline">
      <h2 id="timeline">Timeline</h2>
      <${Timeline} run=${run} />
    </section>
    <section aria-labelledby="calls">
      <h2 id="calls">Calls</h2>
      <${Calls} run=${run} />
    </section>
  </main>`;
}

function RunHead({ source, run }) {
  const verdict = verdictOf(run);
  const took = run.start && run.time ? Date.parse(run.time) - Date.parse(run.start) : null;
  const links = source.settings.links
    .map((link) => ({ name: link.name, href: backendLink(link.url, run) }))
    .filter((link) => link.href);
  const facts = [
    ["service", run.service],
    ["agent", run.agent],
    ["case", run.case_id],
  ].filter(([, value]) => value);
  return html`<header class="run-head">
    <div class="run-title">
      ${verdict && html`<${Sign} label=${verdict} />`}
      <h1><${Name} text=${run.root || run.agent || "run"} max=${80} /></h1>
      <span class="actions">
        ${links.map((link) => html`<a class="button" href=${link.href} target="_blank" rel="noopener noreferrer">${clean(link.name)} ↗</a>`)}
        ${!source.isReport && html`<${Propose} source=${source} run=${run} />`}
      </span>
    </div>
    <dl class="facts">
      ${facts.map(([word, value]) => html`<div><dt>${word}</dt><dd><${Name} text=${value} max=${80} /></dd></div>`)}
      ${run.session && html`<div><dt>session</dt><dd><a href=${address(["runs"], { text: run.session })} title="All turns of the session"><${Name} text=${run.session} max=${80} /></a></dd></div>`}
      <div><dt>ended</dt><dd><${Time} at=${run.time} long /></dd></div>
      ${took !== null && html`<div><dt>took</dt><dd>${duration(took)}</dd></div>`}
      <div><dt>spans</dt><dd>${number(run.n_spans)}</dd></div>
      <div>
        <dt>trace</dt>
        <dd><code>${run.trace_id}</code> <${Copy} text=${run.trace_id} /></dd>
      </div>
    </dl>
    <${Uncertain} run=${run} />
  </header>`;
}

// Notes that limit the verdicts or the list of calls.
function Uncertain({ run }) {
  const notes = [];
  if (run.cut_short) {
    notes.push(
      `${completenessWords(run.completeness)} Only what is certain was judged: a missing call may be among the spans that spanscore did not see.`,
    );
  } else if (run.completeness !== "root_ended") {
    notes.push(completenessWords(run.completeness));
  }
  if (run.clock_adjusted) {
    notes.push("The clocks of two hosts disagree: a span began before its parent. Calls were ordered as if that clock had been shifted.");
  }
  if (run.from_messages) {
    notes.push("No span reports a tool call: the calls were read from the models' messages, which have no times and no failures of their own.");
  }
  if (run.n_calls > run.tool_calls.length) {
    notes.push(`The run made ${number(run.n_calls)} calls; the first ${number(run.tool_calls.length)} of them are shown.`);
  }
  if (run.revision > 0) notes.push(`Spans came late and changed a verdict: this is revision ${run.revision}.`);
  return notes.length > 0 && html`<ul class="notes">${notes.map((note) => html`<li>${note}</li>`)}</ul>`;
}

// --- verdicts

// Number of verdicts that are drawn first, the worst first.
const MANY_VERDICTS = 50;

function Verdicts({ run, evaluations }) {
  const [most, setMost] = useState(MANY_VERDICTS);
  const n = evaluations.length - most;
  return html`<${Fragment}>
    ${evaluations.slice(0, most).map((found, at) => html`<${Verdict} key=${at} run=${run} evaluation=${found} />`)}
    ${n > 0 && html`<button type="button" onClick=${() => setMost(most + MANY_VERDICTS)}>Show ${number(Math.min(MANY_VERDICTS, n))} more of ${counted(n, "verdict")}</button>`}
  <//>`;
}

function Verdict({ run, evaluation }) {
  const { label, alignment } = evaluation;
  // Drop a row's note if the explanation already begins with it.
  const rows = useMemo(
    () => alignment.map((row) => (row.note && evaluation.explanation.startsWith(row.note) ? { ...row, note: undefined } : row)),
    [evaluation],
  );
  return html`<article class=${`verdict ${label}`}>
    <header>
      <${Sign} label=${label} />
      <h3><${Name} text=${evaluation.criterion} max=${80} /></h3>
      ${evaluation.agent && html`<span class="dim">agent <${Name} text=${evaluation.agent} /></span>`}
      ${evaluation.scope === "session" && html`<span class="dim">over the session</span>`}
      ${evaluation.final === false && html`<span class="flag">alarm</span>`}
      <span class="evaluator">${evaluation.evaluator}</span>
      ${evaluation.severity && html`<span class="dim">${evaluation.severity}</span>`}
      <${ScoreBar} evaluation=${evaluation} />
    </header>
    <p class="explanation">
      <${Sentence} text=${alignment.length > 0 ? explanationOf(evaluation.explanation) : evaluation.explanation} />
    </p>
    ${alignment.length > 0 && html`<${AlignmentTable} run=${run} rows=${rows} />`}
  </article>`;
}

function ScoreBar({ evaluation }) {
  if (evaluation.score === null) {
    return html`<span class="score none">${LABELS[evaluation.label].word}</span>`;
  }
  const value = score(evaluation.score);
  const threshold = score(evaluation.threshold);
  return html`<span class="score">
    <span class="bar" aria-hidden="true"
      ><span class=${`fill ${evaluation.label}`} style=${{ width: `${evaluation.score * 100}%` }}></span
      ><span class="threshold" style=${{ left: `${evaluation.threshold * 100}%` }}></span
    ></span>
    <span><strong>${value}</strong> <span class="dim">threshold ${threshold}</span></span>
  </span>`;
}

// Folds long sequences of rows that are as expected, so that deviations are visible.
function foldRows(rows) {
  const folded = [];
  let at = 0;
  while (at < rows.length) {
    const isQuiet = (row) => row && !row.fault;
    let end = at;
    while (isQuiet(rows[end]) && rows[end].kind === rows[at].kind) end += 1;
    if (end - at > 7) {
      folded.push(...rows.slice(at, at + 2), { fold: rows.slice(at + 2, end - 2) });
      folded.push(...rows.slice(end - 2, end));
      at = end;
    } else {
      const next = Math.max(end, at + 1);
      folded.push(...rows.slice(at, next));
      at = next;
    }
  }
  return folded;
}

function AlignmentTable({ run, rows }) {
  const [isOpen, setIsOpen] = useState(false);
  const shown = useMemo(() => (isOpen ? rows.slice(0, 1000) : foldRows(rows).slice(0, 200)), [rows, isOpen]);
  // The roles are written out, because narrow windows lay the rows out as blocks.
  return html`<table class="alignment" role="table">
    <thead>
      <tr><th scope="col">Verdict</th><th scope="col">Expected</th><th scope="col">Called</th></tr>
    </thead>
    <tbody>
      ${shown.map((row) =>
        row.fold
          ? html`<tr class="fold"><td colspan="3"><button type="button" class="plain" onClick=${() => setIsOpen(true)}>… ${counted(row.fold.length, "more row")}, ${KINDS[row.fold[0].kind].word}</button></td></tr>`
          : html`<${AlignmentRow} run=${run} rows=${rows} row=${row} />`,
      )}
      ${isOpen && rows.length > 1000 && html`<tr class="fold"><td colspan="3">${counted(rows.length - 1000, "more row")}</td></tr>`}
    </tbody>
  </table>`;
}

// Returns the direction in which a call moved. Its row is at the position where the call was
// expected.
function movedNote(rows, row) {
  const before = rows.slice(0, rows.indexOf(row)).filter((other) => other.kind === "match");
  const isEarly = before.some((other) => other.calls[0] > row.calls[0]);
  return isEarly ? "called too early" : "called too late";
}

function AlignmentRow({ run, rows, row }) {
  const { word, sign } = KINDS[row.kind] ?? KINDS.open;
  const called = row.calls.slice(0, 12);
  const note = row.note ?? (row.kind === "moved" ? movedNote(rows, row) : "");
  return html`<tr role="row" class=${`${row.kind} ${row.fault ? "fault" : "fine"}`}>
    <td role="cell"><span class="kind"><span class="shape" aria-hidden="true">${sign}</span> ${word}</span></td>
    <td role="cell" data-title="expected">${row.expected ? html`<span class="call"><${Sentence} text=${row.expected} /></span>` : html`<span class="nothing">nothing</span>`}</td>
    <td role="cell" data-title="called">
      ${row.visited !== undefined && html`<${Name} text=${row.visited} class="call" />`}
      ${called.map((at) => html`<${CallRef} run=${run} at=${at} />`)}
      ${row.calls.length > called.length && html`<span class="dim"> and ${row.calls.length - called.length} more</span>`}
      ${row.calls.length === 0 && row.visited === undefined && html`<span class="nothing">${row.kind === "match" || row.kind === "broken" || row.kind === "open" ? "" : "not called"}</span>`}
      ${note && html`<span class="note"><${Sentence} text=${note} /></span>`}
    </td>
  </tr>`;
}

function CallRef({ run, at }) {
  const call = run.tool_calls[at];
  const name = call ? html`<${Name} text=${call.name} />` : "";
  return html`<span class=${`call ${call?.error ? "failed" : ""}`} title=${call?.error ? "this call failed" : undefined}
    ><span class="position">${at + 1}</span>${name}</span
  > `;
}

// --- timeline

const MAX_BARS = 300;

// Divides calls into lanes: one agent after the other, with calls that overlap below each other.
function lanesOf(run) {
  const calls = run.tool_calls
    .map((call, at) => ({ ...call, at }))
    .filter((call) => call.start !== "0")
    .slice(0, MAX_BARS);
  const agents = new Map();
  for (const call of calls) {
    const agent = call.agent ?? run.agent ?? "";
    if (!agents.has(agent)) agents.set(agent, []);
    const lanes = agents.get(agent);
    const free = lanes.find((lane) => BigInt(lane[lane.length - 1].end) <= BigInt(call.start));
    if (free) free.push(call);
    else lanes.push([call]);
  }
  return { calls, agents };
}

// The widths of a letter in a bar, and of the agents' names beside the lanes, in pixels.
const LETTER = 7;
const NAMES = 130;
// Minimum width in pixels of a name that is cut because of a lack of space.
const SHORTEST = 44;

// Places the name of each bar of a lane: inside the bar, or in the free space after or before it. A
// name that does not fit is omitted, because overlapping names are unreadable; the bar's title
// contains it.
function placeNames(lane, place, width) {
  let free = 0;
  return lane.map((call, at) => {
    const [left, right] = [place(call.start), place(call.end)];
    const [from, to] = [left, right].map((percent) => (percent / 100) * width);
    const next = at + 1 < lane.length ? (place(lane[at + 1].start) / 100) * width : width;
    const needed = (Math.min(clean(call.name).length, 40) + (call.error ? 2 : 0)) * LETTER + 12;
    const after = next - Math.max(to, from + 4) - 8;
    let side = "none";
    if (needed <= to - from) side = "inside";
    else if (needed <= after) side = "after";
    else if (from - needed >= free) side = "before";
    else if (to - from >= SHORTEST && to - from >= after) side = "inside";
    else if (after >= SHORTEST) side = "after";
    free = side === "after" ? to + Math.min(needed, after) : to;
    return { call, left, right, side, room: side === "after" ? after : undefined };
  });
}

// Returns the turns of the model, in order. A number is shown if there is space for it.
function turnsOf(calls, place) {
  const turns = new Map();
  for (const call of calls) if (!turns.has(call.step)) turns.set(call.step, place(call.start));
  let last = -100;
  return [...turns].map(([step, at]) => {
    const isNamed = at - last >= 3.5;
    if (isNamed) last = at;
    return { step, at, isNamed };
  });
}

function Timeline({ run }) {
  const box = useRef(null);
  const width = Math.max(0, useWidth(box) - NAMES);
  const { calls, agents } = useMemo(() => lanesOf(run), [run]);
  if (calls.length === 0) {
    return html`<p class="dim" ref=${box}>${run.n_calls === 0 ? "The run made no tool call." : "The calls have no times: they were read from messages."}</p>`;
  }
  const starts = [...calls.map((call) => BigInt(call.start)), ...run.agent_runs.map((agent) => BigInt(agent.start)).filter((at) => at > 0n)];
  const ends = [...calls.map((call) => BigInt(call.end)), ...run.agent_runs.map((agent) => BigInt(agent.end))];
  const least = starts.reduce((a, b) => (b < a ? b : a));
  const most = ends.reduce((a, b) => (b > a ? b : a), least + 1n);
  const total = Number(most - least) / 1e6;
  const place = (nanos) => Math.min(100, Math.max(0, (Number(BigInt(nanos) - least) / 1e6 / total) * 100));
  const turns = turnsOf(calls, place);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return html`<div class="timeline" role="group" aria-label="When each call ran" tabindex="0">
    <div class="canvas" ref=${box}>
      <div class="turns">
        <span class="lane-name">model turn</span>
        <span class="track" aria-hidden="true">
          ${turns.map((turn) => html`<span class="turn" style=${{ left: `${turn.at}%` }}>${turn.isNamed ? turn.step + 1 : ""}</span>`)}
        </span>
      </div>
      ${[...agents].map(
        ([agent, lanes]) => html`<div class="agent">
          <span class="lane-name"><${Name} text=${agent || "agent"} max=${24} /></span>
          <div class="lanes">
            ${lanes.map(
              (lane) => html`<div class="track">
                ${turns.map((turn) => html`<span class="turn-line" style=${{ left: `${turn.at}%` }}></span>`)}
                ${placeNames(lane, place, width).map((bar) => html`<${Bar} ...${bar} />`)}
              </div>`,
            )}
          </div>
        </div>`,
      )}
      <div class="axis">
        <span class="lane-name"></span>
        <span class="track">${ticks.map((tick) => html`<span class="tick" style=${{ left: `${tick * 100}%` }}>${duration(total * tick)}</span>`)}</span>
      </div>
    </div>
    ${run.tool_calls.length > MAX_BARS && html`<p class="dim">The first ${MAX_BARS} calls are drawn.</p>`}
  </div>`;
}

function Bar({ call, left, right, side, room }) {
  const took = millisBetween(call.start, call.end);
  const words = `call ${call.at + 1}, ${clean(call.name)}, ${call.ended ? duration(took) : "not ended"}${call.error ? ", failed" : ""}, turn ${call.step + 1}`;
  return html`<span
    class=${`bar-call ${call.error ? "failed" : ""} ${call.group !== null ? "grouped" : ""}`}
    style=${{ left: `${left}%`, width: `${Math.max(right - left, 0.4)}%` }}
    title=${words}
    role="img"
    aria-label=${words}
    >${side !== "none" && html`<span class=${`bar-name ${side}`} style=${{ maxWidth: room && `${Math.floor(room)}px` }} aria-hidden="true">${call.error ? "✕ " : ""}${clean(call.name).slice(0, 40)}</span>`}</span
  >`;
}

// --- calls

function Calls({ run }) {
  const [max, setMax] = useState(100);
  if (run.tool_calls.length === 0) return html`<p class="dim">None.</p>`;
  const shown = run.tool_calls.slice(0, max);
  // Omit columns that would be equal or empty in every row.
  const hasAgents = new Set(run.tool_calls.map((call) => call.agent)).size > 1;
  const hasGroups = run.tool_calls.some((call) => call.group !== null);
  const columns = ["#", "Call", hasAgents && "Agent", "Turn", hasGroups && "Group", "Took", "Outcome"].filter(Boolean);
  return html`<div class="wide" tabindex="0" role="group" aria-label="Table of calls">
    <table class="calls">
      <thead>
        <tr>${columns.map((word) => html`<th scope="col">${word}</th>`)}</tr>
      </thead>
      <tbody>
        ${shown.map(
          (call, at) => html`<${Fragment} key=${at}>
            <tr>
              <td class="position">${at + 1}</td>
              <td><${Name} text=${call.name} class="call" /></td>
              ${hasAgents && html`<td><${Name} text=${call.agent ?? ""} max=${32} /></td>`}
              <td>${call.step + 1}</td>
              ${hasGroups && html`<td>${call.group === null ? "" : call.group + 1}</td>`}
              <td>${call.start === "0" ? "" : call.ended ? duration(millisBetween(call.start, call.end)) : "not ended"}</td>
              <td>${call.error ? html`<span class="badge fail"><span class="shape" aria-hidden="true">✕</span>failed</span>` : html`<span class="dim">ok</span>`}</td>
            </tr>
            ${(call.args !== undefined || call.result !== undefined) &&
            html`<tr class="values"><td></td><td colspan=${columns.length - 1}>
              ${call.args !== undefined && html`<div><span class="dim">args</span> <code>${clean(call.args)}</code></div>`}
              ${call.result !== undefined && html`<div><span class="dim">result</span> <code>${clean(call.result)}</code></div>`}
            </td></tr>`}
          <//>`,
        )}
      </tbody>
    </table>
    ${run.tool_calls.length > max && html`<button type="button" onClick=${() => setMax(max + 500)}>Show more</button>`}
    ${!run.has_values && html`<p class="dim">Arguments and results are private: <code>explain.values: true</code> shows them.</p>`}
  </div>`;
}

// --- a criterion from a run

// Returns the criteria of a list that `init --from` wrote, each as a separate text.
function criteriaIn(yaml) {
  const texts = [];
  for (const line of yaml.split("\n")) {
    if (line.startsWith("  - ")) texts.push([]);
    texts[texts.length - 1]?.push(line.slice(4));
  }
  return texts.map((lines) => `${lines.join("\n").trimEnd()}\n`);
}

function Propose({ source, run }) {
  const [yaml, setYaml] = useState(null);
  const [failure, setFailure] = useState(null);
  const ask = () => source.proposal(run.trace_id).then(setYaml, setFailure);
  const close = () => {
    setYaml(null);
    setFailure(null);
  };
  return html`<button type="button" class="primary" onClick=${ask}>Make a criterion of this run</button>
    ${(yaml || failure) &&
    html`<${Dialog} title="A criterion of this run" close=${close}>
      ${failure
        ? html`<${Failure} failure=${failure} />`
        : html`<p>This is what the run did, which need not be what it should do. Take out the calls that do not matter.
              <code>spanscore init --from</code> writes the same of a recording.</p>
            <pre class="yaml" tabindex="0">${cleanLines(yaml)}</pre>
            <div class="dialog-actions">
              <${Copy} text=${yaml} label="Copy as YAML" />
              ${criteriaIn(yaml).map((text) => html`<a class="button primary" href="#/try" onClick=${() => setDraft(text)}>Try <${Name} text=${nameIn(text)} max=${36} /></a>`)}
            </div>`}
    <//>`}`;
}

function Dialog({ title, close, children }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
  }, []);
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="dialog-title">
    <div class="dialog-head">
      <h2 id="dialog-title">${title}</h2>
      <button type="button" class="plain" onClick=${() => box.current.close()}>Close</button>
    </div>
    ${children}
  </dialog>`;
}
