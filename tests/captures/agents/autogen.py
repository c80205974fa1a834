# packages: autogen-agentchat autogen-ext[openai] opentelemetry-sdk
# instrumentation: native (autogen-core), RoundRobinGroupChat runtime
"""A team of one agent of AutoGen."""

import asyncio

from bank import QUESTION, TOOLS, provider

provider = provider()

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import SingleThreadedAgentRuntime
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main():
    model = OpenAIChatCompletionClient(model="gpt-4o")
    agent = AssistantAgent("bank_agent", model, tools=TOOLS, max_tool_iterations=8)
    runtime = SingleThreadedAgentRuntime(tracer_provider=provider)
    runtime.start()
    over = TextMessageTermination("bank_agent")
    team = RoundRobinGroupChat([agent], termination_condition=over, runtime=runtime)
    await team.run(task=QUESTION)
    await runtime.stop()


asyncio.run(main())
provider.shutdown()
