// The small parts that views are made of.

// A name from a span: text whatever it holds, and cut where it is very long.
function Name({ text, max = 64, class: className }) {
  const shown = clean(text);
  const short = shown.length > max ? `${shown.slice(0, max - 1)}…` : shown;
  return html`<bdi class=${className} title=${short === shown ? undefined : shown.slice(0, 1000)}
    >${short}</bdi
  >`;
}

// Local time, with UTC on hover.
function Time({ at, long }) {
  if (!at) return html`<span class="dim">no time</span>`;
  const date = new Date(at);
  const { clock, day, isToday } = localTime(date);
  const text = long || !isToday ? `${day} ${clock}` : clock;
  return html`<time datetime=${date.toISOString()} title=${utc(date)}>${text}</time>`;
}

// A sentence of ours in which names stand between backticks.
function Sentence({ text }) {
  return clean(text)
    .split("`")
    .map((part, at) => (at % 2 === 1 ? html`<code class="named">${part}</code>` : part));
}

// A verdict: shape, word and colour say the same.
function Sign({ label }) {
  const { word, sign } = LABELS[label] ?? LABELS.error;
  return html`<span class=${`sign ${label}`} title=${word} role="img" aria-label=${word}
    ><span aria-hidden="true">${sign}</span></span
  >`;
}

function Badge({ evaluation, href }) {
  const { word, sign } = LABELS[evaluation.label] ?? LABELS.error;
  const value = evaluation.label === "pass" ? "" : score(evaluation.score);
  const revised = evaluation.revision > 0 ? `, revision ${evaluation.revision}` : "";
  const title = `${word}${value ? `, score ${value}` : ""}${revised}`;
  const inside = html`<span class="shape" aria-hidden="true">${sign}</span
    ><span class="hidden">${word}: </span><${Name} text=${evaluation.criterion} max=${32} />${
      value && html`<span class="value">${value}</span>`
    }`;
  return href
    ? html`<a class=${`badge ${evaluation.label}`} title=${title} href=${href}>${inside}</a>`
    : html`<span class=${`badge ${evaluation.label}`} title=${title}>${inside}</span>`;
}

// The calls of a run in order: repeats folded, parallel groups side by side, failed calls marked. What has no
// room fades out, and the number of calls says how many there were.
const MAX_CHIPS = 14;
const MANY_CALLS = 6;

function chipsOf(calls) {
  const chips = [];
  for (const call of calls) {
    const last = chips[chips.length - 1];
    const isSame =
      last && last.name === call.name && last.group === call.group && !last.error && !call.error;
    if (isSame) last.n += 1;
    else chips.push({ ...call, n: 1 });
  }
  return chips;
}

function Chips({ calls, total, max = MAX_CHIPS }) {
  if (total === 0) return html`<span class="dim">no tool call</span>`;
  const chips = chipsOf(calls);
  const shown = chips.slice(0, max);
  const groups = [];
  for (const chip of shown) {
    const last = groups[groups.length - 1];
    if (last && chip.group !== undefined && last.group === chip.group) last.chips.push(chip);
    else groups.push({ group: chip.group, chips: [chip] });
  }
  const one = (chip) => html`<span class=${`chip ${chip.error ? "failed" : ""}`}
    >${chip.error && html`<span class="mark" aria-hidden="true">✕</span><span class="hidden">failed: </span>`}<${Name}
      text=${chip.name}
      max=${28}
    />${chip.n > 1 && html`<span class="times">×${chip.n}</span>`}</span
  >`;
  return html`<span class="chips"
    ><span class="flow">${groups.map((group) =>
      group.chips.length > 1
        ? html`<span class="together" title="requested together: their order proves nothing"
            ><span class="hidden">together: </span>${group.chips.map(one)}</span
          >`
        : one(group.chips[0]),
    )}</span>${(total >= MANY_CALLS || total > max) && html`<span class="total">${counted(total, "call")}</span>`}</span
  >`;
}

// Browsers have a clipboard for pages from this machine and over TLS only; elsewhere a selected text is copied.
async function copyText(text, beside) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  // Beside the button: a dialog takes the focus back from whatever is outside it.
  beside.parentNode.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  beside.focus();
  return isDone;
}

// Copies a text, and says whether it did.
function Copy({ text, label = "Copy" }) {
  const [said, setSaid] = useState("");
  const copy = async (event) => {
    setSaid((await copyText(text, event.currentTarget)) ? "Copied" : "The browser did not copy it");
    setTimeout(() => setSaid(""), 2_000);
  };
  return html`<button type="button" class="plain" aria-live="polite" onClick=${copy}>${said || label}</button>`;
}

function Notice({ kind = "info", children }) {
  return html`<div class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : "status"}>${children}</div>`;
}

function Failure({ failure }) {
  return html`<${Notice} kind="bad">${clean(failure.message)}<//>`;
}

function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

// A list of which only the rows in sight are drawn. All rows have one height.
function VirtualList({ items, height, keyOf, row, label }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const measure = () =>
      setView((before) => {
        const next = { top: box.current.scrollTop, height: box.current.clientHeight };
        return next.top === before.top && next.height === before.height ? before : next;
      });
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    box.current.addEventListener("scroll", measure, { passive: true });
    measure();
    return () => observer.disconnect();
  }, []);
  // Rows above the sight that arrive or go must not move what somebody reads.
  const first = useRef(null);
  useEffect(() => {
    const list = box.current;
    if (list.scrollTop > height && first.current) {
      const at = items.findIndex((item) => keyOf(item) === first.current.key);
      if (at >= 0 && at !== first.current.at) list.scrollTop += (at - first.current.at) * height;
    }
    const at = Math.floor(list.scrollTop / height);
    first.current = items[at] ? { key: keyOf(items[at]), at } : null;
  }, [items]);
  const overscan = 6;
  const start = Math.max(0, Math.floor(view.top / height) - overscan);
  const end = Math.min(items.length, Math.ceil((view.top + view.height) / height) + overscan);
  const visible = items.slice(start, end);
  useEffect(() => {
    const at = Math.floor(view.top / height);
    first.current = items[at] ? { key: keyOf(items[at]), at } : null;
  }, [view.top]);
  return html`<div class="scroll" ref=${box} tabindex="0" role="region" aria-label=${label}>
    <ul class="rows" style=${{ height: `${items.length * height}px` }}>
      ${visible.map(
        (item, at) => html`<li
          key=${keyOf(item)}
          style=${{ transform: `translateY(${(start + at) * height}px)`, height: `${height}px` }}
          aria-setsize=${items.length}
          aria-posinset=${start + at + 1}
        >
          ${row(item)}
        </li>`,
      )}
    </ul>
  </div>`;
}

// The width of an element in pixels; 0 before it is drawn.
function useWidth(box) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!box.current) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

// Is the window narrow?
function useNarrow() {
  const query = useMemo(() => matchMedia("(max-width: 720px)"), []);
  const [isNarrow, setIsNarrow] = useState(query.matches);
  useEffect(() => {
    const read = () => setIsNarrow(query.matches);
    query.addEventListener("change", read);
    return () => query.removeEventListener("change", read);
  }, []);
  return isNarrow;
}
