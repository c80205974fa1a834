// Tests the page as a person uses it, in a real browser, with a real sidecar that receives agent sessions over OTLP.
// Does not prove that the page looks good: people look at the pictures in docs/page.md.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";

import { send, session } from "./agent.mjs";
import { Sidecar, openBrowser, openPage, program, temporary, until, violations } from "./sidecar.mjs";

const CRITERIA = `
criteria:
  - name: stock-before-order
    select: { calls: create_order }
    evaluate: { tool_call_order: { tool_calls_order: [validate_user, check_stock, create_order] } }
  - name: charge-once
    select: { calls: charge_card }
    evaluate: { tool_call_count: { tool_calls_count: { charge_card: ["=", 1] } } }
`;
const GOOD = [["validate_user"], ["check_stock", "get_price"], ["create_order"], ["charge_card"]];
const BAD = [["validate_user"], ["create_order"], ["check_stock"], ["charge_card"]];

let browser;
before(async () => {
  browser = await openBrowser();
});
after(() => browser?.close());

const rows = (page) => page.locator(".run-row");
const shown = (page, n) =>
  until(async () => (await rows(page).count()) === n, `${n} rows are shown`);

// Starts a sidecar and opens its page. Both are closed when the test ends.
async function opened(t, text = CRITERIA, { path = "", admin, own = false, clock = false, ...window } = {}) {
  const sidecar = await Sidecar.start(text, { admin, own });
  const page = await openPage(browser, window);
  if (clock) await page.clock.install();
  t.after(async () => {
    await page.context().close();
    await sidecar.stop();
  });
  await page.goto(`${sidecar.address}/${path}`);
  return { sidecar, page };
}

const clean = (page) => assert.deepEqual(page.problems, []);

test("live rows arrive, are filtered, and a failed run shows where it parted", async (t) => {
  const { sidecar, page } = await opened(t);
  await page.getByText("Waiting for the first run").waitFor();
  // Before the first run, the page shows the addresses at which this sidecar listens.
  const endpoints = await page.locator(".endpoints").innerText();
  const [grpc, http] = sidecar.ports;
  assert.match(endpoints, new RegExp(`PROTOCOL=grpc\\n.*ENDPOINT=http://127.0.0.1:${grpc}\\b[\\s\\S]*PROTOCOL=http/protobuf\\n.*ENDPOINT=http://127.0.0.1:${http}$`));
  assert.deepEqual(await violations(page), []);
  // Each line is fully visible on a phone, too.
  await page.setViewportSize({ width: 390, height: 844 });
  assert.ok(await page.locator(".endpoints").evaluate((box) => box.scrollWidth <= box.clientWidth), "the lines wrap");
  await page.setViewportSize({ width: 1280, height: 800 });

  await send(sidecar.otlp, [session({ turns: GOOD }), session({ turns: BAD, agent: "billing_agent", service: "billing" })]);
  await shown(page, 2);
  assert.equal(await page.locator(".connection").innerText(), "● live");
  const failed = page.locator(".run-row.fail");
  assert.match(await failed.innerText(), /billing_agent/);
  assert.match(await failed.locator(".why").innerText(), /create_order was called before check_stock/);
  assert.equal(await page.locator(".run-row.pass .together .chip").count(), 2);
  assert.deepEqual(await violations(page), []);

  // `pass` counts only runs that passed every criterion.
  assert.match(await page.getByRole("group", { name: "Verdict" }).innerText(), /all\s+2[\s\S]*fail\s+1[\s\S]*pass\s+1/);

  // The address contains the filter, so a reload keeps the filter.
  await page.getByRole("button", { name: "fail" }).click();
  await shown(page, 1);
  assert.match(page.url(), /#\/runs\?label=fail$/);
  await page.getByRole("searchbox").fill("billing");
  await until(() => /text=billing/.test(page.url()), "the text stands in the address");
  await page.reload();
  await shown(page, 1);
  assert.equal(await page.getByRole("searchbox").inputValue(), "billing");
  assert.equal(await page.getByRole("button", { name: "fail" }).getAttribute("aria-pressed"), "true");
  await page.getByRole("searchbox").fill("nothing has this name");
  await page.getByText("No run matches").waitFor();
  await page.getByRole("button", { name: "Clear the filter" }).click();
  await shown(page, 2);

  // Open a run with the keyboard alone.
  await page.locator(".run-row.fail").focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Verdicts" }).waitFor();
  const moved = page.locator(".alignment tr.moved");
  assert.match(await moved.innerText(), /moved\s+create_order\s+2create_order\s*called too early/);
  assert.equal(await page.locator(".bar-call").count(), 4);
  assert.deepEqual(await violations(page), []);
  await page.reload();
  await moved.waitFor();
  clean(page);
});

test("pausing holds the list and counts on", async (t) => {
  const { sidecar, page } = await opened(t);
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 1);
  await page.getByRole("button", { name: "Pause" }).click();
  await send(sidecar.otlp, [session({ turns: GOOD }), session({ turns: BAD })]);
  await page.getByRole("button", { name: "Resume · 2 new" }).waitFor();
  assert.equal(await rows(page).count(), 1);
  await page.getByRole("button", { name: /Resume/ }).click();
  await shown(page, 3);
  clean(page);
});

test("a criterion of a run is tried with a mistake, then rightly, saved and changed by two people", async (t) => {
  // The browser reports refused requests in its console. The sidecar answers mistakes with 400, a conflict with 412.
  const expected = /status of (400|412)/;
  const { sidecar, page } = await opened(t, CRITERIA, { expected });
  await send(sidecar.otlp, [session({ turns: GOOD }), session({ turns: BAD })]);
  await shown(page, 2);
  await page.locator(".run-row.pass").click();
  await page.getByRole("button", { name: "Make a criterion of this run" }).click();
  await page.getByRole("dialog").getByText("tool_calls_order").waitFor();
  assert.deepEqual(await violations(page), []);
  await page.getByRole("link", { name: "Try checkout-agent-order" }).click();
  await page.getByRole("heading", { name: "Against 2 remembered runs" }).waitFor();
  const tally = page.locator(".tally");
  await until(async () => /1 pass\s+1 fail/.test((await tally.innerText()).replaceAll("✓", "").replaceAll("✕", "").replace(/\n+/g, " ").replace(/ +/g, " ")), "one passes, one fails");

  const editor = page.getByRole("textbox", { name: "Criterion, as YAML" });
  await editor.fill("name: mine\nevaluate:\n  tool_call_ordr: { tool_calls_order: [check_stock] }\n");
  await page.getByText("unknown evaluator").waitFor();
  assert.match(await page.locator(".mistakes").innerText(), /line 3, column 3[\s\S]*did you mean/);
  assert.equal(await page.locator(".editor mark").innerText(), "tool_call_ordr");
  assert.ok(await page.getByRole("button", { name: "Put into force" }).isDisabled());
  assert.deepEqual(await violations(page), []);

  await editor.fill("name: mine\nevaluate:\n  tool_call_order: { tool_calls_order: [check_stock] }\n");
  await until(async () => !(await page.getByRole("button", { name: "Put into force" }).isDisabled()), "it can be saved");
  await page.getByRole("button", { name: "Put into force" }).click();
  await page.getByText("mine is in force").waitFor();
  const inForce = async () => (await fetch(`${sidecar.address}/v1/criteria/mine`)).json();
  assert.equal((await inForce()).source, "api");

  // Simulate another person who saves the same criterion meanwhile.
  const put = (body) => fetch(`${sidecar.address}/v1/criteria/mine`, { method: "PUT", body, headers: { "content-type": "application/yaml" } });
  assert.ok((await put("threshold: 0.5\nevaluate: { tool_call_order: { tool_calls_order: [check_stock] } }")).ok);
  await editor.fill("name: mine\nthreshold: 0.9\nevaluate:\n  tool_call_order: { tool_calls_order: [check_stock] }\n");
  await page.getByRole("button", { name: "Save the change" }).click();
  await page.getByText("Somebody else changed").waitFor();
  assert.equal((await inForce()).criterion.threshold, 0.5);
  // The page shows the other person's text, which can be accepted or replaced.
  assert.match(await page.locator(".notice.bad .yaml").innerText(), /threshold: 0\.5/);
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "Replace it with mine" }).click();
  await until(async () => (await inForce()).criterion.threshold === 0.9, "it is saved");

  // A criterion that was saved on this page can be deleted on this page.
  await page.getByRole("button", { name: "Take out of force", exact: true }).click();
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "Take mine out of force" }).click();
  await page.getByText("mine is no longer in force").waitFor();
  assert.equal((await fetch(`${sidecar.address}/v1/criteria/mine`)).status, 404);

  // A criterion of a file cannot be saved on the page.
  await page.goto(`${sidecar.address}/#/try/charge-once`);
  await page.getByText("A file owns").waitFor();
  assert.equal(await page.getByRole("button", { name: /Save|Put/ }).count(), 0);

  await page.goto(`${sidecar.address}/#/criteria`);
  await page.getByRole("heading", { name: "stock-before-order" }).waitFor();
  await page.getByText("50 % of 2 passed").first().waitFor();
  assert.deepEqual(await violations(page), []);
  clean(page);
});

test("each criterion has its badge while there is room, and then failed ones come first", async (t) => {
  const limits = Array.from({ length: 30 }, (_, at) => `  - { name: "at-most-${at}-calls", evaluate: { efficiency: { max_calls: ${at} } } }\n`);
  const few = `criteria:\n${limits.slice(0, 8).join("")}`;
  const { sidecar, page } = await opened(t, few);
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 1);
  const row = rows(page).first();
  const badges = row.locator(".badge:not(.more)");
  // The run makes five calls, so it exceeds five of the eight limits.
  assert.equal(await badges.count(), 8);
  assert.equal(await row.locator(".badge.more").count(), 0);
  const labels = await badges.evaluateAll((all) => all.map((badge) => badge.className));
  assert.deepEqual(labels, [...Array(5).fill("badge fail"), ...Array(3).fill("badge pass")]);
  // A badge shows its verdict in words, too, not only as a colour.
  assert.match(await badges.first().textContent(), /fail: at-most-0-calls/);
  assert.equal(await row.locator(".completeness").innerText(), "complete");

  const many = await Sidecar.start(`criteria:\n${limits.join("")}`);
  t.after(() => many.stop());
  await send(many.otlp, [session({ turns: GOOD })]);
  for (const width of [1280, 800, 390]) {
    await page.setViewportSize({ width, height: 800 });
    await page.goto(`${many.address}/?${width}`);
    await shown(page, 1);
    const n = await badges.count();
    assert.ok(n >= 4, `${n} badges at ${width}`);
    assert.match(await badges.nth(3).getAttribute("title"), /: fail/);
    const more = row.locator(".badge.more");
    assert.match(await more.innerText(), new RegExp(`^\\+${30 - n}`));
    // The hidden badges are named in a tooltip and for screen readers.
    assert.match(await more.getAttribute("title"), /at-most-29-calls: pass/);
    assert.match(await more.locator(".hidden").textContent(), /at-most-29-calls: pass/);
    // Nothing is cut off, and nothing overflows the row.
    const box = await row.locator(".badges").evaluate((box) => box.scrollHeight - box.clientHeight);
    assert.ok(box <= 1, `${box} pixels are hidden at ${width}`);
    assert.ok(await row.evaluate((row) => row.scrollHeight <= row.clientHeight), `the row overflows at ${width}`);
    assert.deepEqual(await violations(page), []);
  }
  clean(page);
});

test("turns of a session stand together, with its verdict at the last one", async (t) => {
  const criteria = `
criteria:
  - name: authenticate-first
    scope: session
    evaluate: { constraints: { rules: [{ precedence: { a: "^authenticate$", b: "^transfer$" } }] } }
  - name: never-delete
    alarm: true
    evaluate: { tool_calls: { disallowed: ["^delete$"] } }
`;
  const assemble = "assemble: { settle: 100ms, restart_guard: 0s, session: { inactive: 3s, whole: true } }\n";
  const { sidecar, page } = await opened(t, assemble + criteria, { own: true });
  const now = Date.now();
  const turn = (calls, age) => session({ conversation: "c-17", turns: [calls], end: now - age });
  await send(sidecar.otlp, [turn(["authenticate"], 9_000)]);
  await shown(page, 1);
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 2);
  await send(sidecar.otlp, [turn(["transfer"], 5_000)]);
  await shown(page, 3);
  const told = async (at) => (await rows(page).nth(at).innerText()).replace(/\s+/g, " ");
  assert.match(await told(0), /turn 2 of 2.* transfer/);
  assert.match(await told(1), /turn 1 of 2.* authenticate/);
  assert.doesNotMatch(await told(2), /turn/);
  const ofSession = (at) => rows(page).nth(at).locator(".badge.pass", { hasText: "authenticate-first" });
  await ofSession(0).waitFor();
  assert.equal(await ofSession(1).count(), 0);

  // An open run with an alarm is shown immediately.
  const open = session({ turns: [["delete"]] });
  open.spans = open.spans.filter((span) => span.parentSpanId);
  await send(sidecar.otlp, [open]);
  await shown(page, 4);
  assert.match(await told(0), /open .*delete/);
  for (const width of [1280, 390]) {
    await page.setViewportSize({ width, height: 844 });
    assert.deepEqual(await violations(page), []);
  }
  await rows(page).nth(0).click();
  await page.getByText("alarm", { exact: true }).waitFor();
  await page.goBack();
  await rows(page).nth(1).click();
  await page.getByText("over the session").waitFor();
  await page.getByRole("link", { name: "c-17" }).click();
  await shown(page, 2);
  clean(page);
});

test("a thousand criteria", async (t) => {
  const limits = Array.from({ length: 1_000 }, (_, at) => `  - { name: "at-most-${at}-calls", evaluate: { efficiency: { max_calls: ${at} } } }\n`);
  const { sidecar, page } = await opened(t, `criteria:\n${limits.join("")}`, { path: "#/criteria" });
  await page.getByText("1,000 of 1,000 criteria").waitFor();
  await send(sidecar.otlp, Array.from({ length: 5 }, () => session({ turns: GOOD })));
  assert.equal(await page.locator(".criterion").count(), 40);
  assert.match(await page.locator(".criterion").first().innerText(), /from spanscore\.yaml since/);
  await page.getByRole("button", { name: "Show 40 more of 960" }).click();
  assert.equal(await page.locator(".criterion").count(), 80);
  await page.getByRole("searchbox").fill("at-most-3-");
  await page.getByText("1 of 1,000 criteria").waitFor();
  assert.match(page.url(), /#\/criteria\?text=at-most-3-$/);
  assert.deepEqual(await violations(page), []);
  // The list has at most 64 verdicts of a run, failures first.
  await page.locator(".criterion .failures li").first().waitFor();
  await page.getByRole("link", { name: "All its runs" }).click();
  await shown(page, 5);
  // The page shows so many verdicts in parts.
  const more = rows(page).first().locator(".badge.more");
  await until(async () => /^\+9\d\d/.test(await more.innerText()), "all verdicts are counted");
  await rows(page).first().click();
  await page.getByRole("heading", { name: "Verdicts" }).waitFor();
  await page.getByRole("button", { name: /Show \d+ more/ }).waitFor();
  assert.ok((await page.locator(".verdict").count()) <= 50);
  clean(page);
});

test("invisible characters in a criterion are named beside the editor", async (t) => {
  const { page } = await opened(t, CRITERIA, { path: "#/try" });
  const editor = page.getByRole("textbox", { name: "Criterion, as YAML" });
  await editor.fill("name: mine\nevaluate:\n  tool_calls: { disallowed: [pay\u200bment, \u202epayment] }\n");
  const named = page.getByRole("list", { name: "Invisible characters" });
  await named.getByText("U+200B").waitFor();
  assert.match(await named.innerText(), /line 3, column 33 holds an invisible character: U\+200B\s+line 3, column 40 holds an invisible character that turns the writing direction: U\+202E/);
  await named.getByRole("button", { name: "line 3, column 33" }).click();
  assert.equal(await editor.evaluate((area) => area.value.slice(area.selectionStart, area.selectionEnd)), "\u200b");
  assert.deepEqual(await violations(page), []);
  await editor.fill("name: mine\nevaluate:\n  tool_calls: { disallowed: [payment] }\n");
  await until(async () => (await named.getByRole("listitem").count()) === 0, "nothing is named");
  clean(page);
});

test("two people who write one criterion overwrite nothing unseen", async (t) => {
  const expected = /status of (404|412)/;
  const { sidecar, page } = await opened(t, CRITERIA, { expected });
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 1);
  const at = `${sidecar.address}/v1/criteria/theirs`;
  const put = async (threshold) => {
    const body = `threshold: ${threshold}\nevaluate: { tool_call_order: { tool_calls_order: [check_stock] } }`;
    assert.ok((await fetch(at, { method: "PUT", body, headers: { "content-type": "application/yaml" } })).ok);
  };
  const threshold = async () => (await (await fetch(at)).json()).criterion?.threshold;
  const mine = (name, threshold) => `${name}threshold: ${threshold}\nevaluate:\n  tool_call_order: { tool_calls_order: [check_stock] }\n`;
  const editor = page.getByRole("textbox", { name: "Criterion, as YAML" });
  const button = (name) => page.getByRole("button", { name, exact: true });
  const isReady = (name) => until(async () => (await button(name).count()) === 1 && !(await button(name).isDisabled()), `${name} is ready`);

  // A criterion without a name is judged, but cannot be put into force.
  await page.getByRole("link", { name: "Criteria" }).click();
  await page.getByRole("link", { name: "Write a criterion" }).click();
  await editor.fill(mine("", 0.9));
  await page.getByText("Give it a name").waitFor();
  assert.ok(await button("Put into force").isDisabled());
  assert.equal(await editor.getAttribute("spellcheck"), "false");

  // If the name is in use, the page offers to open that criterion, not to overwrite it.
  await put(0.1);
  await page.goto(`${sidecar.address}/?again#/try`);
  await editor.fill(mine("name: theirs\n", 0.9));
  await page.getByText("A criterion named theirs is in force already").waitFor();
  assert.ok(await button("Put into force").isDisabled());
  await page.getByRole("link", { name: "open that one" }).click();
  await until(async () => /threshold: 0\.1/.test(await editor.inputValue()), "it is read");

  // A draft remembers the version of the criterion that it was written from, even if the person leaves the view.
  await editor.fill(mine("name: theirs\n", 0.9));
  await page.getByRole("link", { name: "Health" }).click();
  await page.getByRole("heading", { name: "Health" }).waitFor();
  await put(0.2);
  await page.goBack();
  await until(async () => /threshold: 0\.9/.test(await editor.inputValue()), "the draft is there");
  await isReady("Save the change");
  await button("Save the change").click();
  await page.getByText("Somebody else changed").waitFor();
  assert.equal(await threshold(), 0.2);
  await button("Discard mine").click();
  await until(async () => /threshold: 0\.2/.test(await editor.inputValue()), "theirs is in the editor");

  // Simulate another person who takes the criterion out of force.
  await editor.fill(mine("name: theirs\n", 0.9));
  await isReady("Save the change");
  await fetch(at, { method: "DELETE" });
  await button("Save the change").click();
  await page.getByText("Somebody else took theirs out of force").waitFor();
  assert.deepEqual(await violations(page), []);
  await button("Put mine into force").click();
  await until(async () => (await threshold()) === 0.9, "it is in force again");

  // An empty text has no mistakes and no verdicts.
  await editor.fill("");
  await page.getByText("Nothing has been judged yet").waitFor();
  clean(page);
});

test("a criterion of a megabyte is refused in words", async (t) => {
  const { sidecar, page } = await opened(t, CRITERIA, { path: "#/try", expected: /status of 4\d\d/ });
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  const names = "check_stock, ".repeat(80_000);
  await page.getByRole("textbox", { name: "Criterion, as YAML" }).fill(`name: huge\nevaluate: { tool_call_order: { tool_calls_order: [${names}] } }\n`);
  await until(async () => (await page.locator(".mistakes li, .notice.bad").count()) > 0, "the refusal is shown");

  // A megabyte of short lines would keep the browser busy for many seconds.
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.goto(`${sidecar.address}/?again#/try`);
  const editor = page.getByRole("textbox", { name: "Criterion, as YAML" });
  const before = await editor.inputValue();
  await page.evaluate((text) => navigator.clipboard.writeText(text), "      - check_stock\n".repeat(58_000));
  await editor.press("Control+V");
  await page.getByText("These 1,160,000 characters were not pasted").waitFor();
  assert.equal(await editor.inputValue(), before);
  assert.deepEqual(await violations(page), []);
  clean(page);
});

test("the token is asked for, is not kept, and the stream carries it", async (t) => {
  const { folder, remove } = temporary();
  t.after(remove);
  writeFileSync(join(folder, "token"), "open-sesame\n");
  const { sidecar, page } = await opened(t, CRITERIA, { admin: `token_file: ${join(folder, "token")}`, expected: /status of 401/ });
  await page.getByText("asks for a token").waitFor();
  assert.deepEqual(await violations(page), []);
  await page.locator("input[type=password]").fill("wrong");
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByText("not the one").waitFor();
  await page.locator("input[type=password]").fill("open-sesame");
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByText("Waiting for the first run").waitFor();
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 1);
  assert.deepEqual(await page.context().cookies(), []);
  assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length), 0);
  await page.reload();
  await page.getByText("asks for a token").waitFor();
  clean(page);
});

test("hostile names are shown as what they are", async (t) => {
  const { sidecar, page } = await opened(t);
  const image = "<img src=x onerror=alert(1)>";
  const bidi = "pay\u202eyap\u0007";
  const invisible = "pay\u200bment";
  const long = "x".repeat(10_000);
  await send(sidecar.otlp, [
    session({ agent: image, service: "<script>alert(2)</script>", conversation: "javascript:alert(3)", turns: [[image, bidi], [long, invisible]] }),
  ]);
  await shown(page, 1);
  const row = rows(page).first();
  assert.match(await row.innerText(), /<img src=x onerror=alert\(1\)>/);
  assert.match(await row.innerText(), /pay⟨U\+202E⟩yap⟨U\+0007⟩/);
  await row.click();
  await page.getByRole("heading", { name: "Calls" }).waitFor();
  assert.equal(await page.locator("img, iframe, object").count(), 0);
  assert.equal(await page.locator("script").count(), 1);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "Make a criterion of this run" }).click();
  const proposal = page.getByRole("dialog").locator(".yaml");
  await proposal.waitFor();
  assert.ok(!/[\u202e\u200b\u0007]/.test(await proposal.innerText()));
  clean(page);
});

test("ten thousand runs", async (t) => {
  const { sidecar, page } = await opened(t, `memory: { limit: 512MiB }\n${CRITERIA}`, { admin: "page: { max_size: 64MiB }" });
  await page.getByText("Waiting for the first run").waitFor();
  for (let n = 0; n < 10_000; n += 500) {
    await send(sidecar.otlp, Array.from({ length: 500 }, (_, at) => session({ turns: (n + at) % 10 === 0 ? BAD : GOOD })));
  }
  await until(async () => /10,000 judged/.test(await page.locator(".foot").innerText()), "all are counted", 60_000);
  assert.ok((await rows(page).count()) < 40, "only rows in sight are drawn");
  const list = page.getByRole("region", { name: /Runs/ });
  await list.evaluate((box) => box.scrollTo(0, box.scrollHeight));
  await until(async () => (await rows(page).count()) > 3, "the end is drawn");
  await page.getByRole("button", { name: "fail" }).click();
  await until(async () => (await page.locator(".run-row.pass").count()) === 0, "passed runs are gone");
  clean(page);
});

test("a sidecar that goes and comes back is told, and followed again", async (t) => {
  const { sidecar, page } = await opened(t, CRITERIA, { expected: /ERR_|status of/ });
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 1);
  const { ports } = sidecar;
  await sidecar.stop();
  await page.getByText("The sidecar does not answer").waitFor();
  assert.equal(await rows(page).count(), 1, "what was seen stays in sight");
  assert.deepEqual(await violations(page), []);
  const again = await Sidecar.start(CRITERIA, { ports });
  t.after(() => again.stop());
  await page.getByText("● live").waitFor();
  await page.getByText("Waiting for the first run").waitFor();
  await send(again.otlp, [session({ turns: BAD })]);
  await shown(page, 1);
  assert.equal(await page.locator(".run-row.fail").count(), 1);
  clean(page);
});

test("more pages than streams: the further ones poll", async (t) => {
  const { sidecar, page } = await opened(t, CRITERIA, { expected: /status of 503/ });
  const streams = [];
  await page.goto("about:blank");
  for (let n = 0; n < 32; n += 1) {
    const stop = new AbortController();
    await until(async () => {
      const response = await fetch(`${sidecar.address}/v1/runs/events`, { signal: stop.signal });
      // Store the response. If it were garbage-collected, its connection would be closed.
      streams.push({ stop, response });
      return response.ok;
    }, "a stream is free");
  }
  await page.goto(sidecar.address);
  await page.getByText("every 3 s").waitFor();
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 1);
  for (const { stop } of streams) stop.abort();
  clean(page);
});

test("a trace that was not recognised is named with the setting that makes its calls known", async (t) => {
  const { sidecar, page } = await opened(t, "");
  const odd = session({ turns: [], service: "legacy" });
  const attributes = [["step.kind", "tool"], ["step.tool_name", "lookup"], ["step.input", "s3cret"]];
  odd.spans = [{ ...odd.spans[0], name: "my_tool_step", attributes: attributes.map(([key, text]) => ({ key, value: { stringValue: text } })) }];
  await send(sidecar.otlp, [odd]);
  await until(async () => {
    await page.reload();
    await page.getByText("Waiting for the first run").waitFor();
    return (await page.getByText("1 trace looks like an agent's").count()) > 0;
  }, "whoever waits is told");
  await page.getByRole("link", { name: "Health" }).last().click();
  await page.getByText("my_tool_step").waitFor();
  const proposal = await page.locator(".unknown .yaml").innerText();
  assert.match(proposal, /step\.kind: tool[\s\S]*name_from: step\.tool_name/);
  assert.ok(!(await page.locator("main").innerText()).includes("s3cret"));
  assert.deepEqual(await violations(page), []);
  clean(page);

  // The proposal is a valid configuration, and makes the trace's calls known.
  const known = await Sidecar.start(proposal);
  t.after(() => known.stop());
  await send(known.otlp, [odd]);
  await page.goto(known.address);
  await shown(page, 1);
  assert.match(await rows(page).innerText(), /lookup/);
  clean(page);
});

test("health says whether each destination answers", async (t) => {
  let status = 503;
  const backend = createServer((request, response) => {
    request.resume().on("end", () => response.writeHead(status, { "content-type": "text/plain" }).end("not today"));
  });
  await new Promise((resolve) => backend.listen(0, "127.0.0.1", resolve));
  t.after(() => backend.close());
  const endpoint = `http://127.0.0.1:${backend.address().port}`;
  const forward = `forward: { endpoint: "${endpoint}", protocol: http/protobuf, retry: { initial_interval: 20ms, max_interval: 50ms } }\n`;
  const { sidecar, page } = await opened(t, `${forward}${CRITERIA}`, { path: "#/health" });
  const card = page.locator(".card", { has: page.getByRole("heading", { name: "Destinations" }) });
  const says = (words) =>
    until(async () => {
      await page.reload();
      await card.waitFor();
      return words.test(await card.innerText());
    }, String(words));
  await says(/telemetry: nothing was sent yet/);
  assert.ok((await card.innerText()).includes(endpoint));
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await says(/telemetry: does not answer[\s\S]*503/);
  assert.deepEqual(await violations(page), []);
  status = 200;
  await says(/telemetry: answers/);
  status = 400;
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await says(/telemetry: refuses what is sent[\s\S]*400/);
  clean(page);
});

test("rows that arrive move nothing that somebody reads", async (t) => {
  const { sidecar, page } = await opened(t);
  await send(sidecar.otlp, Array.from({ length: 100 }, () => session({ turns: GOOD })));
  const foot = page.locator(".foot");
  const counts = (n) => until(async () => (await foot.innerText()).includes(`${n} judged`), `${n} runs are counted`);
  await counts(100);
  const list = page.getByRole("region", { name: /Runs/ });
  await list.evaluate((box) => (box.scrollTop = 4_000));
  // Returns the first visible row and its position.
  const first = () =>
    list.evaluate((box) => {
      const top = box.getBoundingClientRect().top;
      const rows = [...box.querySelectorAll("a.run-row")].map((row) => ({ href: row.href, at: Math.round(row.getBoundingClientRect().top - top) }));
      return rows.filter(({ at }) => at >= 0).sort((a, b) => a.at - b.at)[0];
    });
  let before;
  await until(async () => (before = await first()) !== undefined, "rows are drawn there");
  await send(sidecar.otlp, Array.from({ length: 7 }, () => session({ turns: BAD })));
  await counts(107);
  await until(async () => JSON.stringify(await first()) === JSON.stringify(before), "the same row stands in the same place", 3_000);
  clean(page);
});

test("a run of thirty-two thousand calls is shown in part, and says so", async (t) => {
  const { sidecar, page } = await opened(t, `assemble: { settle: 100ms, restart_guard: 0s, span_limit: 70000 }\n${CRITERIA}`, { own: true });
  const long = session({ turns: [Array.from({ length: 32_000 }, (_, at) => (at % 2 ? "read_page" : "click"))] });
  for (let at = 0; at < long.spans.length; at += 4_000) await send(sidecar.otlp, [{ ...long, spans: long.spans.slice(at, at + 4_000) }]);
  await shown(page, 1);
  assert.match(await rows(page).innerText(), /32,000 calls/);
  await rows(page).click();
  await page.getByText("The run made 32,000 calls; the first 500 of them are shown.").waitFor();
  assert.ok((await page.locator(".calls tbody tr").count()) <= 100);
  assert.ok((await page.locator(".bar-call").count()) <= 300);
  assert.deepEqual(await violations(page), []);
  clean(page);
});

test("a page left open for a day goes on, and notices a connection that fell silent", async (t) => {
  const { sidecar, page } = await opened(t, CRITERIA, { expected: /ERR_|status of/, clock: true });
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  await shown(page, 1);
  await page.clock.fastForward("24:00:00");
  await page.getByText("● live").waitFor();
  await send(sidecar.otlp, [session({ turns: BAD })]);
  await shown(page, 2);
  // Runs of the previous day show their date.
  await page.clock.fastForward("01:00");
  await until(async () => /\d{4}-\d\d-\d\d/.test(await rows(page).last().locator(".when").innerText()), "the day is shown");

  // Stop the process: its connections remain open, but it sends nothing.
  sidecar.child.kill("SIGSTOP");
  await page.clock.fastForward("00:41");
  await page.getByText("The sidecar does not answer").waitFor();
  sidecar.child.kill("SIGCONT");
  await until(async () => {
    await page.clock.fastForward("00:10");
    return (await page.getByText("● live").count()) > 0;
  }, "it is followed again");
  assert.equal(await rows(page).count(), 2);
  clean(page);
});

test("a clock that jumps leaves the order of runs as they were judged", async (t) => {
  const { sidecar, page } = await opened(t, CRITERIA);
  const day = 86_400_000;
  for (const shift of [0, 400 * day, -400 * day]) {
    await send(sidecar.otlp, [session({ turns: GOOD, agent: `agent_${shift / day}`, end: Date.now() + shift })]);
    await until(async () => (await page.getByText(`agent_${shift / day}`).count()) > 0, "the run is shown");
  }
  const agents = await rows(page).locator(".strong").allInnerTexts();
  assert.deepEqual(agents, ["agent_-400", "agent_400", "agent_0"]);
  clean(page);
});

test("what is copied is copied where the browser has no clipboard, too", async (t) => {
  const { sidecar, page } = await opened(t, CRITERIA);
  const one = session({ turns: GOOD });
  await send(sidecar.otlp, [one]);
  // Browsers provide no clipboard to a page that they load over plain HTTP from another host.
  await page.addInitScript(() => Object.defineProperty(Navigator.prototype, "clipboard", { value: undefined }));
  await shown(page, 1);
  await page.goto(`${sidecar.address}/?again#/run/${one.traceId}`);
  await page.evaluate(() => document.addEventListener("copy", () => (globalThis.copied = String(document.activeElement.value)), true));
  await page.getByRole("button", { name: "Copy" }).click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  assert.equal(await page.evaluate(() => globalThis.copied), one.traceId);
  clean(page);
});

test("nobody else may use the page: other origins, other hosts", async (t) => {
  const { sidecar } = await opened(t);
  const ask = (path, headers) => fetch(`${sidecar.address}${path}`, { headers });
  assert.equal((await ask("/v1/runs", { origin: "http://evil.example" })).status, 403);
  assert.equal((await ask("/page/page.js", { origin: "http://evil.example" })).status, 403);
  const page = await ask("/");
  assert.match(page.headers.get("content-security-policy"), /default-src 'none'; script-src 'self'/);
  assert.match(page.headers.get("content-security-policy"), /frame-ancestors 'none'/);
  assert.equal(page.headers.get("x-content-type-options"), "nosniff");
});

for (const [width, height] of [[1280, 800], [390, 844]]) {
  for (const scheme of ["light", "dark"]) {
    test(`every view fits ${width} pixels, ${scheme}`, async (t) => {
      const { sidecar, page } = await opened(t, CRITERIA, { width, height, scheme });
      const bad = session({ turns: BAD });
      await send(sidecar.otlp, [session({ turns: GOOD }), bad]);
      await shown(page, 2);
      for (const path of ["runs", `run/${bad.traceId}`, "criteria", "try", "health"]) {
        await page.goto(`${sidecar.address}/#/${path}`);
        await page.locator("main h1, main h2").first().waitFor({ state: "attached" });
        const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
        assert.ok(!isWide, `${path} is wider than the window`);
        assert.deepEqual(await violations(page), [], path);
      }
      clean(page);
    });
  }
}

test("a report opens from disk, without a server", async (t) => {
  const { folder, remove } = temporary();
  t.after(remove);
  const file = join(folder, "report.html");
  const args = ["replay", "--config", join(process.env.RECORDING, "../demo.yaml"), "--exit-zero", "--report", file];
  execFileSync(program, [...args, process.env.RECORDING], { stdio: "ignore" });
  const page = await openPage(browser);
  t.after(() => page.context().close());
  await page.goto(pathToFileURL(file).href);
  await shown(page, 1);
  assert.deepEqual(await violations(page), []);
  await rows(page).first().click();
  await page.getByText("charge_card was called twice, expected once").waitFor();
  assert.deepEqual(await violations(page), []);
  await page.getByRole("link", { name: "Criteria" }).click();
  await page.getByRole("heading", { name: "charge-exactly-once" }).waitFor();
  assert.deepEqual(await violations(page), []);
  clean(page);
});

// The goal of two seconds holds for an idle machine, so the test only prints whether it is met. On every machine, ten
// times as many runs must take no more than ten times as long.
test("a report of twenty thousand runs opens in no more than ten times the time of two thousand", async (t) => {
  const { folder, remove } = temporary();
  t.after(remove);
  const config = join(folder, "spanscore.yaml");
  writeFileSync(config, CRITERIA);
  const open = async (nRuns) => {
    const lines = [];
    for (let n = 0; n < nRuns; n += 500) {
      const sessions = Array.from({ length: 500 }, (_, at) => session({ turns: (n + at) % 7 === 0 ? BAD : GOOD }));
      lines.push(JSON.stringify({ resourceSpans: sessions.map(({ resource, spans }) => ({ resource, scopeSpans: [{ spans }] })) }));
    }
    const recording = join(folder, "runs.jsonl");
    writeFileSync(recording, `${lines.join("\n")}\n`);
    const file = join(folder, `report-${nRuns}.html`);
    execFileSync(program, ["replay", "--config", config, "--exit-zero", "--format", "jsonl", "--report", file, recording], { stdio: "ignore", maxBuffer: 1 << 30 });
    const page = await openPage(browser);
    t.after(() => page.context().close());
    const start = performance.now();
    await page.goto(pathToFileURL(file).href);
    await rows(page).first().waitFor();
    const took = performance.now() - start;
    const list = page.getByRole("region", { name: /Runs/ });
    const frames = await list.evaluate(async (box) => {
      const frames = [];
      let last = performance.now();
      for (let step = 0; step < 60; step += 1) {
        box.scrollTop += box.scrollHeight / 60;
        await new Promise(requestAnimationFrame);
        frames.push(performance.now() - last);
        last = performance.now();
      }
      return frames.sort((a, b) => a - b);
    });
    const [middle, longest] = [frames[30], frames[59]];
    t.diagnostic(`${nRuns} runs: opened in ${Math.round(took)} ms; frames while scrolling: median ${Math.round(middle)} ms, longest ${Math.round(longest)} ms`);
    return { page, took, middle };
  };
  const few = await open(2_000);
  const many = await open(20_000);
  t.diagnostic(`goal of 2,000 ms on an idle machine: ${many.took < 2_000 ? "met" : "MISSED"}`);
  assert.ok(many.took < 10 * few.took, `${Math.round(many.took)} ms, and ${Math.round(few.took)} ms for a tenth`);
  // The page draws only the visible rows, however many runs there are.
  assert.ok(many.middle < 4 * few.middle, `${many.middle} ms a frame, and ${few.middle} ms with a tenth of the runs`);
  const { page } = many;
  await page.getByRole("button", { name: "fail" }).click();
  await page.locator(".run-row.fail").first().click();
  await page.locator(".alignment tr.moved").waitFor();
  clean(few.page);
  clean(page);
});
