# packages: agno openai openinference-instrumentation-agno opentelemetry-sdk
# instrumentation: openinference
"""An agent of Agno."""

import os

from bank import QUESTION, TOOLS, provider

provider = provider()

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from openinference.instrumentation.agno import AgnoInstrumentor

AgnoInstrumentor().instrument()
model = OpenAIChat("gpt-4o", base_url=os.environ["OPENAI_BASE_URL"])
Agent(name="bank_agent", model=model, tools=TOOLS, telemetry=False).run(QUESTION)
provider.shutdown()
