"""Agents of the OpenAI Agents SDK with a model behind a server of the test's own, and tasks that run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline import Faultline, Job
    from faultline.integrations.openai_agents import DurableAgent
    from tests.integrations.chat import Chat


def model_of(chat: Chat) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("any", AsyncOpenAI(base_url=chat.url, api_key="none", max_retries=0))


def agent_of(chat: Chat, *tools: Callable[..., Any] | FunctionTool, name: str = "shop", **words: Any) -> Agent[None]:
    made = [one if isinstance(one, FunctionTool) else function_tool(one) for one in tools]
    return Agent(name=name, model=model_of(chat), tools=[*made], **words)


def runs_again(app: Faultline, agent: DurableAgent[Any], **words: Any) -> Any:
    """A task that runs the agent, and then waits for a signal: so its program runs twice."""

    @app.task
    async def ask(job: Job, prompt: str) -> str:
        result = await agent.run(prompt, **words)
        await job.receive("go")
        return str(result.final_output)

    return ask


def asking(app: Faultline, agent: DurableAgent[Any], **words: Any) -> Any:
    @app.task
    async def ask(job: Job) -> str:
        return str((await agent.run("Go", **words)).final_output)

    return ask
