// packages: ai @ai-sdk/otel @ai-sdk/openai @opentelemetry/api @opentelemetry/exporter-trace-otlp-proto @opentelemetry/sdk-trace-node zod
// instrumentation: @ai-sdk/otel
import { OpenTelemetry } from '@ai-sdk/otel';
import { createOpenAI } from '@ai-sdk/openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import { generateText, isStepCount, registerTelemetry, streamText, tool } from 'ai';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const exporter = new OTLPTraceExporter();
const provider = new NodeTracerProvider({
  spanProcessors: [new SimpleSpanProcessor(exporter)],
});
provider.register();
TRUTH.session_id = 'chat-7';
registerTelemetry(new OpenTelemetry({ runtimeContext: true }));
const tools = TOOLS.map(({ name, description, schema, run }) => [
  name,
  tool({ description, inputSchema: schema, execute: run }),
]);
const request = {
  model: createOpenAI({ baseURL: process.env.OPENAI_BASE_URL }).chat('gpt-4o'),
  prompt: QUESTION,
  tools: Object.fromEntries(tools),
  stopWhen: isStepCount(8),
  runtimeContext: { sessionId: 'chat-7' },
  telemetry: {
    isEnabled: true,
    functionId: 'bank_agent',
    includeRuntimeContext: { sessionId: true },
  },
};
if (process.env.SCENARIO === 'stream') {
  await streamText(request).consumeStream();
} else {
  await generateText(request);
}
await provider.shutdown();
