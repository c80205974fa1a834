# packages: crewai openinference-instrumentation-crewai opentelemetry-sdk
# instrumentation: openinference
"""A crew of one agent of CrewAI."""

from bank import QUESTION, TOOLS, TRUTH, provider

provider = provider()

from crewai import Agent, Crew, Task
from crewai.tools import tool
from openinference.instrumentation.crewai import CrewAIInstrumentor

CrewAIInstrumentor().instrument()
TRUTH.update(call_ids=False)
tools = [tool(function.__name__)(function) for function in TOOLS]
agent = Agent(role="bank_agent", goal="Help.", backstory="Helps.", llm="openai/gpt-4o", tools=tools)
task = Task(description=QUESTION, expected_output="What was done.", agent=agent)
Crew(agents=[agent], tasks=[task]).kickoff()
provider.shutdown()
