# packages: smolagents openai openinference-instrumentation-smolagents opentelemetry-sdk
# instrumentation: openinference
"""A tool-calling agent of smolagents."""

import os

from bank import QUESTION, TOOLS, TRUTH, provider

provider = provider()

from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from smolagents import OpenAIServerModel, Tool, ToolCallingAgent

SmolagentsInstrumentor().instrument()


def made(function):
    arguments = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    inputs = {
        name: {"type": "integer" if kind is int else "string", "description": name}
        for name, kind in arguments.items()
    }
    about = {"name": function.__name__, "description": function.__doc__, "inputs": inputs}
    about |= {"output_type": "object", "skip_forward_signature_validation": True}
    return type(function.__name__, (Tool,), {**about, "forward": staticmethod(function)})()


model = OpenAIServerModel("gpt-4o", os.environ["OPENAI_BASE_URL"], api_key="none")
agent = ToolCallingAgent([made(tool) for tool in TOOLS], model, name="bank_agent", description="x")
agent.run(QUESTION)
provider.shutdown()
