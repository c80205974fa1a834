// packages: @openai/agents @arizeai/openinference-instrumentation-openai-agents @opentelemetry/api @opentelemetry/exporter-trace-otlp-proto @opentelemetry/sdk-trace-node zod
// instrumentation: @arizeai/openinference-instrumentation-openai-agents
import { OpenAIAgentsInstrumentation } from '@arizeai/openinference-instrumentation-openai-agents';
import * as agents from '@openai/agents';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const provider = new NodeTracerProvider({
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())],
});
provider.register();
new OpenAIAgentsInstrumentation({ tracerProvider: provider }).manuallyInstrument(agents);
TRUTH.call_ids = false;
const tools = TOOLS.map(({ name, description, schema, run }) =>
  agents.tool({ name, description, parameters: schema, execute: run }));
const agent = new agents.Agent({ name: 'bank_agent', model: 'gpt-4o', tools });
await agents.run(agent, QUESTION);
await provider.shutdown();
