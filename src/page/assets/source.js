// The source of runs: a running sidecar, or the data inside a report file. Both have the same
// functions, so that the views do not depend on the source.

// Maximum number of rows of the page. The sidecar usually remembers fewer runs.
const MAX_ROWS = 50_000;
const POLL_MILLIS = 3_000;
// Number of polls after which the page tries to open a stream again.
const POLLS = 20;
// Timeout of a request.
const ANSWER_MILLIS = 30_000;
// Maximum silence on a stream. The sidecar sends something every 15 seconds, so after a longer
// silence the connection is dead although nobody closed it: the machine slept, or a firewall
// dropped it.
const SILENCE_MILLIS = 40_000;

class ApiFailure extends Error {
  constructor(status, body) {
    super(body?.detail || `the sidecar answered ${status}`);
    this.status = status;
    this.errors = body?.errors || [];
  }
}

// Runs by trace id, and the same runs in order. A revision replaces the revised run.
class RunList {
  constructor() {
    this.clear();
  }

  clear() {
    this.byId = new Map();
    this.sorted = null;
    this.version = 0;
  }

  add(runs) {
    for (const run of runs) {
      // A trace may have been judged again under a higher number, and older runs are read last.
      const known = this.byId.get(run.trace_id);
      if (!known || known.number <= run.number) this.byId.set(run.trace_id, run);
    }
    if (runs.length > 0) this.changed();
  }

  // Removes runs that the sidecar has evicted.
  forgetBefore(oldest) {
    let n = 0;
    for (const [id, run] of this.byId) {
      if (run.number < oldest) {
        this.byId.delete(id);
        n += 1;
      }
    }
    if (this.byId.size > MAX_ROWS) {
      for (const run of this.newestFirst().slice(MAX_ROWS)) this.byId.delete(run.trace_id);
      n += 1;
    }
    if (n > 0) this.changed();
  }

  changed() {
    this.sorted = null;
    this.version += 1;
  }

  newestFirst() {
    this.sorted ??= [...this.byId.values()].sort((a, b) => b.number - a.number);
    return this.sorted;
  }
}

// --- a running sidecar

class LiveSource {
  constructor() {
    this.isReport = false;
    this.runs = new RunList();
    this.totals = {};
    this.settings = { links: [], unrecognised: [] };
    // One of "starting", "live", "polling", "lost" and "token".
    this.state = "starting";
    this.problem = "";
    // Stored only in memory, so a reload prompts for the token again.
    this.token = "";
    this.change = 0;
    this.listeners = new Set();
    this.details = new Map();
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  // Many rows may arrive together, but the page is drawn once for all of them.
  tell() {
    if (this.isTelling) return;
    this.isTelling = true;
    requestAnimationFrame(() => {
      this.isTelling = false;
      for (const listener of this.listeners) listener();
    });
    // A page in the background draws nothing, but its state must not fall behind.
    if (document.hidden) {
      this.isTelling = false;
      for (const listener of this.listeners) listener();
    }
  }

  become(state, problem = "") {
    this.state = state;
    this.problem = problem;
    this.tell();
  }

  async call(path, options = {}) {
    const headers = { ...options.headers };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    const signal = AbortSignal.timeout(ANSWER_MILLIS);
    const response = await fetch(path, { cache: "no-store", signal, ...options, headers });
    if (response.ok) return response;
    const body = await response.json().catch(() => null);
    if (response.status === 401) this.become("token", this.token ? body?.detail : "");
    throw new ApiFailure(response.status, body);
  }

  async json(path, options) {
    const response = await this.call(path, options);
    const value = await response.json();
    return value;
  }

  start() {
    this.follow();
  }

  useToken(token) {
    this.token = token;
    this.become("starting");
    this.wake?.();
  }

  async follow() {
    let wait = 500;
    for (;;) {
      try {
        this.settings = await this.json("/v1/page");
        await this.load();
        wait = 500;
        await this.listen();
      } catch (failure) {
        if (this.state !== "token") {
          const why = failure instanceof ApiFailure ? failure.message : "no connection";
          this.become("lost", why);
        }
      }
      if (this.state === "token") {
        await new Promise((resolve) => (this.wake = resolve));
      } else {
        await new Promise((resolve) => setTimeout(resolve, wait));
        wait = Math.min(wait * 2, 8_000);
      }
    }
  }

  // Loads all remembered runs, newest first.
  async load() {
    let answer = await this.json("/v1/runs?limit=1000");
    this.runs.clear();
    this.details.clear();
    this.take(answer);
    while (answer.more > 0 && answer.runs.length > 0 && this.runs.byId.size < MAX_ROWS) {
      const before = answer.runs[answer.runs.length - 1].number;
      answer = await this.json(`/v1/runs?limit=1000&before=${before}`);
      this.runs.add(answer.runs);
      this.tell();
    }
  }

  take(answer) {
    this.runs.add(answer.runs);
    for (const run of answer.runs) this.details.delete(run.trace_id);
    this.runs.forgetBefore(answer.oldest);
    const { runs, ...totals } = answer;
    this.totals = totals;
    this.change = answer.change;
    this.tell();
  }

  // Streams the runs, and polls while other pages use all streams.
  async listen() {
    for (;;) {
      await this.stream();
      this.become("polling");
      for (let n = 0; n < POLLS; n += 1) {
        await new Promise((resolve) => setTimeout(resolve, POLL_MILLIS));
        await this.takeEvent(await this.json(`/v1/runs?since=${this.change}`));
      }
    }
  }

  // Reads server-sent events with `fetch`, because `EventSource` cannot send a token. Returns if no
  // stream is free.
  async stream() {
    const headers = { accept: "text/event-stream" };
    const silence = new AbortController();
    let timer;
    const isHeard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MILLIS);
    };
    isHeard();
    try {
      const response = await this.call(`/v1/runs/events?since=${this.change}`, { headers, signal: silence.signal });
      this.become("live");
      await this.readEvents(response, isHeard);
    } catch (failure) {
      if (failure.status !== 503) throw failure;
    } finally {
      clearTimeout(timer);
    }
  }

  async readEvents(response, isHeard) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the stream ended");
      isHeard();
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const event = text.slice(0, end);
        text = text.slice(end + 2);
        const at = event.indexOf("data: ");
        if (at >= 0) await this.takeEvent(JSON.parse(event.slice(at + 6)));
      }
    }
  }

  async takeEvent(answer) {
    // After a restart of the sidecar, its numbers start again.
    if (answer.change < this.change) return this.load();
    const since = this.change;
    this.take(answer);
    if (answer.more > 0) this.take(await this.json(`/v1/runs?since=${since}&limit=1000`));
  }

  async detail(id) {
    const known = this.details.get(id);
    if (known) return known;
    const detail = await this.json(`/v1/runs/${encodeURIComponent(id)}`);
    if (this.details.size > 50) this.details.clear();
    this.details.set(id, detail);
    return detail;
  }

  async proposal(id) {
    const response = await this.call(`/v1/runs/${encodeURIComponent(id)}/criterion`);
    return response.text();
  }

  async criteria() {
    return (await this.json("/v1/criteria")).criteria;
  }

  attempt(name, text) {
    return this.json(`/v1/runs/evaluate?name=${encodeURIComponent(name)}`, {
      method: "POST",
      headers: { "content-type": "application/yaml" },
      body: text,
    });
  }

  // `etag` is the ETag of the edited version; it is missing for a new criterion.
  save(name, text, etag) {
    const condition = etag ? { "if-match": `"${etag}"` } : { "if-none-match": "*" };
    return this.json(`/v1/criteria/${encodeURIComponent(name)}`, {
      method: "PUT",
      headers: { "content-type": "application/yaml", ...condition },
      body: text,
    });
  }

  remove(name, etag) {
    return this.json(`/v1/criteria/${encodeURIComponent(name)}`, {
      method: "DELETE",
      headers: { "if-match": `"${etag}"` },
    });
  }

  verdicts() {
    return this.json("/v1/history");
  }

  status() {
    return this.json("/v1/status");
  }

  async metrics() {
    const response = await this.call("/metrics");
    return response.text();
  }
}

// --- a report file

class ReportSource {
  constructor(about) {
    this.isReport = true;
    this.about = about;
    this.runs = new RunList();
    this.runs.add(JSON.parse(document.getElementById("runs").textContent));
    this.settings = { links: about.links, unrecognised: [] };
    const n_runs = this.runs.byId.size;
    this.totals = { judged: n_runs, remembered: n_runs, passed_over: 0, more: 0 };
    this.state = "report";
    this.chunks = new Map();
  }

  subscribe() {
    return () => {};
  }

  start() {}

  // Decompresses a group of runs' details.
  async chunk(at) {
    const known = this.chunks.get(at);
    if (known) return known;
    const packed = JSON.parse(document.getElementById(`chunk-${at}`).textContent);
    const raw = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const unpacked = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
    const details = await new Response(unpacked).json();
    if (this.chunks.size > 8) this.chunks.clear();
    this.chunks.set(at, details);
    return details;
  }

  async detail(id) {
    const run = this.runs.byId.get(id);
    if (!run) throw new Error("this report has no run of that trace");
    const at = run.number - 1;
    const details = await this.chunk(Math.floor(at / this.about.chunk));
    return details[at % this.about.chunk];
  }

  async criteria() {
    return this.about.criteria;
  }
}

function openSource() {
  const about = document.getElementById("about");
  return about ? new ReportSource(JSON.parse(about.textContent)) : new LiveSource();
}

// Draws again when the source has new data.
function useSource(source) {
  const [, setVersion] = useState(0);
  useEffect(() => {
    const draw = () => setVersion((version) => version + 1);
    const end = source.subscribe(draw);
    // The source may have changed between the first drawing and now.
    draw();
    return end;
  }, [source]);
}

// Returns the value of a promise, as `{ value, failure, isLoading }`. Calls `ask` again when `keys`
// change.
function useAsked(ask, keys) {
  const [answer, setAnswer] = useState({ isLoading: true });
  useEffect(() => {
    let isCurrent = true;
    setAnswer((before) => ({ ...before, isLoading: true }));
    ask().then(
      (value) => isCurrent && setAnswer({ value }),
      (failure) => isCurrent && setAnswer({ failure }),
    );
    return () => {
      isCurrent = false;
    };
  }, keys);
  return answer;
}
