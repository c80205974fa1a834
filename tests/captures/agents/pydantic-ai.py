# packages: pydantic-ai-slim openai opentelemetry-sdk
# instrumentation: pydantic-ai native (Agent.instrument_all), plain OpenTelemetry SDK
# scenarios: bank chat
"""An agent of pydantic-ai."""

import bank
from bank import TOOLS, TRUTH, provider, turns

provider = provider()

from pydantic_ai import Agent, ModelRetry

bank.ERROR = ModelRetry
Agent.instrument_all()
TRUTH["session_id"] = "chat-1"
agent = Agent("openai:gpt-4o", name="bank_agent", tools=TOOLS, retries=2)
messages = []
for question in turns():
    run = agent.run_sync(question, message_history=messages, conversation_id="chat-1")
    messages = run.all_messages()
provider.shutdown()
