# packages: pydantic-ai-slim openai opentelemetry-sdk
# instrumentation: pydantic-ai native (Agent.instrument_all), plain OpenTelemetry SDK
"""An agent of pydantic-ai."""

import bank
from bank import QUESTION, TOOLS, provider

provider = provider()

from pydantic_ai import Agent, ModelRetry

bank.ERROR = ModelRetry
Agent.instrument_all()
Agent("openai:gpt-4o", name="bank_agent", tools=TOOLS, retries=2).run_sync(QUESTION)
provider.shutdown()
