# packages: langgraph langchain langchain-openai openinference-instrumentation-langchain opentelemetry-sdk
# instrumentation: openinference
# scenarios: bank chat
"""An agent of LangChain."""

from bank import TRUTH, langchain_agent, provider, turns

provider = provider()

from openinference.instrumentation.langchain import LangChainInstrumentor

LangChainInstrumentor().instrument()
TRUTH["session_id"] = "chat-1"
agent = langchain_agent()
messages = []
for question in turns():
    said = {"messages": [*messages, ("user", question)]}
    session = {"metadata": {"session_id": "chat-1"}}
    messages = agent.invoke(said, config=session)["messages"]
provider.shutdown()
