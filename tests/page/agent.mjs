// Generates agent sessions as OTLP/JSON: an agent run with model turns and the tool calls that the
// turns asked for, with the attributes of the OpenTelemetry GenAI conventions.

import { randomBytes } from "node:crypto";

const attribute = (key, value) => ({
  key,
  value: typeof value === "number" ? { intValue: String(value) } : { stringValue: value },
});

// Returns the spans of a session. Each of `turns` is a list of calls; a call is a name, or
// `{ name, error, ms, args, result }`. The calls of one turn start at the same time.
export function session({
  service = "shop",
  agent = "checkout_agent",
  conversation,
  turns,
  end = Date.now(),
  traceId = randomBytes(16).toString("hex"),
}) {
  const spans = [];
  const rootId = randomBytes(8).toString("hex");
  let at = 0;
  const add = (name, parentSpanId, start, took, attributes, error) => {
    const span = {
      traceId,
      spanId: randomBytes(8).toString("hex"),
      parentSpanId,
      name,
      kind: 1,
      start,
      took,
      attributes: Object.entries(attributes).map(([key, value]) => attribute(key, value)),
      status: error ? { code: 2, message: "failed" } : {},
    };
    spans.push(span);
    return span;
  };
  for (const calls of turns) {
    add("chat gpt-x", rootId, at, 300, { "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-x" });
    at += 320;
    let longest = 0;
    for (const written of calls) {
      const call = typeof written === "string" ? { name: written } : written;
      const took = call.ms ?? 120;
      add(
        `execute_tool ${call.name}`,
        rootId,
        at,
        took,
        {
          "gen_ai.operation.name": "execute_tool",
          "gen_ai.tool.name": call.name,
          "gen_ai.tool.call.id": randomBytes(6).toString("hex"),
          "gen_ai.tool.call.arguments": JSON.stringify(call.args ?? { item: "book" }),
          "gen_ai.tool.call.result": JSON.stringify(call.result ?? { ok: !call.error }),
        },
        call.error,
      );
      longest = Math.max(longest, took);
    }
    at += longest + 40;
  }
  const root = add(`invoke_agent ${agent}`, undefined, 0, at, {
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.agent.name": agent,
    ...(conversation ? { "gen_ai.conversation.id": conversation } : {}),
  });
  root.spanId = rootId;
  const begin = end - at;
  const nanos = (ms) => `${Math.round((begin + ms) * 1000)}000`;
  return {
    traceId,
    resource: { attributes: [attribute("service.name", service)] },
    spans: spans.map(({ start, took, ...span }) => ({
      ...span,
      startTimeUnixNano: nanos(start),
      endTimeUnixNano: nanos(start + took),
    })),
  };
}

// Sends sessions to an OTLP/HTTP port.
export async function send(address, sessions) {
  const resourceSpans = sessions.map(({ resource, spans }) => ({ resource, scopeSpans: [{ spans }] }));
  const response = await fetch(`${address}/v1/traces`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ resourceSpans }),
  });
  if (!response.ok) throw new Error(`the receiver answered ${response.status}: ${await response.text()}`);
}
