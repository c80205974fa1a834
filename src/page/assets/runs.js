// The list of runs: live, newest first, with a filter that is part of the address.

const ROW_HEIGHT = 88;
const NARROW_ROW_HEIGHT = 132;
// Lines of badges in a row.
const BADGE_LINES = 3;
const NARROW_BADGE_LINES = 2;
// The space around the cells of a row, as in the style, and the share of the badges in the
// remaining width.
const ROW_SPACE = 32;
const NARROW_ROW_SPACE = 25;
const BADGES_SHARE = 0.32;
const BADGES_LEAST = 180;

// Returns the worst verdict of a run.
function verdictOf(run) {
  let worst = -1;
  for (const { label } of run.evaluations) worst = Math.max(worst, SEVERITY.indexOf(label));
  return worst < 0 ? null : SEVERITY[worst];
}

// Returns true if a run has this label, or if its verdict on `criterion` has it. A run has the
// label `pass` if it has no other label.
function hasLabel(run, label, criterion) {
  const found = criterion ? run.evaluations.filter((one) => one.criterion === criterion) : run.evaluations;
  if (label === "pass") return found.length > 0 && found.every((one) => one.label === "pass");
  return found.some((one) => !label || one.label === label);
}

// Returns a function that selects the runs to which all given values apply.
function runFilter({ label, criterion, agent, service, text }) {
  const wanted = text?.toLowerCase();
  const has = (name) => name && name.toLowerCase().includes(wanted);
  return (run) =>
    (!agent || run.agent === agent) &&
    (!service || run.service === service) &&
    ((!label && !criterion) || hasLabel(run, label, criterion)) &&
    (!wanted ||
      run.trace_id.includes(wanted) ||
      has(run.root) ||
      has(run.service) ||
      has(run.agent) ||
      has(run.session) ||
      has(run.case_id) ||
      has(run.why) ||
      run.calls.some((call) => has(call.name)));
}

// Groups the turns of each session below the newest turn, newest first.
function bySession(runs) {
  const groups = new Map();
  for (const run of runs) {
    const key = run.session ? JSON.stringify([run.service, run.session]) : run.trace_id;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(run);
  }
  const latestFirst = (a, b) => (b.start ?? "").localeCompare(a.start ?? "");
  return [...groups.values()].flatMap((turns) =>
    turns.sort(latestFirst).map((run, at) => ({ run, turn: turns.length - at, nTurns: turns.length })),
  );
}

// Returns the names to choose from, the most frequent first.
function namesOf(runs, names) {
  const counts = new Map();
  for (const run of runs) {
    for (const name of names(run)) {
      if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
    }
  }
  const sorted = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return sorted.slice(0, 200).map(([name]) => name);
}

function Runs({ source, query }) {
  useSource(source);
  const isNarrow = useNarrow();
  const all = source.runs.newestFirst();
  // While the list is paused it does not change, and new runs are counted.
  const [frozen, setFrozen] = useState(null);
  const listed = frozen ?? all;
  const nNew = frozen ? Math.max(0, all.length - frozen.length) : 0;
  const newest = all[0]?.number ?? 0;
  const nSince = frozen ? Math.max(nNew, newest - (frozen[0]?.number ?? 0)) : 0;
  const others = useMemo(
    () => listed.filter(runFilter({ ...query, label: "" })),
    [listed, query.criterion, query.agent, query.service, query.text],
  );
  const runs = useMemo(
    () => (query.label ? others.filter(runFilter(query)) : others),
    [others, query.label],
  );
  // Count turns before the filter hides some of them.
  const rows = useMemo(() => {
    const shown = new Set(runs);
    return bySession(listed).filter(({ run }) => shown.has(run));
  }, [listed, runs]);
  const counts = useMemo(() => {
    const counts = { pass: 0, fail: 0, not_evaluated: 0, error: 0 };
    for (const run of others) {
      for (const label of SEVERITY) counts[label] += hasLabel(run, label, query.criterion);
    }
    return counts;
  }, [others, query.criterion]);
  const set = (changes) => replaceAddress(["runs"], { ...query, ...changes });
  const isFiltered = Object.values(query).some(Boolean);
  return html`<main class="runs">
    <h1 class="hidden">Runs</h1>
    <${FilterBar}
      runs=${listed}
      nShown=${runs.length}
      counts=${counts}
      nAll=${others.length}
      query=${query}
      set=${set}
      isNarrow=${isNarrow}
    >
      ${!source.isReport &&
      html`<button
        type="button"
        class=${`pause ${frozen ? "on" : ""}`}
        aria-pressed=${Boolean(frozen)}
        onClick=${() => setFrozen(frozen ? null : all)}
      >
        ${frozen ? `Resume${nSince ? ` · ${number(nSince)} new` : ""}` : "Pause"}
      </button>`}
    <//>
    ${runs.length === 0
      ? html`<${NoRuns} source=${source} isFiltered=${isFiltered} clear=${() => replaceAddress(["runs"], {})} />`
      : html`<${VirtualList}
          items=${rows}
          height=${isNarrow ? NARROW_ROW_HEIGHT : ROW_HEIGHT}
          keyOf=${({ run }) => run.trace_id}
          label="Runs, the newest first"
          row=${(row, width) => html`<${RunRow} ...${row} query=${query} isNarrow=${isNarrow} width=${width} />`}
        />`}
    <${Remembered} source=${source} nShown=${runs.length} />
  </main>`;
}

function FilterBar({ runs, counts, nAll, query, set, isNarrow, children }) {
  const options = useMemo(
    () => ({
      criterion: namesOf(runs, (run) => run.evaluations.map((found) => found.criterion)),
      agent: namesOf(runs, (run) => [run.agent]),
      service: namesOf(runs, (run) => [run.service]),
    }),
    [Math.floor(runs.length / 20), runs.length < 200 ? runs : null],
  );
  const labels = ["", "fail", "error", "not_evaluated", "pass"];
  const choice = (key) => {
    const names = options[key];
    const all = query[key] && !names.includes(query[key]) ? [query[key], ...names] : names;
    return html`<label class="choice">
      <span class="hidden">${key}</span>
      <select value=${query[key] ?? ""} onChange=${(event) => set({ [key]: event.target.value })}>
        <option value="">any ${key}</option>
        ${all.map((name) => html`<option value=${name} selected=${query[key] === name}>${clean(name).slice(0, 60)}</option>`)}
      </select>
    </label>`;
  };
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
    <div class="labels" role="group" aria-label="Verdict">
      ${labels.map(
        (label) => html`<button
          type="button"
          class=${`label ${label}`}
          aria-pressed=${(query.label ?? "") === label}
          onClick=${() => set({ label })}
        >
          ${label && html`<span class="shape" aria-hidden="true">${LABELS[label].sign}</span>`}${label
            ? isNarrow && label === "not_evaluated"
              ? html`<abbr title="not evaluated">not ev.</abbr>`
              : LABELS[label].word
            : "all"}
          <span class="count">${number(label ? counts[label] : nAll)}</span>
        </button>`,
      )}
    </div>
    <label class="search">
      <span class="hidden">Search names of calls, agents, services, sessions and trace ids</span>
      <input
        type="search"
        placeholder="Search names, trace ids"
        value=${query.text ?? ""}
        maxlength="200"
        onInput=${(event) => set({ text: event.target.value })}
      />
    </label>
    ${choice("criterion")} ${choice("agent")} ${choice("service")} ${children}
  </form>`;
}

function RunRow({ run, turn, nTurns, query, isNarrow, width }) {
  const verdict = verdictOf(run);
  const room = isNarrow
    ? width - NARROW_ROW_SPACE
    : Math.max(BADGES_LEAST, Math.floor((width - ROW_SPACE) * BADGES_SHARE));
  return html`<a
    class=${`run-row ${verdict ?? "unjudged"} ${turn < nTurns ? "earlier-turn" : ""}`}
    href=${address(["run", run.trace_id], query)}
    style=${isNarrow ? undefined : { "--badges-width": `${room}px` }}
  >
    <span class="when"><${Time} at=${run.time ?? run.judged} />${!isNarrow && html` <${Completeness} run=${run} />`}</span>
    <span class="what">
      <span class="title">
        <${Name} text=${run.agent ?? run.root} class="strong" max=${48} />
        ${run.agent && !isNarrow && !run.root.endsWith(run.agent) && html`<${Name} text=${run.root} class="dim" max=${40} />`}
        <${Name} text=${run.service || "(no service)"} class="service" max=${36} />
        ${isNarrow && html`<${Completeness} run=${run} />`}
        ${nTurns > 1 && html`<span class="completeness" title=${`session ${clean(run.session)}`}>turn ${turn} of ${nTurns}</span>`}
        ${run.withdrawn && html`<span class="flag" title=${WITHDRAWN}>withdrawn</span>`}
        ${run.revision > 0 && html`<span class="flag" title="late spans changed a verdict">revision ${run.revision}</span>`}
      </span>
      <${Chips} calls=${run.calls} total=${run.n_calls} max=${isNarrow ? 5 : 12} />
      <span class="why">${run.withdrawn ? WITHDRAWN : run.why && html`<${Sentence} text=${explanationOf(run.why)} />`}</span>
    </span>
    <${Badges} run=${run} room=${room} lines=${isNarrow ? NARROW_BADGE_LINES : BADGE_LINES} />
  </a>`;
}

// The completeness of the run in one word, with a whole sentence on hover.
function Completeness({ run: { completeness, cut_short } }) {
  const word = completeness === "root_ended" ? "complete" : completeness.replaceAll("_", " ");
  return html`<span class=${cut_short ? "flag" : "completeness"} title=${completenessWords(completeness)}>${word}</span>`;
}

function NoRuns({ source, isFiltered, clear }) {
  if (isFiltered && source.runs.byId.size > 0) {
    return html`<${Empty} title="No run matches">
      <p>${counted(source.runs.byId.size, "run")} are remembered, and none of them fits this filter.</p>
      <button type="button" onClick=${clear}>Clear the filter</button>
    <//>`;
  }
  if (source.isReport) return html`<${Empty} title="The recording holds no run" />`;
  if (source.state === "starting" || source.state === "token") {
    return html`<${Empty} title="Connecting …" />`;
  }
  return html`<${Empty} title="Waiting for the first run">
    <${UnrecognisedHint} source=${source} />
    <p>Point your agent's OpenTelemetry exporter at this sidecar. A run appears here when it is judged, a few seconds after it has ended.</p>
    <${Endpoints} receivers=${source.settings.receivers} />
  <//>`;
}

// The variables that an agent's environment needs, for each enabled receiver.
function Endpoints({ receivers }) {
  const kinds = [["grpc", "grpc"], ["http", "http/protobuf"]].filter(([key]) => receivers?.[key]);
  if (kinds.length === 0) {
    return receivers && html`<${Notice} kind="warn">No OTLP receiver is on: see <code>receivers.otlp</code> in the configuration.<//>`;
  }
  return html`<pre class="endpoints" tabindex="0">${kinds
    .map(([key, protocol]) => {
      const { address, tls } = receivers[key];
      // A receiver that listens on all addresses has the address of this page.
      const host = address.replace(/^(0\.0\.0\.0|\[::\])(?=:\d+$)/, location.hostname);
      return `export OTEL_EXPORTER_OTLP_PROTOCOL=${protocol}\nexport OTEL_EXPORTER_OTLP_ENDPOINT=${tls ? "https" : "http"}://${host}`;
    })
    .join("\n\n# or\n")}</pre>`;
}

// Tells users who wait for a run that spanscore received a run and did not recognise it.
function UnrecognisedHint({ source }) {
  const { value: settings } = usePolled(() => source.json("/v1/page"), [source.state]);
  const n = (settings?.unrecognised ?? []).reduce((sum, one) => sum + one.seen, 0);
  return (
    n > 0 &&
    html`<${Notice} kind="warn">${counted(n, "trace")} ${n === 1 ? "looks like an agent's, but holds" : "look like an agent's, but hold"} no tool call that spanscore recognises. <a href="#/health">Health</a> says which, and what to configure.<//>`
  );
}

// The number of runs, and the reason why some are not shown.
function Remembered({ source, nShown }) {
  const { judged = 0, remembered = 0, passed_over = 0 } = source.totals;
  if (source.isReport) {
    return html`<p class="foot">${number(nShown)} of ${counted(judged, "run")} in this report.</p>`;
  }
  const forgotten = judged - remembered - passed_over;
  return html`<p class="foot" aria-live="off">
    ${number(nShown)} shown · ${number(remembered)} remembered · ${number(judged)} judged since the
    start${forgotten > 0 && html` · ${number(forgotten)} older ones dropped, to stay within <code>admin.page.max_size</code>`}${passed_over > 0 &&
    html` · ${number(passed_over)} not remembered, because too many came at once`}
  </p>`;
}

// Removes the alignment from the end of an explanation, because the rows show it.
function explanationOf(text) {
  return text.replace(/\.? Alignment \(\+ called.*$/s, "");
}

// Log records and spans of a coding agent can report the same calls under different trace ids.
const WITHDRAWN = "Spans report the calls of these log records: they are judged there.";

const COMPLETENESS = {
  root_ended: "The root span ended and no span followed: spanscore saw the whole run.",
  no_root: "The recording was over before a root span had ended.",
  inactive: "No span came for a while, and no root span had ended.",
  span_limit: "The trace has more spans than assemble.span_limit: it was cut short.",
  size_limit: "The trace is larger than assemble.size_limit, or a model's reply did not arrive whole: it was cut short.",
  evicted: "The memory for open traces was full: the run was judged early.",
  expired: "The trace was open for too long: it was judged as it was.",
  shutdown: "spanscore was stopped while the run was open.",
  open: "The run is still open: this is an alarm, and its verdicts follow when it ends.",
  incomplete: "Some spans of the run were forwarded unscored, or came before spanscore started.",
};

function completenessWords(word) {
  return COMPLETENESS[word] ?? word;
}
