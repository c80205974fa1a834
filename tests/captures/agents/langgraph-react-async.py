# packages: langgraph langchain langchain-openai openinference-instrumentation-langchain
# instrumentation: openinference
# scenarios: react_agent agent
"""A prebuilt agent of LangGraph and one of LangChain, run asynchronously."""

import asyncio
import os

import bank
from bank import QUESTION, TOOLS, provider

provider = provider()

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool, ToolException
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode, create_react_agent
from openinference.instrumentation.langchain import LangChainInstrumentor

LangChainInstrumentor().instrument()
tools = [StructuredTool.from_function(tool) for tool in TOOLS]
model = ChatOpenAI(model="gpt-4o")
if os.environ["SCENARIO"] == "react_agent":
    node = ToolNode(tools, handle_tool_errors=True)
    agent = create_react_agent(model, node, name="bank_agent")
else:
    bank.ERROR = ToolException
    for tool in tools:
        tool.handle_tool_error = True
    agent = create_agent(model, tools, name="bank_agent")


async def main():
    await agent.ainvoke({"messages": [("user", QUESTION)]})


asyncio.run(main())
provider.shutdown()
