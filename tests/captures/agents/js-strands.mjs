// packages: @strands-agents/sdk @modelcontextprotocol/sdk openai @opentelemetry/api @opentelemetry/exporter-trace-otlp-http @opentelemetry/sdk-trace-base @opentelemetry/sdk-trace-node @opentelemetry/resources @opentelemetry/exporter-metrics-otlp-http @opentelemetry/sdk-metrics zod
// instrumentation: built in (setupTracer)
import { Agent, tool } from '@strands-agents/sdk';
import { OpenAIModel } from '@strands-agents/sdk/models/openai';
import { setupTracer } from '@strands-agents/sdk/telemetry';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const provider = setupTracer({ exporters: { otlp: true } });
const tools = TOOLS.map(({ schema, run, ...about }) =>
  tool({ ...about, inputSchema: schema, callback: async (args) => run(args) }));
TRUTH.session_id = 'chat-9';
// With `api: 'chat'`, Strands 1.19 keeps only the last of the calls that a streamed reply asks for.
const agent = new Agent({
  name: 'bank_agent',
  model: new OpenAIModel({ api: 'responses', modelId: 'gpt-4o' }),
  tools,
  traceAttributes: { 'session.id': 'chat-9' },
  printer: false,
});
await agent.invoke(QUESTION);
await provider.forceFlush();
process.exit();
