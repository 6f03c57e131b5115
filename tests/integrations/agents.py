"""An agent for worker processes in tests. The first tool call kills its worker, before it has done anything."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from faultline import Faultline, Job
from faultline.integrations.pydantic_ai import DurableAgent

app = Faultline()
client = AsyncOpenAI(base_url=os.environ["MODEL_URL"], api_key="none", max_retries=0)
shop = Agent(OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client)), name="shop")
notes = Path(os.environ["NOTES"])


@shop.tool_plain
async def find(name: str) -> str:
    if not (notes / "killed").exists():
        (notes / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (notes / name).touch(exist_ok=False)
    return name


agent = DurableAgent(shop)


@app.task(lease=3, max_attempts=3, backoff=lambda _: 0)
async def ask(job: Job) -> str:
    return (await agent.run("Who?")).output
