# packages: langgraph langchain langchain-openai opentelemetry-instrumentation-langchain opentelemetry-sdk
# instrumentation: openllmetry
"""An agent of LangChain."""

from bank import QUESTION, langchain_agent, provider

provider = provider()

from opentelemetry.instrumentation.langchain import LangchainInstrumentor

LangchainInstrumentor().instrument()
langchain_agent().invoke({"messages": [("user", QUESTION)]})
provider.shutdown()
