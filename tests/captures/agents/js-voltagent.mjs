// packages: @voltagent/core ai@6 @ai-sdk/openai@3 @opentelemetry/exporter-trace-otlp-proto @opentelemetry/sdk-trace-base zod
// instrumentation: built in (VoltAgentObservability)
import { createOpenAI } from '@ai-sdk/openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { Agent, VoltAgentObservability, createTool } from '@voltagent/core';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const observability = new VoltAgentObservability({
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())],
});
const tools = TOOLS.map(({ schema, run, ...about }) =>
  createTool({ ...about, parameters: schema, execute: async (args) => run(args) }));
const agent = new Agent({
  name: 'bank_agent',
  instructions: 'Help.',
  model: createOpenAI({ baseURL: process.env.OPENAI_BASE_URL }).chat('gpt-4o'),
  tools,
  observability,
});
TRUTH.session_id = 'chat-8';
await agent.generateText(QUESTION, { conversationId: 'chat-8', userId: 'ann', maxSteps: 8 });
await observability.shutdown();
process.exit();
