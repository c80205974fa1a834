# packages: openai-agents logfire
# instrumentation: logfire.instrument_openai_agents()
# scenarios: responses chat stream
"""The OpenAI Agents SDK under Logfire."""

import asyncio
import os

import logfire
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    set_trace_processors,
)
from bank import QUESTION, TOOLS, TRUTH
from openai import AsyncOpenAI

TRUTH["session_id"] = "chat-7"
set_trace_processors([])  # Its own goes to OpenAI.
logfire.configure(send_to_logfire=False, service_name="bank", console=False)
logfire.instrument_openai_agents()
scenario = os.environ["SCENARIO"]
model = "gpt-4o"
if scenario == "chat":
    model = OpenAIChatCompletionsModel("gpt-4o", AsyncOpenAI())
agent = Agent("bank_agent", model=model, tools=[function_tool(tool) for tool in TOOLS])
config = RunConfig(group_id="chat-7")


async def main():
    if scenario == "stream":
        run = Runner.run_streamed(agent, QUESTION, run_config=config)
        async for _ in run.stream_events():
            pass
    else:
        await Runner.run(agent, QUESTION, run_config=config)


asyncio.run(main())
logfire.shutdown()
