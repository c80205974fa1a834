# packages: llama-index-core llama-index-llms-openai-like openinference-instrumentation-llama-index opentelemetry-sdk
# instrumentation: openinference
"""An agent workflow of LlamaIndex."""

import asyncio
import os

from bank import QUESTION, TOOLS, provider

provider = provider()

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

LlamaIndexInstrumentor().instrument()
llm = OpenAILike(
    model="gpt-4o",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
)
agent = FunctionAgent(name="bank_agent", tools=TOOLS, llm=llm, streaming=False)


async def main():
    await agent.run(QUESTION)


asyncio.run(main())
provider.shutdown()
