// packages: langchain @arizeai/openinference-instrumentation-langchain @langchain/core @langchain/openai @opentelemetry/api @opentelemetry/exporter-trace-otlp-proto @opentelemetry/sdk-trace-node zod
// instrumentation: @arizeai/openinference-instrumentation-langchain
import { LangChainInstrumentation } from '@arizeai/openinference-instrumentation-langchain';
import * as callbacks from '@langchain/core/callbacks/manager';
import { ChatOpenAI } from '@langchain/openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import { createAgent, tool, toolErrorMiddleware } from 'langchain';

import { QUESTION, TOOLS, TRUTH } from './bank.mjs';

const provider = new NodeTracerProvider({
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())],
});
provider.register();
new LangChainInstrumentation({ tracerProvider: provider }).manuallyInstrument(callbacks);
TRUTH.call_ids = false;
const tools = TOOLS.map(({ run, ...about }) => tool(async (args) => JSON.stringify(run(args)), about));
const agent = createAgent({
  model: new ChatOpenAI({ model: 'gpt-4o' }),
  tools,
  name: 'bank_agent',
  middleware: [toolErrorMiddleware({ onError: String })],
});
await agent.invoke({ messages: [{ role: 'user', content: QUESTION }] });
await provider.shutdown();
