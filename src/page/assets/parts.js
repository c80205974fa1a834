// Small parts of views.

// Cuts a name from a span to a maximum length.
function shortened(shown, max) {
  return shown.length > max ? `${shown.slice(0, max - 1)}…` : shown;
}

function Name({ text, max = 64, class: className }) {
  const shown = clean(text);
  const short = shortened(shown, max);
  return html`<bdi class=${className} title=${short === shown ? undefined : shown.slice(0, 1000)}
    >${short}</bdi
  >`;
}

// A local time, with UTC on hover.
function Time({ at, long }) {
  if (!at) return html`<span class="dim">no time</span>`;
  const date = new Date(at);
  const { clock, day, isToday } = localTime(date);
  const text = long || !isToday ? `${day} ${clock}` : clock;
  return html`<time datetime=${date.toISOString()} title=${utc(date)}>${text}</time>`;
}

// One of our own sentences, with names between backticks.
function Sentence({ text }) {
  return clean(text)
    .split("`")
    .map((part, at) => (at % 2 === 1 ? html`<code class="named">${part}</code>` : part));
}

// A verdict. Its shape, word and colour have the same meaning.
function Sign({ label }) {
  const { word, sign } = LABELS[label] ?? LABELS.error;
  return html`<span class=${`sign ${label}`} title=${word} role="img" aria-label=${word}
    ><span aria-hidden="true">${sign}</span></span
  >`;
}

// Returns one badge for each criterion, the worst verdict first. If a criterion judged each agent
// run, its badge shows the worst of the verdicts.
function badgesOf(run) {
  const severity = (found) => SEVERITY.indexOf(found.label);
  const badges = new Map();
  for (const found of run.evaluations) {
    const known = badges.get(found.criterion);
    if (!known) badges.set(found.criterion, { ...found, n: 1 });
    else Object.assign(known, severity(found) > severity(known) ? found : {}, { n: known.n + 1 });
  }
  return [...badges.values()].sort((a, b) => severity(b) - severity(a));
}

const BADGE_NAME = 32;

// Returns the full text of a badge, which is shown on hover.
function badgeWords({ criterion, label, score: value, revision, n, scope, final }) {
  const { word } = LABELS[label] ?? LABELS.error;
  const scored = label === "pass" ? "" : score(value);
  return `${clean(criterion)}: ${word}${scored && `, score ${scored}`}${revision > 0 ? `, revision ${revision}` : ""}${n > 1 ? `, the worst of ${n} verdicts` : ""}${scope ? ", over the session" : ""}${final === false ? ", an alarm" : ""}`;
}

function Badge({ evaluation, hasScore }) {
  const { word, sign } = LABELS[evaluation.label] ?? LABELS.error;
  const value = hasScore && evaluation.label !== "pass" ? score(evaluation.score) : "";
  return html`<span class=${`badge ${evaluation.label}`} title=${badgeWords(evaluation)}
    ><span class="shape" aria-hidden="true">${sign}</span><span class="hidden">${word}: </span
    ><bdi>${shortened(clean(evaluation.criterion), BADGE_NAME)}</bdi>${value && html`<span class="value">${value}</span>`}</span
  >`;
}

// The widths of texts in the font of badges, in pixels. Users scroll through thousands of rows, and
// measuring them by layout would take too long.
const textWidths = new Map();
let pen;
function textWidth(text, isBold) {
  if (!pen) {
    pen = document.createElement("canvas").getContext("2d");
    pen.family = getComputedStyle(document.body).fontFamily;
  }
  const key = `${isBold ? "b" : ""} ${text}`;
  let width = textWidths.get(key);
  if (width === undefined) {
    pen.font = `${isBold ? 600 : 400} 12px ${pen.family}`;
    width = Math.ceil(pen.measureText(text).width) + 1;
    if (textWidths.size > 10_000) textWidths.clear();
    textWidths.set(key, width);
  }
  return width;
}

// The space inside and between badges, as in the style.
const BADGE_SPACE = 19;
const BADGE_GAP = 4;
// The forms of badges, from long to short. The longest form in which all badges fit is used, else
// the last one.
const BADGE_FORMS = [
  { name: 210, hasScore: true },
  { name: 130, hasScore: true },
  { name: 130, hasScore: false },
  { name: 90, hasScore: false },
  { name: 66, hasScore: false },
];

// Returns the number of lines that badges of these widths need.
function linesOf(widths, room) {
  let lines = 1;
  let at = 0;
  for (const own of widths) {
    const width = Math.min(own, room);
    const isNext = at > 0 && at + BADGE_GAP + width > room;
    if (isNext) lines += 1;
    at = isNext || at === 0 ? width : at + BADGE_GAP + width;
  }
  return lines;
}

function moreWords(folded, nUnlisted) {
  const nFailed = folded.filter((found) => found.label === "fail").length;
  return `+${number(folded.length + nUnlisted)}${nFailed > 0 ? ` · ${number(nFailed)} fail` : ""}`;
}

// Returns how many badges fit on these lines, and in which form.
function fitBadges(badges, nUnlisted, room, lines) {
  const parts = badges.map((found) => {
    const isBold = found.label === "fail" || found.label === "error";
    const value = found.label === "pass" ? "" : score(found.score);
    return {
      name: textWidth(shortened(clean(found.criterion), BADGE_NAME), isBold),
      sign: BADGE_SPACE + textWidth((LABELS[found.label] ?? LABELS.error).sign, true),
      score: value ? 5 + textWidth(value, true) : 0,
    };
  });
  const widths = (form, n) => parts.slice(0, n).map((part) => part.sign + Math.min(part.name, form.name) + (form.hasScore ? part.score : 0));
  const best = nUnlisted === 0 && BADGE_FORMS.find((form) => linesOf(widths(form), room) <= lines);
  if (best) return { form: best, n: badges.length };
  const form = BADGE_FORMS[BADGE_FORMS.length - 1];
  let n = badges.length;
  for (; n > 1; n -= 1) {
    const more = 16 + textWidth(moreWords(badges.slice(n), nUnlisted), true);
    if (linesOf([...widths(form, n), more], room) <= lines) break;
  }
  return { form, n };
}

// The badges of a run within `room` pixels. Badges that do not fit are counted, and their names are
// shown on hover and to screen readers.
function Badges({ run, room, lines }) {
  const badges = useMemo(() => badgesOf(run), [run]);
  const nUnlisted = (run.n_evaluations ?? run.evaluations.length) - run.evaluations.length;
  const { form, n } = useMemo(() => fitBadges(badges, nUnlisted, room, lines), [badges, nUnlisted, room, lines]);
  const folded = badges.slice(n);
  const hints = folded.map(badgeWords);
  if (nUnlisted > 0) hints.push(`${counted(nUnlisted, "more verdict")}: the run's own page has them`);
  return html`<span class="badges" style=${{ "--name-width": `${form.name}px` }}>
    ${badges.slice(0, n).map((found) => html`<${Badge} evaluation=${found} hasScore=${form.hasScore} />`)}
    ${hints.length > 0 &&
    html`<span class=${`badge more ${folded[0]?.label === "fail" ? "fail" : ""}`} title=${hints.join("\n")}
      ><span aria-hidden="true">${moreWords(folded, nUnlisted)}</span><span class="hidden">${hints.join(", ")}</span></span
    >`}
    ${badges.length === 0 && html`<span class="dim">no criterion applies</span>`}
  </span>`;
}

// The calls of a run in order: repeats are folded, parallel groups are side by side, and failed
// calls are marked. Calls that do not fit fade out, and the number of calls is shown.
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

// Browsers offer a clipboard only to local pages and over TLS. On other pages, copy a selected
// text.
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
  // Add the text beside the button: a dialog would take the focus back from any element outside it.
  beside.parentNode.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  beside.focus();
  return isDone;
}

// Copies a text, and reports whether that succeeded.
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

// A list that draws only the visible rows. All rows have the same height.
function VirtualList({ items, height, keyOf, row, label }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800, width: 0 });
  // Measure before anything is painted, because rows that depend on the width must not jump.
  useLayoutEffect(() => {
    const measure = () =>
      setView((before) => {
        const { scrollTop: top, clientHeight: height, clientWidth: width } = box.current;
        const isSame = top === before.top && height === before.height && width === before.width;
        return isSame ? before : { top, height, width };
      });
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    box.current.addEventListener("scroll", measure, { passive: true });
    measure();
    return () => observer.disconnect();
  }, []);
  // Rows above the visible ones can appear or disappear. The visible rows must not move then.
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
          ${row(item, view.width)}
        </li>`,
      )}
    </ul>
  </div>`;
}

// Returns the width of an element in pixels; 0 before it is drawn.
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

// Returns true if the window is narrow.
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
