// Code that all views share: the view library, addresses, and words for values. Text from spans is
// passed to the view library only as text, never as markup.

const { h, render, Fragment } = preact;
const { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } = preactHooks;
const html = htm.bind(h);

const LABELS = {
  pass: { word: "pass", sign: "✓" },
  fail: { word: "fail", sign: "✕" },
  not_evaluated: { word: "not evaluated", sign: "–" },
  error: { word: "error", sign: "!" },
};
const SEVERITY = ["pass", "not_evaluated", "error", "fail"];

// --- text

// Control characters, bidirectional controls and invisible characters are shown as numbers: a name
// must not look like another name, nor reorder the text beside it.
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

function codePoint(c) {
  return `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

function clean(text) {
  return String(text ?? "").replace(HIDDEN, (c) => `⟨${codePoint(c)}⟩`);
}

// The hidden characters that change the direction of text.
const TURNS = /^[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]$/;

// Returns the positions of hidden characters in a text, with lines and columns counted from 1. Line
// ends and tabs are not hidden.
function hiddenIn(text) {
  const found = [];
  for (const [at, line] of text.split("\n").entries()) {
    for (const match of line.matchAll(HIDDEN)) {
      if (match[0] === "\t") continue;
      const column = [...line.slice(0, match.index)].length + 1;
      found.push({ line: at + 1, column, offset: match.index, code: codePoint(match[0]), isTurn: TURNS.test(match[0]) });
    }
  }
  return found;
}

// Like `clean`, for our own longer texts, which may contain line ends and tabs.
function cleanLines(text) {
  return String(text ?? "")
    .split("\n")
    .map((line) => line.split("\t").map(clean).join("  "))
    .join("\n");
}

function counted(n, one, many) {
  return `${number(n)} ${n === 1 ? one : many ?? one + "s"}`;
}

const numbers = new Intl.NumberFormat("en-US");
function number(n) {
  return numbers.format(n);
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) {
    n /= 1024;
    at += 1;
  }
  return `${n >= 100 || at === 0 ? Math.round(n) : n.toFixed(1)} ${units[at]}`;
}

function score(value) {
  return value === null || value === undefined ? "" : value.toFixed(2);
}

function percent(share) {
  const rounded = Math.round(share * 1000) / 10;
  return `${rounded} %`;
}

// --- time

function duration(ms) {
  if (ms < 0) return "–";
  if (ms === 0) return "0 s";
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
}

function pad(n) {
  return String(n).padStart(2, "0");
}

// Formats a local time, with the day unless it is today.
function localTime(date) {
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return { clock, day, isToday: new Date().toDateString() === date.toDateString() };
}

function utc(date) {
  return `${date.toISOString().replace("T", " ").replace("Z", "")} UTC`;
}

// Returns the difference of two Unix times in milliseconds. The times are nanoseconds as decimal
// text, because doubles cannot represent them exactly.
function millisBetween(from, to) {
  return Number(BigInt(to) - BigInt(from)) / 1e6;
}

// --- addresses: the view and its filter are after the `#`, so that a link contains both

function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const decode = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  return {
    path: (path || "runs").split("/").map(decode),
    query: Object.fromEntries(new URLSearchParams(query || "")),
  };
}

function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(given).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

// Replaces the address without a new entry in the browser's history, because a filter changes with
// every typed letter.
function replaceAddress(path, query) {
  history.replaceState(null, "", address(path, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

function useAddress() {
  const [current, setCurrent] = useState(readAddress);
  useEffect(() => {
    const read = () => setCurrent(readAddress());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return current;
}

// --- links to other systems

// Replaces placeholders such as `{trace_id}` by the run's own values, percent-encoded. Returns no
// link for other schemes than http and https.
function backendLink(template, run) {
  const time = (text) => (text ? String(Date.parse(text)) : "");
  const values = {
    trace_id: run.trace_id,
    span_id: run.span_id,
    service: run.service,
    agent: run.agent,
    session: run.session,
    start_ms: time(run.start),
    end_ms: time(run.time),
  };
  const filled = template.replace(/\{(\w+)\}/g, (all, name) =>
    name in values ? encodeURIComponent(values[name] ?? "") : all,
  );
  return /^https?:\/\//.test(filled) ? filled : null;
}
