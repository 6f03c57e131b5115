"""An agent for worker processes in tests. It kills its worker once, at the point that the environment names."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunHooks, function_tool
from openai import AsyncOpenAI

from faultline import Faultline, Job
from faultline.integrations.openai_agents import DurableAgent

app = Faultline()
client = AsyncOpenAI(base_url=os.environ["MODEL_URL"], api_key="none", max_retries=0)
notes = Path(os.environ["NOTES"])


def killed_at(point: str) -> None:
    if os.environ["KILLED_AT"] == point and not (notes / "killed").exists():
        (notes / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@function_tool(failure_error_function=None)
async def find(name: str) -> str:
    killed_at("tool")
    (notes / name).touch(exist_ok=False)
    return name


class Hooks(RunHooks[Any]):
    """Called before each request."""

    def __init__(self) -> None:
        self.requests = 0

    async def on_llm_start(self, *_: Any) -> None:
        self.requests += 1
        killed_at(f"request {self.requests}")


shop = Agent[None](name="shop", model=OpenAIChatCompletionsModel("any", client), tools=[find])
agent = DurableAgent(shop)


@app.task(lease=3, max_attempts=3, backoff=lambda _: 0)
async def ask(job: Job) -> str:
    result = await agent.run("Who?", hooks=Hooks())
    killed_at("end")
    return str(result.final_output)
