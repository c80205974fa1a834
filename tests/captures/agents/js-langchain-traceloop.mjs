// packages: langchain @traceloop/node-server-sdk @langchain/core @langchain/openai zod
// instrumentation: @traceloop/node-server-sdk
// env: TRACELOOP_API_KEY=none
import * as traceloop from '@traceloop/node-server-sdk';

traceloop.initialize({
  appName: 'bank',
  baseUrl: process.env.OTEL_EXPORTER_OTLP_ENDPOINT,
  disableBatch: true,
  silenceInitializationMessage: true,
});
const { createAgent, tool, toolErrorMiddleware } = await import('langchain');
const { ChatOpenAI } = await import('@langchain/openai');
const { QUESTION, TOOLS } = await import('./bank.mjs');

const tools = TOOLS.map(({ run, ...about }) => tool(async (args) => JSON.stringify(run(args)), about));
const agent = createAgent({
  model: new ChatOpenAI({ model: 'gpt-4o' }),
  tools,
  name: 'bank_agent',
  middleware: [toolErrorMiddleware({ onError: String })],
});
await traceloop.withWorkflow({ name: 'bank_agent' }, () =>
  agent.invoke({ messages: [{ role: 'user', content: QUESTION }] }));
await traceloop.forceFlush();
