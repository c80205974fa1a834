# packages: semantic-kernel opentelemetry-sdk
# instrumentation: semantic-kernel native
# env: SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE=true
"""An agent of Semantic Kernel, which puts a plugin's name in front of a tool's."""

import asyncio

from bank import QUESTION, TOOLS, TRUTH, as_text, provider

provider = provider()

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import KernelPlugin, kernel_function

TRUTH["plugin"] = "bank-"


async def main():
    plugin = KernelPlugin("bank", functions=[kernel_function(as_text(tool)) for tool in TOOLS])
    model = OpenAIChatCompletion(ai_model_id="gpt-4o")
    agent = ChatCompletionAgent(name="bank_agent", service=model, plugins=[plugin])
    await agent.get_response(QUESTION)


asyncio.run(main())
provider.shutdown()
