# packages: pydantic-ai-slim openai logfire
# instrumentation: logfire.instrument_pydantic_ai()
"""An agent of pydantic-ai under Logfire."""

import bank
import logfire
from bank import QUESTION, TOOLS
from pydantic_ai import Agent, ModelRetry

bank.ERROR = ModelRetry
logfire.configure(send_to_logfire=False, service_name="bank", console=False)
logfire.instrument_pydantic_ai()
Agent("openai:gpt-4o", name="bank_agent", tools=TOOLS, retries=2).run_sync(QUESTION)
logfire.shutdown()
