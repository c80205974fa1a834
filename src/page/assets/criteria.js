// The active criteria, and the view in which a criterion is tried before it is registered.

const REFRESH_MILLIS = 10_000;

// Polls while the view is open and the window is visible.
function usePolled(ask, keys) {
  const [tick, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setTick((n) => n + 1), REFRESH_MILLIS);
    return () => clearInterval(timer);
  }, []);
  return useAsked(ask, [...keys, tick]);
}

// Maximum number of cards that are drawn, because each has plots, and a team may have a thousand
// criteria.
const CARDS = 40;

// For each criterion, by name: how many remembered runs it judged, and its last failures. Computed
// once for all cards.
function judgedBy(runs) {
  const known = new Map();
  for (const run of runs) {
    for (const { criterion, label } of run.evaluations) {
      if (!known.has(criterion)) known.set(criterion, { n: 0, last: null, failures: [] });
      const judged = known.get(criterion);
      // A criterion can judge each agent of a run. Count the run once.
      if (judged.last !== run) judged.n += 1;
      judged.last = run;
      const { failures } = judged;
      if (label === "fail" && failures.length < 4 && failures[failures.length - 1] !== run) failures.push(run);
    }
  }
  return known;
}

function Criteria({ source, query }) {
  useSource(source);
  const { value: criteria, failure } = usePolled(() => source.criteria(), [source.state]);
  const { value: verdicts } = usePolled(
    () => (source.isReport ? Promise.resolve(null) : source.verdicts()),
    [source.state],
  );
  const { value: status } = usePolled(
    () => (source.isReport ? Promise.resolve(null) : source.status()),
    [source.state],
  );
  const [most, setMost] = useState(CARDS);
  const judged = useMemo(() => judgedBy(source.runs.newestFirst()), [source.runs.version]);
  const counts = useMemo(() => new Map((verdicts?.criteria ?? []).map((series) => [series.criterion, series])), [verdicts]);
  const coverage = useMemo(() => new Map((status?.coverage ?? []).map((found) => [found.criterion, found])), [status]);
  const wanted = query.text?.toLowerCase() ?? "";
  const found = useMemo(() => {
    const has = (text) => text?.toLowerCase().includes(wanted);
    return (criteria ?? []).filter((entry) => !wanted || has(entry.name) || has(entry.criterion.description) || has(entry.file));
  }, [criteria, wanted]);
  if (failure && !criteria) return html`<main><${Failure} failure=${failure} /></main>`;
  if (!criteria) return html`<main><p class="dim">Loading …</p></main>`;
  const search = (event) => {
    setMost(CARDS);
    replaceAddress(["criteria"], { text: event.target.value });
  };
  return html`<main class="criteria">
    <div class="head">
      <h1>${source.isReport ? "Criteria" : "Criteria in force"}</h1>
      ${!source.isReport && html`<a class="button primary" href="#/try">Write a criterion</a>`}
    </div>
    ${criteria.length === 0 &&
    html`<${Empty} title="No criterion is in force">
      <p>Open a run and make a criterion of it, or write one here.</p>
    <//>`}
    ${(criteria.length > CARDS || wanted) &&
    html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <label class="search">
        <span class="hidden">Search names, descriptions and files of criteria</span>
        <input type="search" placeholder="Search names, descriptions, files" maxlength="200" value=${query.text ?? ""} onInput=${search} />
      </label>
      <span class="dim" role="status">${number(found.length)} of ${counted(criteria.length, "criterion", "criteria")}</span>
    </form>`}
    ${found.slice(0, most).map(
      (entry) => html`<${CriterionCard}
        key=${entry.name}
        source=${source}
        entry=${entry}
        series=${counts.get(entry.name)}
        judged=${judged.get(entry.name)}
        coverage=${coverage.get(entry.name)}
      />`,
    )}
    ${found.length > most &&
    html`<button type="button" onClick=${() => setMost(most + CARDS)}>Show ${number(Math.min(CARDS, found.length - most))} more of ${number(found.length - most)}</button>`}
  </main>`;
}

// The origin of a criterion, and the time since which it is active.
function Origin({ entry, coverage }) {
  const file = entry.file && html`<code class="named"><${Name} text=${entry.file} max=${80} /></code>`;
  return html`<${Fragment}>
    ${entry.source === "api" ? "registered by the API" : html`from ${file || "the configuration"}`}${entry.shadows && html`, in place of the one in ${file || "the configuration"}`}
    ${coverage?.since && html` since <${Time} at=${coverage.since} />`}${entry.expires_at && html`, until <${Time} at=${entry.expires_at} />`}
  <//>`;
}

function CriterionCard({ source, entry, series, judged, coverage }) {
  const { criterion } = entry;
  const evaluator = Object.keys(criterion.evaluate)[0];
  const failures = judged?.failures ?? [];
  return html`<article class="criterion">
    <div class="about">
      <h2><${Name} text=${entry.name} max=${80} /></h2>
      ${criterion.description && html`<p>${clean(criterion.description)}</p>`}
      <p class="dim">
        <span class="evaluator">${evaluator}</span> · ${criterion.severity && `${criterion.severity} · `}threshold ${score(criterion.threshold)} · ${source.isReport ? `judged ${counted(judged?.n ?? 0, "run")}` : html`<${Origin} entry=${entry} coverage=${coverage} />`}
      </p>
      ${(entry.warnings ?? []).map((warning) => html`<p class="warning">${clean(warning)}</p>`)}
      ${coverage?.problem && html`<p class="warning">${clean(coverage.problem)}</p>`}
      <details>
        <summary>YAML</summary>
        <pre class="yaml" tabindex="0">${cleanLines(criterionYaml(criterion))}</pre>
      </details>
    </div>
    <div class="numbers">
      ${source.isReport
        ? html`<${RecordedRate} source=${source} name=${entry.name} />`
        : html`<${Rate} title="last hour" counts=${series?.minutes} step="minute" />
            <${Rate} title="last day" counts=${series?.quarters} step="quarter of an hour" />
            ${coverage && html`<p class="dim">selected ${number(coverage.matched)} of ${counted(coverage.seen, "run")}</p>`}`}
    </div>
    <div class="failures">
      <h3>Last failures</h3>
      ${failures.length === 0
        ? html`<p class="dim">none among the ${source.isReport ? "recorded" : "remembered"} runs</p>`
        : html`<ul>
            ${failures.map(
              (run) => html`<li>
                <a href=${address(["run", run.trace_id], { criterion: entry.name })}><${Name} text=${run.agent ?? run.root} max=${28} /></a>
                ${" "}<${Time} at=${run.time} />
              </li>`,
            )}
          </ul>`}
      <p class="links">
        <a href=${address(["runs"], { criterion: entry.name })}>All its runs</a>
        ${!source.isReport && html` · <a href=${address(["try", entry.name])} onClick=${() => setDraft("", entry.name)}>Try a change</a>`}
      </p>
    </div>
  </article>`;
}

function sum(counts) {
  const total = [0, 0, 0, 0];
  for (const one of counts) one.forEach((n, at) => (total[at] += n));
  return total;
}

// The share of passed runs among the passed and failed ones.
function Rate({ title, counts, step }) {
  const [pass, fail] = sum(counts ?? []);
  const judged = pass + fail;
  const words = judged === 0 ? "no verdict" : `${percent(pass / judged)} of ${number(judged)} passed`;
  return html`<div class="rate">
    <p><span class="dim">${title}</span> <strong>${words}</strong></p>
    ${judged > 0 && html`<${Plot} counts=${counts} label=${`${title}: ${words}, one point for each ${step}`} />`}
  </div>`;
}

function RecordedRate({ source, name }) {
  const [pass, fail] = useMemo(() => {
    const total = [0, 0];
    for (const run of source.runs.newestFirst()) {
      for (const found of run.evaluations) {
        if (found.criterion === name && found.label === "pass") total[0] += 1;
        if (found.criterion === name && found.label === "fail") total[1] += 1;
      }
    }
    return total;
  }, []);
  const judged = pass + fail;
  return html`<div class="rate">
    <p><strong>${judged === 0 ? "no verdict" : `${percent(pass / judged)} of ${number(judged)} passed`}</strong></p>
    ${judged > 0 && html`<div class="share" role="img" aria-label=${`${pass} passed, ${fail} failed`}><span class="pass" style=${{ width: `${(pass / judged) * 100}%` }}></span></div>`}
  </div>`;
}

// Passed and failed runs over time, as stacked bars.
function Plot({ counts, label }) {
  const most = Math.max(1, ...counts.map(([pass, fail]) => pass + fail));
  const bar = (at, below, n, kind) => n > 0 && html`<rect class=${kind} x=${at + 0.1} y=${most - below - n} width="0.8" height=${n} />`;
  return html`<svg class="plot" role="img" aria-label=${label} viewBox=${`0 0 ${counts.length} ${most}`} preserveAspectRatio="none">
    ${counts.map(([pass, fail], at) => [bar(at, 0, pass, "pass"), bar(at, pass, fail, "fail")])}
  </svg>`;
}

// --- try it

const EXAMPLE = `description: the stock is checked before an order is created
select: { calls: create_order }
evaluate:
  tool_call_order: { tool_calls_order: [check_stock, create_order] }
threshold: 1.0
`;

// The text of each criterion that is being edited, with the version that it was based on. Saving it
// later must not overwrite a change that somebody else has saved in the meantime.
const drafts = new Map();

function setDraft(text, name = "", origin = null) {
  drafts.set(name, { text, origin });
}

// Returns the name that a draft contains.
function nameIn(text) {
  const line = /^name:[ \t]*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^#\n]*))/m.exec(text);
  return (line?.[1] ?? line?.[2] ?? line?.[3] ?? "").trim();
}

function Try({ source, name: edited }) {
  useSource(source);
  const [text, setText] = useState(() => drafts.get(edited ?? "")?.text || (edited ? "" : `name: my-criterion\n${EXAMPLE}`));
  const [origin, setOrigin] = useState(() => drafts.get(edited ?? "")?.origin ?? null);
  const [answer, setAnswer] = useState({});
  const [saved, setSaved] = useState(null);
  const change = (next, of = origin) => {
    setDraft(next, edited, of);
    setOrigin(of);
    setSaved(null);
    setText(next);
  };
  // `origin` is the version that is edited, for `If-Match`.
  const read = (of) => source.json(`/v1/criteria/${encodeURIComponent(of)}`);
  useEffect(() => {
    if (!edited || origin) return;
    read(edited).then(
      (entry) => change(drafts.get(edited)?.text || criterionYaml(entry.criterion), entry),
      (failure) => setAnswer({ failure }),
    );
  }, [edited, source.state]);
  const ownName = nameIn(text) || edited;
  const name = ownName || "draft";
  // Judge the draft after a pause in typing.
  useEffect(() => {
    if (!text.trim()) {
      setAnswer({});
      return;
    }
    let isCurrent = true;
    const timer = setTimeout(async () => {
      try {
        const outcome = await source.attempt(name, text);
        if (isCurrent) setAnswer({ outcome });
      } catch (failure) {
        if (isCurrent) setAnswer((before) => ({ outcome: before.outcome, isStale: true, failure }));
      }
    }, 300);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text, name, source.state]);
  const { outcome, failure, isStale } = answer;
  const errors = failure?.errors ?? [];
  const known = useAsked(() => source.criteria(), [saved, source.state]).value ?? [];
  const existing = known.find((entry) => entry.name === name);
  const ofFile = existing && existing.source === "file";
  const isOpened = origin?.name === name;
  const isLoading = edited === name && !origin;
  const isTaken = existing && !isOpened && !ofFile && !isLoading;
  const fail = async (failure) => setSaved({ failure, theirs: failure.status === 412 ? await read(name).catch(() => null) : undefined });
  const remove = async () => {
    try {
      await source.remove(name, existing.etag);
      setOrigin(null);
      setSaved({ removed: name });
    } catch (failure) {
      await fail(failure);
    }
  };
  // Replaces the version `of`, and no other version.
  const save = async (of) => {
    try {
      const entry = await source.save(name, text, of?.etag);
      // The editor starts empty for the next new criterion.
      drafts.delete(edited ?? "");
      setOrigin(entry);
      setSaved({ entry });
    } catch (failure) {
      await fail(failure);
    }
  };
  const takeTheirs = (theirs) => change(criterionYaml(theirs.criterion), theirs);
  return html`<main class="try">
    <a class="back" href="#/criteria">← Criteria</a>
    <h1>${edited ? html`Try a change of <${Name} text=${edited} />` : "Try a criterion"}</h1>
    <p class="dim">While you type, it is judged against the runs that the sidecar remembers. Nothing is in force until you save.</p>
    <div class="columns">
      <div>
        <${Editor} text=${text} setText=${change} errors=${errors} label="Criterion, as YAML" />
        ${failure && errors.length === 0 && html`<${Failure} failure=${failure} />`}
        <div class="actions">
          ${!ownName && outcome && html`<${Notice}>Give it a <code>name</code> to put it into force.<//>`}
          ${isTaken && html`<${Notice}>A criterion named <strong>${clean(name)}</strong> is in force already. Choose another name, or <a href=${address(["try", name])}>open that one</a>.<//>`}
          ${ofFile
            ? html`<${Notice}>A file owns <strong>${clean(name)}</strong>: copy the YAML into it. To try both side by side, give this one another name.<//>
                <${Copy} text=${text} label="Copy as YAML" />`
            : html`<button type="button" class="primary" disabled=${Boolean(failure) || !outcome || !ownName || (existing && !isOpened)} onClick=${() => save(isOpened ? origin : undefined)}>
                  ${existing && isOpened ? "Save the change" : "Put into force"}
                </button>
                <${Copy} text=${text} label="Copy as YAML" />
                ${existing && isOpened && html`<${Remove} key=${name} name=${name} remove=${remove} />`}`}
        </div>
        ${saved?.removed && html`<${Notice} kind="good">${clean(saved.removed)} is no longer in force. Its text stays here until you leave.<//>`}
        ${saved?.entry && html`<${Notice} kind="good">${clean(saved.entry.name)} is in force, revision <code>${saved.entry.revision}</code>. Runs that end from now on are judged by it.<//>`}
        ${saved?.failure && html`<${SaveFailure} saved=${saved} isOpened=${isOpened} name=${name} save=${save} takeTheirs=${takeTheirs} />`}
      </div>
      <${Outcome} outcome=${outcome} isStale=${isStale} source=${source} />
    </div>
  </main>`;
}

// Deletes a criterion of the API, after a second press.
function Remove({ name, remove }) {
  const [isAsking, setIsAsking] = useState(false);
  const answer = (isSure) => {
    setIsAsking(false);
    if (isSure) remove();
  };
  if (!isAsking) {
    return html`<button type="button" class="plain danger" onClick=${() => setIsAsking(true)}>Take out of force</button>`;
  }
  return html`<span class="actions" role="group" aria-label="Take out of force?">
    <button type="button" class="danger primary" onClick=${() => answer(true)}>Take ${clean(name)} out of force</button>
    <button type="button" class="plain" onClick=${() => answer(false)}>Keep it</button>
  </span>`;
}

function SaveFailure({ saved: { failure, theirs }, isOpened, name, save, takeTheirs }) {
  if (failure.status !== 412) return html`<${Failure} failure=${failure} />`;
  if (!isOpened) return html`<${Notice} kind="bad">Nothing was saved: somebody else took the name <strong>${clean(name)}</strong> in the meantime.<//>`;
  if (!theirs) {
    return html`<${Notice} kind="bad">
      Somebody else took <strong>${clean(name)}</strong> out of force after you opened it. Your text is kept.
      <button type="button" onClick=${() => save(undefined)}>Put mine into force</button>
    <//>`;
  }
  return html`<${Notice} kind="bad">
    Somebody else changed <strong>${clean(name)}</strong> after you opened it, and nothing was overwritten. Your text is kept. This is in force now:
    <pre class="yaml" tabindex="0">${cleanLines(criterionYaml(theirs.criterion))}</pre>
    <span class="actions">
      <button type="button" onClick=${() => save(theirs)}>Replace it with mine</button>
      <button type="button" onClick=${() => takeTheirs(theirs)}>Discard mine</button>
    </span>
  <//>`;
}

function Outcome({ outcome, isStale, source }) {
  if (!outcome) return html`<section class="outcome"><p class="dim">Nothing has been judged yet.</p></section>`;
  const { labels, selected, judged, remembered, changed, unselected, in_part, without_values } = outcome;
  const share = (n) => ({ width: `${selected > 0 ? (n / selected) * 100 : 0}%` });
  return html`<section class=${`outcome ${isStale ? "stale" : ""}`} aria-live="polite">
    <h2>Against ${counted(judged, "remembered run")}</h2>
    ${isStale && html`<p class="warning">The text has mistakes: this is the outcome of its last good version.</p>`}
    <div class="share" role="img" aria-label=${`${labels.pass} pass, ${labels.fail} fail, ${labels.not_evaluated} not evaluated, ${labels.error} in error`}>
      ${Object.keys(LABELS).map((label) => html`<span class=${label} style=${share(labels[label])}></span>`)}
    </div>
    <ul class="tally">
      ${Object.keys(LABELS).map((label) => html`<li><${Sign} label=${label} /> ${number(labels[label])} ${LABELS[label].word}</li>`)}
    </ul>
    <ul class="notes">
      <li>It selects ${number(selected)} of them.${selected === 0 && judged > 0 && html` Check <code>select</code>: the names must be those of your runs.`}</li>
      ${changed > 0 && html`<li><strong>${counted(changed, "run")}</strong> would get another verdict than now.</li>`}
      ${unselected > 0 && html`<li><strong>${counted(unselected, "run")}</strong> that it judges now would no longer be selected.</li>`}
      ${in_part > 0 && html`<li>${counted(in_part, "run")} cannot be judged: ${in_part === 1 ? "it is" : "they are"} too long for the memory, which holds the first calls only.</li>`}
      ${without_values > 0 && html`<li>${counted(without_values, "run")} cannot be judged: the criterion reads arguments or results, and values are not kept (<code>explain.values: true</code> keeps them).</li>`}
      ${judged < remembered && html`<li>${counted(remembered - judged, "older run")} were left out: the criterion is too expensive to try on all of them.</li>`}
      ${outcome.warnings.map((warning) => html`<li class="warning">${clean(warning)}</li>`)}
    </ul>
    <ul class="tried">
      ${outcome.runs.slice(0, 100).map(
        (run) => {
          const known = source.runs.byId.get(run.trace_id);
          return html`<li>
          <a href=${address(["run", run.trace_id])}>
            <${Sign} label=${run.label} />
            <span class="title"><${Name} text=${known?.agent ?? run.root} max=${40} />
              ${run.before && run.before !== run.label && html`<span class="flag">was ${LABELS[run.before].word}</span>`}
              ${known && html`<${Time} at=${known.time ?? known.judged} />`}</span>
            <span class="explanation"><${Sentence} text=${explanationOf(run.explanation)} /></span>
          </a>
        </li>`;
        },
      )}
    </ul>
  </section>`;
}
