# packages: openai-agents opentelemetry-instrumentation-genai-openai-agents opentelemetry-instrumentation-genai-openai
# instrumentation: opentelemetry-instrumentation-genai-openai-agents
# env: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental
"""The OpenAI Agents SDK."""

from bank import QUESTION, TOOLS, provider

provider = provider()

from agents import Agent, Runner, function_tool, set_trace_processors
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

set_trace_processors([])  # Its own goes to OpenAI.
OpenAIAgentsInstrumentor().instrument()
OpenAIInstrumentor().instrument()
agent = Agent("bank_agent", model="gpt-4o", tools=[function_tool(tool) for tool in TOOLS])
Runner.run_sync(agent, QUESTION)
provider.shutdown()
