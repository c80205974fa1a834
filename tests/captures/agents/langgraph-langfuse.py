# packages: langgraph langchain langchain-openai langfuse
# instrumentation: langfuse CallbackHandler
# env: LANGFUSE_PUBLIC_KEY=none LANGFUSE_SECRET_KEY=none
"""An agent of LangChain."""

import os

from bank import QUESTION, langchain_agent

os.environ["LANGFUSE_BASE_URL"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
from langfuse import get_client
from langfuse.langchain import CallbackHandler

langchain_agent().invoke({"messages": [("user", QUESTION)]}, {"callbacks": [CallbackHandler()]})
get_client().shutdown()
