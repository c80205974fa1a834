# packages: mlflow openai
# instrumentation: mlflow.trace and mlflow.openai.autolog()
"""A hand-written loop under MLflow's tracing."""

import os

os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = (
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
)
os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"

import bank
import mlflow
from bank import TRUTH, openai_loop

mlflow.openai.autolog()
TRUTH["call_ids"] = False
for name, tool in bank.BY_NAME.items():
    bank.BY_NAME[name] = mlflow.trace(tool, name=name, span_type="TOOL")
mlflow.trace(openai_loop, name="bank_agent", span_type="AGENT")()
mlflow.flush_trace_async_logging()
