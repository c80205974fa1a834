# packages: haystack-ai openinference-instrumentation-haystack
# instrumentation: openinference
"""An agent of Haystack in a pipeline."""

from bank import QUESTION, TOOLS, TRUTH, provider

provider = provider()

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from openinference.instrumentation.haystack import HaystackInstrumentor

HaystackInstrumentor().instrument()
TRUTH["agent"] = "Agent"
tools = [create_tool_from_function(tool) for tool in TOOLS]
agent = Agent(chat_generator=OpenAIChatGenerator(model="gpt-4o"), tools=tools)
pipeline = Pipeline()
pipeline.add_component("agent", agent)
pipeline.run({"agent": {"messages": [ChatMessage.from_user(QUESTION)]}})
provider.shutdown()
