// Starts a sidecar of the real program on free ports, and opens its page in a real browser.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

import axe from "axe-core";
import { chromium } from "playwright-core";

export const program = process.env.SPANSCORE;

export function temporary() {
  const folder = mkdtempSync(join(tmpdir(), "spanscore-page-"));
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) };
}

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export class Sidecar {
  // `text` is the configuration without the ports. With `own`, `text` contains the section `assemble`.
  static async start(text = "", { admin = "", ports, own = false } = {}) {
    const sidecar = new Sidecar();
    sidecar.ports = ports ?? [await freePort(), await freePort(), await freePort()];
    sidecar.temporary = temporary();
    const [grpc, http, page] = sidecar.ports;
    const file = join(sidecar.temporary.folder, "spanscore.yaml");
    writeFileSync(
      file,
      `receivers: { otlp: { grpc: { listen: "127.0.0.1:${grpc}" }, http: { listen: "127.0.0.1:${http}" } } }
admin:
  listen: "127.0.0.1:${page}"
  ${admin}
${own ? "" : "assemble: { settle: 100ms, restart_guard: 0s }\n"}${text}`,
    );
    sidecar.otlp = `http://127.0.0.1:${http}`;
    sidecar.address = `http://127.0.0.1:${page}`;
    // The page shows this path as it was given. A relative path is the same in all pictures.
    const options = { cwd: sidecar.temporary.folder, stdio: ["ignore", "ignore", "pipe"] };
    sidecar.child = spawn(program, ["run", "--config", "spanscore.yaml"], options);
    sidecar.log = "";
    sidecar.child.stderr.on("data", (data) => (sidecar.log += data));
    await until(async () => {
      if (sidecar.child.exitCode !== null) throw new Error(`spanscore ended: ${sidecar.log}`);
      return (await fetch(`${sidecar.address}/readyz`).catch(() => null))?.ok;
    }, "the sidecar is ready");
    return sidecar;
  }

  async stop() {
    if (this.child.exitCode === null) {
      const ended = new Promise((resolve) => this.child.once("exit", resolve));
      this.child.kill("SIGTERM");
      await ended;
    }
    this.temporary.remove();
  }
}

// Calls `ask` until it returns a true value.
export async function until(ask, what, millis = 20_000) {
  const end = Date.now() + millis;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    if (Date.now() > end) throw new Error(`not within ${millis} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export async function openBrowser() {
  return chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

// Opens a window and collects the errors and warnings in its console, except expected ones, in `problems`.
export async function openPage(browser, { width = 1280, height = 800, scale = 1, scheme = "light", expected = /^$/ } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, deviceScaleFactor: scale, colorScheme: scheme });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.problems = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !expected.test(message.text())) {
      page.problems.push(message.text());
    }
  });
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("dialog", (dialog) => {
    page.problems.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  return page;
}

// Returns the accessibility violations that axe-core finds in the current page.
export async function violations(page) {
  await page.evaluate(axe.source);
  const found = await page.evaluate(async () => {
    const rules = { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] };
    const result = await globalThis.axe.run(document, rules);
    return result.violations.map(({ id, help, nodes }) => ({
      id,
      help,
      nodes: nodes.slice(0, 3).map(({ html, failureSummary }) => `${html.slice(0, 160)} ${failureSummary}`),
    }));
  });
  return found;
}
