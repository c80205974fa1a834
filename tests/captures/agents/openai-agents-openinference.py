# packages: openai-agents openinference-instrumentation-openai-agents
# instrumentation: openinference
"""The OpenAI Agents SDK."""

from bank import QUESTION, TOOLS, provider

provider = provider()

from agents import Agent, Runner, function_tool, set_trace_processors
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

set_trace_processors([])  # Its own goes to OpenAI.
OpenAIAgentsInstrumentor().instrument()
agent = Agent("bank_agent", model="gpt-4o", tools=[function_tool(tool) for tool in TOOLS])
Runner.run_sync(agent, QUESTION)
provider.shutdown()
