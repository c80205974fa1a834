# packages: dspy openinference-instrumentation-dspy opentelemetry-sdk
# instrumentation: openinference
"""A ReAct module of DSPy."""

from bank import QUESTION, TOOLS, TRUTH, provider

provider = provider()

import dspy
from openinference.instrumentation.dspy import DSPyInstrumentor

DSPyInstrumentor().instrument()
TRUTH.update(agent="ReAct", call_ids=False, steps=False, parallel=False)
dspy.configure(lm=dspy.LM("openai/gpt-4o", cache=False))
dspy.ReAct("question -> answer", tools=TOOLS)(question=QUESTION)
provider.shutdown()
