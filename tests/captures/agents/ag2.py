# packages: ag2[openai,tracing] opentelemetry-sdk
# instrumentation: TelemetryMiddleware
"""An agent of AG2."""

import asyncio

from bank import QUESTION, TOOLS, provider

provider = provider()

from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.middleware import TelemetryMiddleware

middleware = [TelemetryMiddleware(agent_name="bank_agent")]
agent = Agent("bank_agent", config=OpenAIConfig("gpt-4o"), tools=TOOLS, middleware=middleware)
asyncio.run(agent.ask(QUESTION))
provider.shutdown()
