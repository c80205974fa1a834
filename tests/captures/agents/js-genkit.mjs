// packages: genkit @genkit-ai/compat-oai @opentelemetry/exporter-trace-otlp-proto@0.52 @opentelemetry/sdk-trace-base@1 zod
// instrumentation: built in (enableTelemetry with spanProcessors)
import { openAICompatible } from '@genkit-ai/compat-oai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { BatchSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { genkit } from 'genkit';
import { enableTelemetry, flushTracing } from 'genkit/tracing';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

TRUTH.call_ids = false;
await enableTelemetry({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
const ai = genkit({ plugins: [openAICompatible({ name: 'stub', apiKey: 'none', baseURL: process.env.OPENAI_BASE_URL })] });
const tools = TOOLS.map(({ name, description, schema, run }) =>
  ai.defineTool({ name, description, inputSchema: schema }, async (args) => {
    try {
      return run(args);
    } catch (error) {
      return { error: String(error) };
    }
  }));
const agent = ai.defineFlow('bank_agent', async () => {
  const reply = await ai.generate({ model: 'stub/gpt-4o', prompt: QUESTION, tools, maxTurns: 8 });
  return reply.text;
});
await agent();
await flushTracing();
