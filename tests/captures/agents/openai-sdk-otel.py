# packages: openai opentelemetry-instrumentation-genai-openai opentelemetry-sdk
# instrumentation: opentelemetry-instrumentation-genai-openai
# env: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental
"""A hand-written loop on OpenAI's chat completions."""

from bank import TRUTH, openai_loop, provider

provider = provider()

from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

OpenAIInstrumentor().instrument()
TRUTH["agent"] = None
openai_loop(provider)
provider.shutdown()
