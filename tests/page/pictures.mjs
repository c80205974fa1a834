// Draws the pictures of docs/page.md anew, with a real sidecar, a fixed set of agent sessions and a real browser. Look
// at the pictures before you commit them. `tests/page/run --pictures` runs this script for two folders: `docs/pictures`
// gets the pictures of the page; any other folder gets every view in light and dark, at 1280 and at 390 pixels.

import { join } from "node:path";
import { mkdirSync } from "node:fs";
import { createServer } from "node:http";

import { send, session } from "./agent.mjs";
import { Sidecar, openBrowser, openPage, until } from "./sidecar.mjs";

const CRITERIA = `
criteria:
  - name: stock-before-order
    description: the customer is known and the stock is checked before an order is created
    select: { calls: create_order }
    evaluate: { tool_call_order: { tool_calls_order: [validate_user, check_stock, create_order, charge_card] } }
  - name: charge-once
    description: nobody is charged twice, not even when the first attempt fails
    select: { calls: charge_card }
    evaluate: { tool_call_count: { tool_calls_count: { charge_card: ["=", 1] } } }
  - name: never-delete
    evaluate: { tool_calls: { disallowed: [delete_order] } }
  - name: few-calls
    description: no run makes more than thirty calls, none fails, and the same call is not repeated
    evaluate: { efficiency: { max_calls: 30 } }
  - name: right-amount
    description: the card is charged in euros
    select: { calls: charge_card }
    evaluate: { tool_call_args: { tool_calls: [{ name: charge_card, args: { currency: EUR } }] } }
`;

const GOOD = [["validate_user"], ["get_price", "check_stock"], ["create_order"], [charge()], ["send_receipt"]];
const MOVED = [["validate_user"], ["create_order"], [{ name: "check_stock", ms: 640 }], [charge()], ["send_receipt"]];
const TWICE = [["validate_user"], ["check_stock"], ["create_order"], [{ ...charge(), error: true, ms: 2_300 }], [charge()], ["send_receipt"]];
const SEARCH = [["search_web", "search_docs", { name: "search_tickets", ms: 700 }], ["answer"]];
const LONG = [...Array.from({ length: 22 }, () => ["fetch_page"]), ["summarise"]];
const VERY_LONG = Array.from({ length: 40 }, (_, at) => [at % 3 === 0 ? "read_page" : at % 3 === 1 ? "click" : "type_text"]);
const DELETED = [["validate_user"], ["delete_order"], ["refund"]];

function charge() {
  return { name: "charge_card", args: { amount: 42, currency: "EUR" }, result: { id: "ch_1" }, ms: 410 };
}

const KINDS = [
  { turns: GOOD },
  { agent: "support_agent", service: "helpdesk", turns: SEARCH },
  { agent: "research_agent", service: "research", turns: LONG },
  { turns: MOVED },
  { agent: "billing_agent", service: "billing", conversation: "session-7f3a", turns: TWICE },
  { turns: GOOD },
  { agent: "browser_agent", service: "research", turns: VERY_LONG },
  { agent: "billing_agent", service: "billing", turns: DELETED },
];

const browser = await openBrowser();
// Telemetry goes to a backend that accepts everything, scores to an address at which nothing listens.
const backend = createServer((request, response) => request.resume().on("end", () => response.end()));
await new Promise((resolve) => backend.listen(4318, "127.0.0.1", resolve).on("error", () => backend.listen(0, "127.0.0.1", resolve)));
const forward = `forward: { endpoint: "http://localhost:${backend.address().port}", protocol: http/protobuf }`;
const scores = `scores: { span: { endpoint: "http://localhost:9" } }`;
const sidecar = await Sidecar.start(`explain: { values: true }\n${forward}\n${scores}\n${CRITERIA}`, {
  admin: `links: [{ name: Jaeger, url: "http://jaeger:16686/trace/{trace_id}" }]`,
});
const folder = process.argv[2];
const isForDocs = folder === "docs/pictures";
mkdirSync(folder, { recursive: true });

const now = Date.now();
const sessions = Array.from({ length: 64 }, (_, at) => session({ ...KINDS[at % KINDS.length], end: now - (64 - at) * 7_000 }));
for (const one of sessions) await send(sidecar.otlp, [one]);
const odd = session({ turns: [["lookup"]], service: "legacy", agent: "old_agent" });
odd.spans = odd.spans.map((span) => ({
  ...span,
  name: span.name.startsWith("execute_tool") ? "my_tool_step" : "handle_request",
  attributes: span.name.startsWith("execute_tool")
    ? [["step.kind", "tool"], ["step.tool_name", "lookup"], ["step.input", "{}"], ["step.output", "{}"]].map(([key, text]) => ({ key, value: { stringValue: text } }))
    : [],
}));
await send(sidecar.otlp, [odd]);
const hostile = session({ agent: "<b>bold</b> \u202egnp", service: "hostile", turns: [["<img src=x onerror=alert(1)>", "pay\u202eyap"]] });
if (!isForDocs) await send(sidecar.otlp, [hostile]);
const last = sessions.findLast((_, at) => at % KINDS.length === 3);
const twice = sessions.findLast((_, at) => at % KINDS.length === 4);
const long = sessions.findLast((_, at) => at % KINDS.length === 6);
const total = sessions.length + (isForDocs ? 0 : 1);

const DRAFT = `name: stock-first
description: the stock is checked before an order is created
select: { calls: create_order }
evaluate:
  tool_call_ordr: { tool_calls_order: [check_stock, create_order] }
`;

async function draw({ width, height, scheme = "light", suffix = "", scale = 1 }) {
  // The sidecar answers a draft with a mistake with 400, which the browser reports as an error.
  const page = await openPage(browser, { width, height, scheme, scale, expected: /status of 400/ });
  const shot = async (name) => {
    await page.mouse.move(0, 0);
    await page.evaluate(() => document.activeElement?.blur());
    await page.screenshot({ path: join(folder, `${name}${suffix}.png`) });
  };
  // If only the part after `#` changes, the browser does not load the page again, so change the query, too.
  const open = async (path) => {
    await page.goto(`${sidecar.address}/?${Math.random()}#/${path}`);
    await page.getByText(/live/).waitFor();
  };
  const scrollTo = (text) => page.getByRole("heading", { name: text, exact: true }).evaluate((heading) => heading.scrollIntoView());
  await open("runs");
  const foot = page.locator(".foot");
  await until(async () => (await foot.innerText()).includes(`${total} remembered`), "all runs are there");
  await shot("runs");
  await open(`run/${last.traceId}`);
  await page.locator(".alignment tr.moved").waitFor();
  await shot("run");
  await open(`run/${twice.traceId}`);
  await page.getByRole("heading", { name: "Timeline" }).waitFor();
  await scrollTo("Timeline");
  await shot("timeline");
  await open("criteria");
  await page.getByRole("heading", { name: "charge-once" }).waitFor();
  await page.locator(".plot").first().waitFor();
  await shot("criteria");
  await open("try");
  const editor = page.getByRole("textbox", { name: "Criterion, as YAML" });
  await editor.fill(DRAFT.replace("ordr:", "order:"));
  await page.getByRole("heading", { name: /^Against/ }).waitFor();
  await until(async () => /24 pass/.test((await page.locator(".tally").innerText()).replace(/\s+/g, " ")), "it is judged");
  await editor.fill(DRAFT);
  await page.locator(".mistakes li").waitFor();
  await shot("try");
  await open("health");
  await page.getByRole("heading", { name: "Telemetry" }).waitFor();
  await shot("health");
  if (!isForDocs) {
    await page.locator("main").evaluate((main) => (main.scrollTop = main.scrollHeight));
    await shot("health-end");
    await open(`run/${long.traceId}`);
    await page.getByRole("heading", { name: "Timeline" }).waitFor();
    await shot("long");
    await scrollTo("Timeline");
    await shot("long-timeline");
    await open(`run/${twice.traceId}`);
    await page.getByRole("heading", { name: "Timeline" }).waitFor();
    await shot("twice");
    await scrollTo("Calls");
    await shot("calls");
    await page.getByRole("button", { name: "Make a criterion" }).click();
    await page.getByRole("dialog").waitFor();
    await shot("proposal");
    await open("runs?text=nothing-has-this-name");
    await page.getByText("No run matches").waitFor();
    await shot("empty");
    await open("runs?label=fail&criterion=charge-once");
    await page.locator(".run-row").first().waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await shot("filtered");
    await open("try");
    await editor.fill(`name: receipt-last\nevaluate:\n  tool_call_order: { tool_calls_order: [charge_card, send_receipt] }\n`);
    await page.getByRole("heading", { name: /^Against/ }).waitFor();
    await page.waitForTimeout(600);
    await shot("tried");
  }
  for (const problem of page.problems) console.error(`${suffix}: ${problem}`);
  await page.context().close();
}

if (isForDocs) {
  await draw({ width: 1280, height: 680, scale: 1.4 });
} else {
  await draw({ width: 1280, height: 800, suffix: "-1280-light" });
  await draw({ width: 1280, height: 800, scheme: "dark", suffix: "-1280-dark" });
  await draw({ width: 390, height: 844, suffix: "-390-light" });
  await draw({ width: 390, height: 844, scheme: "dark", suffix: "-390-dark" });
}
await browser.close();
await sidecar.stop();
backend.close();
backend.closeAllConnections();
