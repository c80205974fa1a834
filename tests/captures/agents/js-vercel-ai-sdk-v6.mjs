// packages: ai@6 @ai-sdk/openai@3 @opentelemetry/api @opentelemetry/exporter-trace-otlp-proto @opentelemetry/sdk-trace-node zod
// instrumentation: built in (experimental_telemetry)
// scenarios: bank stream
import { createOpenAI } from '@ai-sdk/openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import { generateText, stepCountIs, streamText, tool } from 'ai';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const provider = new NodeTracerProvider({
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())],
});
provider.register();
TRUTH.session_id = 'chat-6';
const tools = TOOLS.map(({ name, description, schema, run }) => [
  name,
  tool({ description, inputSchema: schema, execute: run }),
]);
const request = {
  model: createOpenAI({ baseURL: process.env.OPENAI_BASE_URL }).chat('gpt-4o'),
  prompt: QUESTION,
  tools: Object.fromEntries(tools),
  stopWhen: stepCountIs(8),
  experimental_telemetry: {
    isEnabled: true,
    functionId: 'bank_agent',
    metadata: { sessionId: 'chat-6' },
  },
};
if (process.env.SCENARIO === 'stream') {
  await streamText(request).consumeStream();
} else {
  await generateText(request);
}
await provider.shutdown();
