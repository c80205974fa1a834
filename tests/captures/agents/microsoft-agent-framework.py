# packages: agent-framework-core agent-framework-openai opentelemetry-sdk
# instrumentation: configure_otel_providers(enable_sensitive_data=True)
"""An agent of Microsoft's Agent Framework."""

import asyncio

from bank import QUESTION, TOOLS, provider

provider = provider()

from agent_framework import Agent
from agent_framework.observability import enable_instrumentation
from agent_framework.openai import OpenAIChatClient

enable_instrumentation(enable_sensitive_data=True)
agent = Agent(OpenAIChatClient(model="gpt-4o"), name="bank_agent", tools=TOOLS)
asyncio.run(agent.run(QUESTION))
provider.shutdown()
