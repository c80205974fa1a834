// The frame around the views: navigation, the state of the connection to the sidecar, and the
// token.

const STATES = {
  starting: ["…", "connecting"],
  live: ["●", "live"],
  polling: ["◐", "every 3 s"],
  lost: ["○", "no connection"],
  token: ["○", "token needed"],
  report: ["▤", "report"],
};

function App({ source }) {
  const { path, query } = useAddress();
  useSource(source);
  const [view, id] = path;
  const narrow = ["try", "criteria"].includes(view) ? "criteria" : view === "health" ? "health" : "runs";
  useEffect(() => {
    const names = { runs: "Runs", run: "Run", criteria: "Criteria", try: "Try it", health: "Health" };
    document.title = `${names[view] ?? "Runs"} · spanscore`;
  }, [view]);
  // Times of today are shown without their day, so draw the rows again after midnight.
  const [, setDay] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setDay(new Date().getDate()), 60_000);
    return () => clearInterval(timer);
  }, []);
  const shown =
    view === "run" && id
      ? html`<${RunView} key=${id} source=${source} id=${id} query=${query} />`
      : view === "criteria"
        ? html`<${Criteria} source=${source} query=${query} />`
        : view === "try" && !source.isReport
          ? html`<${Try} key=${id ?? ""} source=${source} name=${id} />`
          : view === "health" && !source.isReport
            ? html`<${Health} source=${source} />`
            : html`<${Runs} source=${source} query=${query} />`;
  const tabs = [
    ["runs", "Runs", address(["runs"], view === "run" || view === "runs" ? query : {})],
    ["criteria", "Criteria", "#/criteria"],
  ];
  if (!source.isReport) tabs.push(["health", "Health", "#/health"]);
  return html`<${Fragment}>
    <header class="bar">
      <a class="logo" href="#/runs" aria-label="spanscore"><${Logo} /><span>spanscore</span></a>
      <nav aria-label="Views">
        ${tabs.map(([name, word, href]) => html`<a href=${href} aria-current=${narrow === name ? "page" : undefined}>${word}</a>`)}
      </nav>
      <${Connection} source=${source} />
    </header>
    ${source.state === "lost" &&
    html`<section class="banner" aria-label="Connection"><div role="alert">The sidecar does not answer (${clean(source.problem)}). What you see is from before; the page tries again by itself.</div></section>`}
    ${source.isReport && html`<section class="banner report" aria-label="Report">${clean(source.about.title)} · written <${Time} at=${source.about.written} long /> by spanscore ${source.about.version}</section>`}
    ${shown}
    ${source.state === "token" && html`<${AskToken} source=${source} />`}
  <//>`;
}

function Logo() {
  return html`<svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
    <rect width="32" height="32" rx="7" class="logo-back" />
    <rect x="6" y="8" width="12" height="4" rx="2" class="logo-one" />
    <rect x="10" y="14" width="16" height="4" rx="2" class="logo-two" />
    <path d="M7 22.5l3 3 6-6" class="logo-check" />
  </svg>`;
}

function Connection({ source }) {
  const [sign, word] = STATES[source.state];
  return html`<span class=${`connection ${source.state}`} role="status"><span aria-hidden="true">${sign}</span> ${word}</span>`;
}

function AskToken({ source }) {
  const box = useRef(null);
  const [token, setToken] = useState("");
  useEffect(() => {
    box.current.showModal();
  }, []);
  const send = (event) => {
    event.preventDefault();
    source.useToken(token.trim());
  };
  return html`<dialog ref=${box} aria-labelledby="token-title" onCancel=${(event) => event.preventDefault()}>
    <form onSubmit=${send}>
      <h2 id="token-title">This sidecar asks for a token</h2>
      <p>It is the text in <code>admin.token_file</code>. The page keeps it in memory only: a reload asks again.</p>
      ${source.problem && html`<${Notice} kind="bad">${clean(source.problem)}<//>`}
      <label>Token <input type="password" autocomplete="off" value=${token} onInput=${(event) => setToken(event.target.value)} /></label>
      <button type="submit" class="primary" disabled=${!token.trim()}>Open</button>
    </form>
  </dialog>`;
}

const source = openSource();
source.start();
render(html`<${App} source=${source} />`, document.getElementById("page"));
