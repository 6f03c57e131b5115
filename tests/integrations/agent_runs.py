"""Agents with a model behind a server of the test's own, and tasks that run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.flow.running import calls
from tests.integrations.chat import Chat, Message, asks, returned, says

if TYPE_CHECKING:
    from faultline import Faultline, Job, JobHandle
    from faultline.integrations.pydantic_ai import DurableAgent


def agent_of(model: Chat, **words: Any) -> Agent[None, str]:
    client = AsyncOpenAI(base_url=model.url, api_key="none", max_retries=0)
    return Agent(OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client)), name="shop", **words)


def two_tools(messages: list[Message]) -> Message:
    done = returned(messages)
    return asks(("find", {"name": "Ada"}), ("find", {"name": "Bob"})) if not done else says(" and ".join(done))


def runs_again(app: Faultline, agent: DurableAgent[Any, Any], **words: Any) -> Any:
    """A task that runs the agent, and then waits for a signal: so its program runs twice."""

    @app.task
    async def ask(job: Job, prompt: str) -> str:
        result = await agent.run(prompt, **words)
        await job.receive("go")
        return str(result.output)

    return ask


def steps(app: Faultline, handle: JobHandle[Any]) -> list[str]:
    return [row["name"] for row in calls(app, handle).values() if row["kind"] == "step"]


def asking(app: Faultline, agent: DurableAgent[Any, Any]) -> Any:
    @app.task
    async def ask(job: Job) -> str:
        return str((await agent.run("Go")).output)

    return ask
