// packages: openai @arizeai/openinference-instrumentation-openai @opentelemetry/api @opentelemetry/exporter-trace-otlp-proto @opentelemetry/sdk-trace-node zod
// instrumentation: @arizeai/openinference-instrumentation-openai
import { OpenAIInstrumentation } from '@arizeai/openinference-instrumentation-openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import OpenAI from 'openai';
import { z } from 'zod';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const provider = new NodeTracerProvider({
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())],
});
provider.register();
new OpenAIInstrumentation({ tracerProvider: provider }).manuallyInstrument(OpenAI);
TRUTH.agent = null;
TRUTH.call_ids = false;
const tools = TOOLS.map(({ name, description, schema }) => ({
  type: 'function',
  function: { name, description, parameters: z.toJSONSchema(schema) },
}));
function result({ name, arguments: args }) {
  try {
    return JSON.stringify(TOOLS.find((tool) => tool.name === name).run(JSON.parse(args)));
  } catch (error) {
    return String(error);
  }
}
const messages = [{ role: 'user', content: QUESTION }];
await provider.getTracer('bank-app').startActiveSpan('POST /chat', async (span) => {
  const client = new OpenAI();
  for (;;) {
    const reply = await client.chat.completions.create({ model: 'gpt-4o', messages, tools });
    const { message } = reply.choices[0];
    if (!message.tool_calls) break;
    messages.push(message);
    for (const call of message.tool_calls) {
      messages.push({ role: 'tool', tool_call_id: call.id, content: result(call.function) });
    }
  }
  span.end();
});
await provider.shutdown();
