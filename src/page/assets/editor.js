// An editor for the YAML of one criterion: a text area with line numbers and marks for mistakes.
// The browser's text area supports undo, selection, keyboards and screen readers.

// Splits the text into parts, `{ text, isMark }`, which mark the positions of mistakes.
function marked(text, errors) {
  const lines = text.split("\n");
  const spots = errors
    .filter((error) => error.line)
    .map(({ line, column }) => {
      const before = lines.slice(0, line - 1).reduce((n, part) => n + part.length + 1, 0);
      const own = lines[line - 1] ?? "";
      const start = Math.min(column - 1, Math.max(own.length - 1, 0));
      const word = /^[^\s,:{}[\]]+/.exec(own.slice(start))?.[0].length ?? 1;
      return [before + start, before + start + word];
    })
    .sort((a, b) => a[0] - b[0]);
  const parts = [];
  let at = 0;
  for (const [start, end] of spots) {
    if (start < at) continue;
    parts.push({ text: text.slice(at, start) }, { text: text.slice(start, end), isMark: true });
    at = end;
  }
  parts.push({ text: text.slice(at) });
  return parts;
}

// Maximum number of characters of a text. The API accepts 32 KiB for one criterion, and a pasted
// megabyte keeps browsers busy for seconds.
const MAX_TEXT = 256 * 1024;

// Maximum number of hidden characters that are named one by one.
const MAX_NAMED = 8;

// Lists hidden characters by name, because a text area shows them as nothing, or reorders the text
// beside them.
function HiddenCharacters({ text, goTo }) {
  const found = useMemo(() => hiddenIn(text), [text]);
  return html`<ul class="hidden-characters" aria-live="polite" aria-label="Invisible characters">
    ${found.slice(0, MAX_NAMED).map(
      (one) => html`<li>
        <button type="button" class="plain" onClick=${() => goTo(one.line, one.offset, 1)}>line ${one.line}, column ${one.column}</button>${" "}
        ${one.isTurn ? "holds an invisible character that turns the writing direction:" : "holds an invisible character:"} <code>${one.code}</code>
      </li>`,
    )}
    ${found.length > MAX_NAMED && html`<li>and ${counted(found.length - MAX_NAMED, "more invisible character")}</li>`}
  </ul>`;
}

function Editor({ text, setText, errors, label }) {
  const area = useRef(null);
  const behind = useRef(null);
  const gutter = useRef(null);
  const [refused, setRefused] = useState(0);
  const refuse = (event) => {
    const length = event.data?.length ?? 0;
    const isTooLong = text.length + length > MAX_TEXT && length > 0;
    if (isTooLong) event.preventDefault();
    setRefused(isTooLong ? length : 0);
  };
  const follow = () => {
    behind.current.scrollTop = area.current.scrollTop;
    behind.current.scrollLeft = area.current.scrollLeft;
    gutter.current.scrollTop = area.current.scrollTop;
  };
  useEffect(follow, [text]);
  // Tab moves to the next field, as everywhere, so that no keyboard user is trapped in the editor.
  const nLines = text.split("\n").length;
  const isWrong = new Set(errors.map((error) => error.line));
  const goTo = (line, offset, length = 0) => {
    const before = text.split("\n").slice(0, line - 1).reduce((n, part) => n + part.length + 1, 0);
    area.current.focus();
    area.current.setSelectionRange(before + offset, before + offset + length);
  };
  return html`<div class="editor-box">
    <div class="editor">
      <div class="gutter" ref=${gutter} aria-hidden="true">
        ${Array.from({ length: Math.min(nLines, 5000) }, (_, at) => html`<span class=${isWrong.has(at + 1) ? "wrong" : ""}>${at + 1}</span>`)}
      </div>
      <div class="editor-text">
        <pre ref=${behind} aria-hidden="true">${marked(text, errors).map((part) => (part.isMark ? html`<mark>${part.text}</mark>` : part.text))}${"\n"}</pre>
        <textarea
          ref=${area}
          value=${text}
          aria-label=${label}
          aria-invalid=${errors.length > 0}
          aria-describedby="mistakes"
          spellcheck=${false}
          autocapitalize="off"
          autocomplete="off"
          wrap="off"
          onBeforeInput=${refuse}
          onInput=${(event) => setText(event.target.value)}
          onScroll=${follow}
        ></textarea>
      </div>
    </div>
    ${refused > 0 && html`<${Notice} kind="bad">These ${number(refused)} characters were not pasted: a criterion has at most 32 KiB.<//>`}
    <ul class="mistakes" id="mistakes" aria-live="polite">
      ${errors.map(
        (error) => html`<li>
          ${error.line
            ? html`<button type="button" class="plain" onClick=${() => goTo(error.line, error.column - 1)}>line ${error.line}, column ${error.column}</button>`
            : html`<span class="dim">criterion</span>`}
          <span class="message"><${Sentence} text=${error.message} /></span>
          ${error.remedy && html`<span class="remedy"><${Sentence} text=${error.remedy} /></span>`}
        </li>`,
      )}
    </ul>
    <${HiddenCharacters} text=${text} goTo=${goTo} />
  </div>`;
}

// --- values as YAML, for criteria that the API returns as JSON

function isPlain(text) {
  return /^[A-Za-z_][\w ./-]*$/.test(text) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(text) && !text.endsWith(" ");
}

function yamlScalar(value) {
  return typeof value === "string" && isPlain(value) ? value : JSON.stringify(value);
}

function yamlInline(value) {
  if (Array.isArray(value)) return `[${value.map(yamlInline).join(", ")}]`;
  if (value && typeof value === "object") {
    const entries = Object.entries(value);
    return entries.length === 0
      ? "{}"
      : `{ ${entries.map(([key, item]) => `${yamlScalar(key)}: ${yamlInline(item)}`).join(", ")} }`;
  }
  return yamlScalar(value);
}

function yaml(value, indent = "") {
  const lines = [];
  const isLeaf = (item) => !item || typeof item !== "object" || indent.length + yamlInline(item).length <= 76;
  const isList = Array.isArray(value);
  for (const [key, item] of isList ? value.map((item) => [null, item]) : Object.entries(value)) {
    const head = isList ? `${indent}- ` : `${indent}${yamlScalar(key)}:`;
    if (isLeaf(item)) lines.push(`${head}${isList ? "" : " "}${yamlInline(item)}`);
    else if (isList) {
      const [first, ...rest] = yaml(item, `${indent}  `).split("\n");
      lines.push(`${head}${first.trimStart()}`, ...rest);
    } else lines.push(head, yaml(item, `${indent}  `));
  }
  return lines.join("\n");
}

// Writes a criterion as a person would, without omitted fields.
function criterionYaml(criterion) {
  const { name, description, select, scope, severity, alarm, evaluate, threshold } = criterion;
  const written = { name };
  if (description) written.description = description;
  const selected = Object.entries(select ?? {}).filter(([, value]) => value !== null && (typeof value !== "object" || Object.keys(value).length > 0));
  if (selected.length > 0) written.select = Object.fromEntries(selected);
  if (scope && scope !== "trace") written.scope = scope;
  if (severity) written.severity = severity;
  if (alarm) written.alarm = alarm;
  written.evaluate = evaluate;
  if (threshold !== 1) written.threshold = threshold;
  return `${yaml(written)}\n`;
}
