# packages: google-adk litellm opentelemetry-sdk
# instrumentation: google-adk native
# env: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental
# scenarios: bank transfer
"""An agent of Google's ADK."""

import asyncio
import os

from bank import QUESTION, TOOLS, TRUTH, provider

provider = provider()

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

TRUTH["session_id"] = "chat-7"
agent = Agent(
    name="bank_agent",
    model=LiteLlm("openai/gpt-4o"),
    tools=TOOLS,
    on_tool_error_callback=lambda tool, args, tool_context, error: {"error": str(error)},
)
if os.environ["SCENARIO"] == "transfer":
    # One without tools, which hands over to the one that has them.
    agent = Agent(name="coordinator", model=LiteLlm("openai/gpt-4o"), sub_agents=[agent])


async def main():
    runner = InMemoryRunner(agent, app_name="bank")
    await runner.session_service.create_session(
        app_name="bank", user_id="ann", session_id="chat-7"
    )
    message = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    async for _ in runner.run_async(user_id="ann", session_id="chat-7", new_message=message):
        pass


asyncio.run(main())
provider.shutdown()
