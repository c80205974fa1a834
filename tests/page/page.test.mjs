// The page as a person uses it: a real sidecar, a real browser, real agent sessions sent over OTLP.
// It does not prove that the page looks good: docs/page.md has pictures that people looked at.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
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

// A sidecar and a page that are closed when the test ends; the console must have stayed clean.
async function opened(t, text = CRITERIA, { path = "", admin, ...window } = {}) {
  const sidecar = await Sidecar.start(text, { admin });
  const page = await openPage(browser, window);
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
  assert.deepEqual(await violations(page), []);

  await send(sidecar.otlp, [session({ turns: GOOD }), session({ turns: BAD, agent: "billing_agent", service: "billing" })]);
  await shown(page, 2);
  assert.equal(await page.locator(".connection").innerText(), "● live");
  const failed = page.locator(".run-row.fail");
  assert.match(await failed.innerText(), /billing_agent/);
  assert.match(await failed.locator(".why").innerText(), /create_order was called before check_stock/);
  assert.equal(await page.locator(".run-row.pass .together .chip").count(), 2);
  assert.deepEqual(await violations(page), []);

  // The filter stands in the address, and a reload keeps it.
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

  // A run, by the keyboard alone.
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
  // The browser reports refused requests in its console: mistakes are answered with 400, a conflict with 412.
  const expected = /status of (400|412)/;
  const { sidecar, page } = await opened(t, CRITERIA, { expected });
  await send(sidecar.otlp, [session({ turns: GOOD }), session({ turns: BAD })]);
  await shown(page, 2);
  await page.locator(".run-row.pass").click();
  await page.getByRole("button", { name: "Make a criterion of this run" }).click();
  await page.getByRole("dialog").getByText("tool_calls_order").waitFor();
  assert.deepEqual(await violations(page), []);
  await page.getByRole("link", { name: "Try it" }).click();
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

  // Somebody else saves the same criterion meanwhile.
  const put = (body) => fetch(`${sidecar.address}/v1/criteria/mine`, { method: "PUT", body, headers: { "content-type": "application/yaml" } });
  assert.ok((await put("threshold: 0.5\nevaluate: { tool_call_order: { tool_calls_order: [check_stock] } }")).ok);
  await editor.fill("name: mine\nthreshold: 0.9\nevaluate:\n  tool_call_order: { tool_calls_order: [check_stock] }\n");
  await page.getByRole("button", { name: "Save the change" }).click();
  await page.getByText("Somebody else changed").waitFor();
  assert.equal((await inForce()).criterion.threshold, 0.5);
  await page.getByRole("button", { name: /Take theirs as read/ }).click();
  await page.getByRole("button", { name: "Save the change" }).click();
  await until(async () => (await inForce()).criterion.threshold === 0.9, "it is saved");

  // A criterion of a file is offered to copy.
  await page.goto(`${sidecar.address}/#/try/charge-once`);
  await page.getByText("A file owns").waitFor();
  assert.equal(await page.getByRole("button", { name: /Save|Put/ }).count(), 0);

  await page.goto(`${sidecar.address}/#/criteria`);
  await page.getByRole("heading", { name: "stock-before-order" }).waitFor();
  await page.getByText("50 % of 2 passed").first().waitFor();
  assert.deepEqual(await violations(page), []);
  clean(page);
});

test("a criterion of a megabyte is refused in words", async (t) => {
  const { sidecar, page } = await opened(t, CRITERIA, { path: "#/try", expected: /status of 4\d\d/ });
  await send(sidecar.otlp, [session({ turns: GOOD })]);
  const names = "check_stock, ".repeat(80_000);
  await page.getByRole("textbox", { name: "Criterion, as YAML" }).fill(`name: huge\nevaluate: { tool_call_order: { tool_calls_order: [${names}] } }\n`);
  await until(async () => (await page.locator(".mistakes li, .notice.bad").count()) > 0, "the refusal is shown");
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
  const long = "x".repeat(10_000);
  await send(sidecar.otlp, [
    session({ agent: image, service: "<script>alert(2)</script>", conversation: "javascript:alert(3)", turns: [[image, bidi], [long]] }),
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
      // The response is kept: one that nobody holds is closed.
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

test("health speaks of what was not recognised", async (t) => {
  const { sidecar, page } = await opened(t, "", { path: "#/health" });
  const odd = session({ turns: [] });
  odd.spans = [{ ...odd.spans[0], name: "my_tool_step", attributes: [] }];
  await send(sidecar.otlp, [odd]);
  await until(async () => {
    await page.reload();
    await page.getByRole("heading", { name: "Telemetry" }).waitFor();
    return (await page.getByText("my_tool_step").count()) > 0;
  }, "the span is named");
  assert.deepEqual(await violations(page), []);
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

test("a report of twenty thousand runs opens in under two seconds", async (t) => {
  const { folder, remove } = temporary();
  t.after(remove);
  const lines = [];
  for (let n = 0; n < 20_000; n += 500) {
    const sessions = Array.from({ length: 500 }, (_, at) => session({ turns: (n + at) % 7 === 0 ? BAD : GOOD }));
    lines.push(JSON.stringify({ resourceSpans: sessions.map(({ resource, spans }) => ({ resource, scopeSpans: [{ spans }] })) }));
  }
  const recording = join(folder, "runs.jsonl");
  writeFileSync(recording, `${lines.join("\n")}\n`);
  const config = join(folder, "spanscore.yaml");
  writeFileSync(config, CRITERIA);
  const file = join(folder, "report.html");
  execFileSync(program, ["replay", "--config", config, "--exit-zero", "--format", "jsonl", "--report", file, recording], { stdio: "ignore", maxBuffer: 1 << 30 });
  const page = await openPage(browser);
  t.after(() => page.context().close());
  const start = performance.now();
  await page.goto(pathToFileURL(file).href);
  await rows(page).first().waitFor();
  const took = performance.now() - start;
  t.diagnostic(`opened in ${Math.round(took)} ms`);
  assert.ok(took < 2_000, `${Math.round(took)} ms`);
  const list = page.getByRole("region", { name: /Runs/ });
  const longest = await list.evaluate(async (box) => {
    let longest = 0;
    let last = performance.now();
    for (let step = 0; step < 60; step += 1) {
      box.scrollTop += 20_000;
      await new Promise(requestAnimationFrame);
      longest = Math.max(longest, performance.now() - last);
      last = performance.now();
    }
    return longest;
  });
  t.diagnostic(`longest frame while scrolling ${Math.round(longest)} ms`);
  assert.ok(longest < 500, `${Math.round(longest)} ms for one frame`);
  await page.getByRole("button", { name: "fail" }).click();
  await page.locator(".run-row.fail").first().click();
  await page.locator(".alignment tr.moved").waitFor();
  clean(page);
});
