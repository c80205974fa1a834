# packages: openai-agents openinference-instrumentation-openai-agents
# instrumentation: openinference
# scenarios: bank chat
"""The OpenAI Agents SDK."""

from bank import TOOLS, TRUTH, provider, turns

provider = provider()

from agents import Agent, Runner, SQLiteSession, function_tool, set_trace_processors
from openinference.instrumentation import using_session
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

set_trace_processors([])  # Its own goes to OpenAI.
OpenAIAgentsInstrumentor().instrument()
agent = Agent("bank_agent", model="gpt-4o", tools=[function_tool(tool) for tool in TOOLS])
TRUTH["session_id"] = "chat-1"
session = SQLiteSession("chat-1")
with using_session("chat-1"):
    for question in turns():
        Runner.run_sync(agent, question, session=session)
provider.shutdown()
