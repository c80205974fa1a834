# packages: openai openinference-instrumentation-openai opentelemetry-sdk
# instrumentation: openinference
"""A hand-written loop on OpenAI's chat completions."""

from bank import TRUTH, openai_loop, provider

provider = provider()

from openinference.instrumentation.openai import OpenAIInstrumentor

OpenAIInstrumentor().instrument()
TRUTH["agent"] = None
openai_loop(provider)
provider.shutdown()
