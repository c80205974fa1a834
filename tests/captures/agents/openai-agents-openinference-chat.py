# packages: openai-agents openinference-instrumentation-openai-agents
# instrumentation: openinference
"""The OpenAI Agents SDK on chat completions."""

from bank import QUESTION, TOOLS, provider

provider = provider()

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_trace_processors
from openai import AsyncOpenAI
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

set_trace_processors([])  # Its own goes to OpenAI.
OpenAIAgentsInstrumentor().instrument()
model = OpenAIChatCompletionsModel("gpt-4o", AsyncOpenAI())
agent = Agent("bank_agent", model=model, tools=[function_tool(tool) for tool in TOOLS])
Runner.run_sync(agent, QUESTION)
provider.shutdown()
