// packages: @mastra/core @mastra/observability @mastra/otel-exporter @ai-sdk/openai @opentelemetry/exporter-trace-otlp-proto zod
// instrumentation: @mastra/otel-exporter
import { createOpenAI } from '@ai-sdk/openai';
import { Agent } from '@mastra/core/agent';
import { Mastra } from '@mastra/core/mastra';
import { createTool } from '@mastra/core/tools';
import { Observability } from '@mastra/observability';
import { OtelExporter } from '@mastra/otel-exporter';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const endpoint = `${process.env.OTEL_EXPORTER_OTLP_ENDPOINT}/v1/traces`;
const exporter = new OtelExporter({ provider: { custom: { endpoint, protocol: 'http/protobuf' } } });
const tools = TOOLS.map(({ name, description, schema, run }) => [
  name,
  createTool({ id: name, description, inputSchema: schema, execute: async (args) => run(args) }),
]);
const mastra = new Mastra({
  agents: {
    bank: new Agent({
      id: 'bank_agent',
      name: 'bank_agent',
      instructions: 'Help.',
      model: createOpenAI({ baseURL: process.env.OPENAI_BASE_URL }).chat('gpt-4o'),
      tools: Object.fromEntries(tools),
    }),
  },
  observability: new Observability({
    configs: { bank: { serviceName: 'bank', exporters: [exporter] } },
  }),
  logger: false,
});
TRUTH.session_id = 'chat-5';
await mastra.getAgent('bank').generate(QUESTION, {
  maxSteps: 8,
  tracingOptions: { metadata: { sessionId: 'chat-5' } },
});
await mastra.shutdown();
process.exit();
