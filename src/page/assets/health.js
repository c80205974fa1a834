// The health of the sidecar, read from its metrics and status.

// Parses a page of metrics: name → list of `{ labels, value }`.
function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  const all = (name) => samples.get(name) ?? [];
  const one = (name) => all(name)[0]?.value;
  const total = (name) => all(name).reduce((n, sample) => n + sample.value, 0);
  return { all, one, total, names: () => [...samples.keys()] };
}

const SIGNALS = [
  ["spans", "Spans"],
  ["log_records", "Log records"],
  ["metric_points", "Metric points"],
];

function Health({ source }) {
  useSource(source);
  const asked = usePolled(async () => {
    const [text, status, settings] = await Promise.all([source.metrics(), source.status(), source.json("/v1/page")]);
    return { metrics: parseMetrics(text), status, settings };
  }, [source.state]);
  if (asked.failure && !asked.value) return html`<main><${Failure} failure=${asked.failure} /></main>`;
  if (!asked.value) return html`<main><p class="dim">Loading …</p></main>`;
  const { metrics, status, settings } = asked.value;
  const start = metrics.one("process_start_time_seconds");
  const last = metrics.one("spanscore_receiver_last_request_timestamp_seconds");
  return html`<main class="health">
    <h1>Health</h1>
    <div class="cards">
      <${Card} title="Sidecar">
        <dl class="facts">
          <div><dt>version</dt><dd>${status.version}</dd></div>
          <div><dt>state</dt><dd>${status.phase}</dd></div>
          ${start && html`<div><dt>running since</dt><dd><${Time} at=${start * 1000} long /></dd></div>`}
          <div><dt>last request</dt><dd>${last ? html`<${Time} at=${last * 1000} />` : "none yet"}</dd></div>
          <div><dt>memory</dt><dd>${bytes(metrics.one("process_resident_memory_bytes") ?? 0)}</dd></div>
          <div><dt>criteria</dt><dd>${number(status.criteria.total)}</dd></div>
        </dl>
        <${Reload} reload=${status.reload} />
      <//>
      <${Card} title="Destinations"><${Destinations} metrics=${metrics} destinations=${status.destinations} /><//>
      <${Card} title="Queues and budgets"><${Budgets} metrics=${metrics} /><//>
      <${Card} title="Telemetry" size="wide-card"><${Books} metrics=${metrics} /><//>
      <${Card} title="Refused, dropped, unscored"><${Losses} metrics=${metrics} /><//>
      <${Card} title="Not recognised" size="whole-card"><${Unrecognised} found=${settings.unrecognised} /><//>
    </div>
  </main>`;
}

function Card({ title, size = "", children }) {
  return html`<section class=${`card ${size}`}><h2>${title}</h2>${children}</section>`;
}

function Reload({ reload }) {
  const { last } = reload;
  if (!last) return reload.watches && html`<p class="dim">The configuration file is watched for changes.</p>`;
  if (last.result === "refused") {
    return html`<${Notice} kind="bad">The configuration has mistakes; the last good one stays in force.<pre tabindex="0">${cleanLines(last.problems)}</pre><//>`;
  }
  return html`<p class="dim">The configuration was last read as revision <code>${last.revision}</code>.</p>`;
}

// Metrics with a size and a capacity, named `…_bytes` and `…_capacity_bytes`.
const BUDGET_NAMES = {
  spanscore_receiver_in_flight: "requests in progress",
  spanscore_exporter_queue: "send queue",
  spanscore_page: "runs remembered by this page",
};

function budgetsOf(metrics) {
  const budgets = [];
  for (const name of metrics.names()) {
    const base = /^(.*)_capacity_bytes$/.exec(name)?.[1];
    if (!base) continue;
    for (const { labels, value: capacity } of metrics.all(name)) {
      const isSame = (sample) => Object.entries(labels).every(([key, text]) => sample.labels[key] === text);
      const used = [...metrics.all(`${base}_bytes`), ...metrics.all(`${base}_size_bytes`)].find(isSame);
      const which = Object.values(labels).map((text) => QUEUES[text] ?? text).join(" ");
      const words = BUDGET_NAMES[base] ?? base.replace(/^spanscore_/, "").replaceAll("_", " ");
      if (used) budgets.push({ words: which ? `${words}: ${which}` : words, used: used.value, capacity });
    }
  }
  return budgets;
}

function Budgets({ metrics }) {
  const budgets = budgetsOf(metrics);
  const open = metrics.one("spanscore_traces_open") ?? 0;
  const recent = metrics.one("spanscore_traces_recent") ?? 0;
  return html`${budgets.map(({ words, used, capacity }) => html`<${Meter} words=${words} used=${used} capacity=${capacity} />`)}
    <p class="dim">
      ${counted(open, "open trace")} (${bytes(metrics.one("spanscore_traces_open_bytes") ?? 0)}), ${number(recent)} closed ones kept for late spans (${bytes(metrics.one("spanscore_traces_recent_bytes") ?? 0)})
    </p>`;
}

function Meter({ words, used, capacity }) {
  const share = capacity > 0 ? Math.min(1, used / capacity) : 0;
  const level = share > 0.9 ? "full" : share > 0.6 ? "high" : "low";
  return html`<div class="meter">
    <div><span>${clean(words)}</span> <span class="dim">${bytes(used)} of ${bytes(capacity)}</span></div>
    <div class="track" role="meter" aria-label=${clean(words)} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share * 100)} aria-valuetext=${`${bytes(used)} of ${bytes(capacity)}`}>
      <span class=${level} style=${{ width: `${Math.max(share * 100, share > 0 ? 1 : 0)}%` }}></span>
    </div>
  </div>`;
}

// The accounting of each signal: received = sent + waiting + dropped.
function Books({ metrics }) {
  return html`<div class="wide" tabindex="0" role="group" aria-label="Table of signals"><table class="books">
    <thead><tr><th scope="col">Signal</th><th scope="col">accepted</th><th scope="col">sent on</th><th scope="col">waiting</th><th scope="col">dropped</th><th scope="col">refused</th></tr></thead>
    <tbody>
      ${SIGNALS.map(([signal, word]) => {
        const dropped = metrics.all(`spanscore_exporter_dropped_${signal}_total`);
        const isDiscarded = (sample) => sample.labels.reason === "discarded";
        const discarded = dropped.filter(isDiscarded).reduce((n, sample) => n + sample.value, 0);
        const lost = dropped.filter((sample) => !isDiscarded(sample)).reduce((n, sample) => n + sample.value, 0);
        const cells = [
          metrics.total(`spanscore_receiver_accepted_${signal}_total`),
          metrics.total(`spanscore_exporter_sent_${signal}_total`),
          metrics.total(`spanscore_exporter_queue_${signal}`),
          lost,
          metrics.total(`spanscore_receiver_refused_${signal}_total`),
        ];
        return html`<tr>
          <th scope="row">${word}</th>
          ${cells.map((n, at) => html`<td class=${at > 2 && n > 0 ? "bad" : ""}>${number(n)}${at === 1 && discarded > 0 ? html` <span class="dim">(${number(discarded)} not forwarded)</span>` : ""}</td>`)}
        </tr>`;
      })}
    </tbody>
  </table></div>`;
}

const QUEUES = {
  forward: "telemetry",
  score_spans: "scores as spans",
  score_events: "scores as events",
  score_metrics: "scores as metrics",
};

// The outcome of the last attempt to deliver, for each queue.
const ANSWERS = {
  untried: { label: "not_evaluated", words: "nothing was sent yet" },
  accepts: { label: "pass", words: "answers" },
  refuses: { label: "fail", words: "refuses what is sent" },
  fails: { label: "fail", words: "does not answer" },
};

function Destinations({ metrics, destinations }) {
  const of = (name, queue) => metrics.all(name).find((sample) => sample.labels.queue === queue)?.value ?? 0;
  const evaluations = metrics.total("spanscore_judgements_total");
  const isForwarded = destinations.some(({ queue }) => queue === "forward");
  return html`<ul class="plain-list destinations">
    ${!isForwarded && html`<li class="dim"><span></span><span>Telemetry is not forwarded: <code>forward.endpoint</code> is not set.</span></li>`}
    ${destinations.map((destination) => {
      const { queue, endpoint, setting, state, last_accepted, last_refused, last_failed } = destination;
      const { label, words } = ANSWERS[state] ?? ANSWERS.untried;
      const waiting = of("spanscore_exporter_queue_size_bytes", queue);
      const retries = of("spanscore_exporter_retries_total", queue);
      const problem = state === "refuses" ? last_refused : state === "fails" ? last_failed : null;
      return html`<li>
        <${Sign} label=${label} />
        <span><strong>${clean(QUEUES[queue] ?? queue.replaceAll("_", " "))}</strong>: ${words}${state !== "accepts" && waiting > 0 ? `, ${bytes(waiting)} queued` : ""}${
          last_accepted && html`, last accepted a request at <${Time} at=${last_accepted} />`
        }</span>
        ${problem && html`<span class="where bad"><${Time} at=${problem.time} /> ${clean(problem.error)}</span>`}
        ${!problem && last_failed && html`<span class="where">last failed at <${Time} at=${last_failed.time} /> (${counted(retries, "attempt")} repeated since the start)</span>`}
        <span class="where" title=${clean(setting)}>${clean(endpoint)}, set by <code>${clean(setting.split(" ")[0])}</code></span>
      </li>`;
    })}
    <li class="dim"><span></span><span>${counted(evaluations, "evaluation")} made since the start</span></li>
  </ul>`;
}

function words(name) {
  return name.replace(/^spanscore_/, "").replace(/_total$/, "").replaceAll("_", " ");
}

// Losses and failures, by the counter of each.
const LOSSES = [
  ["spanscore_unscored_spans_total", "spans forwarded unscored: the scoring queue was full, or the journal unreadable"],
  ["spanscore_late_spans_total", "spans came after their trace was judged"],
  ["spanscore_api_refused_total", "calls of the API were refused"],
  ["spanscore_page_passed_over_runs_total", "runs are not remembered by this page: too many came at once"],
];

function Losses({ metrics }) {
  const lines = LOSSES.map(([name, text]) => ({ text, n: metrics.total(name) })).filter(({ n }) => n > 0);
  for (const name of metrics.names()) {
    if (!/(dropped|refused|rejected|lost|misdirected|without_ids|unusable)/.test(name) || !name.endsWith("_total")) continue;
    if (LOSSES.some(([known]) => known === name)) continue;
    for (const { labels, value } of metrics.all(name)) {
      if (value > 0 && labels.reason !== "discarded") {
        const why = Object.entries(labels).map(([key, text]) => `${key} ${text}`).join(", ");
        lines.push({ text: `${words(name)}${why ? ` (${why})` : ""}`, n: value });
      }
    }
  }
  const cut = metrics.all("spanscore_traces_closed_total").filter(({ labels, value }) => value > 0 && labels.reason !== "root_ended");
  for (const { labels, value } of cut) lines.push({ text: `traces were judged before their root span ended (${labels.reason.replaceAll("_", " ")})`, n: value });
  return lines.length === 0
    ? html`<p><${Sign} label="pass" /> Nothing.</p>`
    : html`<ul class="plain-list">${lines.map(({ text, n }) => html`<li><strong>${number(n)}</strong> ${clean(text)}</li>`)}</ul>`;
}

function Unrecognised({ found }) {
  if (found.length === 0) return html`<p><${Sign} label="pass" /> Every trace that looked like an agent's was recognised.</p>`;
  return html`<p>These traces look like an agent's, but hold no tool call that spanscore recognises:</p>
    <ul class="unknown">
      ${found.map(
        (one) => html`<li>
          <${Name} text=${one.service || "(no service)"} class="service" />
          ${one.span_name && html` span <${Name} text=${one.span_name} class="call" />`}
          ${one.models > 0 && html`, ${counted(one.models, "model call")}`}
          <span class="dim"> in ${counted(one.seen, "trace")}</span>
          ${one.proposal && html`<p>One of its spans looks like a tool call. Try this in <code>spanscore.yaml</code>:</p>
            <pre class="yaml" tabindex="0">${cleanLines(one.proposal)}</pre>
            <${Copy} text=${one.proposal} label="Copy as YAML" />`}
        </li>`,
      )}
    </ul>
    ${found.some((one) => !one.proposal) &&
    html`<p class="dim">Where nothing is proposed, no attribute looks like the name of a tool. Record such a trace with <code>spanscore run --record DIR</code>; <code>spanscore inspect --verbose DIR</code> shows each of its spans with its attributes.</p>`}`;
}
