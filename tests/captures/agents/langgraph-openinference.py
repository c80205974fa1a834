# packages: langgraph langchain langchain-openai openinference-instrumentation-langchain opentelemetry-sdk
# instrumentation: openinference
"""An agent of LangChain."""

from bank import QUESTION, langchain_agent, provider

provider = provider()

from openinference.instrumentation.langchain import LangChainInstrumentor

LangChainInstrumentor().instrument()
langchain_agent().invoke({"messages": [("user", QUESTION)]})
provider.shutdown()
