"""The agent of agent.py, written with the OpenAI Agents SDK: tools are functions, and the loop is the SDK's.

Watch: every request to the model and every tool call is a step that is remembered, so nothing is asked or done twice when a
worker dies. The tool that deletes something waits for a person, without a slot. The text is shown as it comes. The model is
a stand-in (chat_stand_in.py) that turns the first request away; the step tries again. For a real one, set MODEL_URL and its
key.

    pip install 'faultline-queue[cli,embedded,openai-agents]'
    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/agent_openai_agents.py
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI

from faultline import Faultline, Job, JobHandle
from faultline.integrations.openai_agents import DurableAgent, retries_of_models

app = Faultline()
customers = {1: "Ada", 2: "Grace"}


@function_tool
async def find_customer(name: str) -> str:
    found = [number for number, known in customers.items() if known == name]
    return f"{name} is customer {found[0]}" if found else f"there is no {name}"


@function_tool(needs_approval=True)
async def delete_customer(number: int) -> str:
    print(f"  deleting customer {number}")
    customers.pop(number, None)  # done twice, it does the same
    return f"deleted customer {number}"


def make_agent(url: str) -> DurableAgent[None]:
    # The step tries again: the client need not.
    client = AsyncOpenAI(base_url=url, api_key=os.environ.get("MODEL_KEY", "none"), max_retries=0)
    shop = Agent[None](
        name="shop",
        model=OpenAIChatCompletionsModel("any", client),
        instructions="You look after the customers of a shop.",
        tools=[find_customer, delete_customer],
    )
    return DurableAgent(
        shop,
        stream="tokens",
        approvals="allow",
        approval_timeout=timedelta(hours=1),
        model_step={"retries": retries_of_models(5, first=0.05), "timeout": 120},
    )


@app.task(queue="agents")
async def ask(job: Job, question: str) -> str:
    print(f"the program runs, under token {job.fencing_token}")
    result = await make_agent(os.environ["MODEL_URL"]).run(question)
    usage = result.context_wrapper.usage
    print(f"  requests: {usage.requests}, tokens: {usage.total_tokens}")
    return result.final_output_as(str).strip()


async def main() -> None:
    async with stand_in() as os.environ["MODEL_URL"], app, app.worker():
        handle = await ask.aenqueue("Which number has Ada? And delete Grace.")
        reader = asyncio.create_task(show_tokens(handle))
        await allow(handle)
        answer = await handle.aresult(timeout=30)
        await reader
    print("answer:", answer)
    print("customers left:", customers)


@asynccontextmanager
async def stand_in() -> AsyncGenerator[str, None]:
    """The address of the stand-in for a model, which runs meanwhile."""
    program = Path(__file__).with_name("chat_stand_in.py")
    server = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None  # noqa: S101 - asked for above
        yield (await server.stdout.readline()).decode().strip()
    finally:
        server.terminate()
        await server.wait()


async def allow(handle: JobHandle[str]) -> None:
    """What a person does on the dashboard's page of what waits."""
    while not (await handle.ajob()).suspended:  # noqa: ASYNC110 - it waits in the database
        await asyncio.sleep(0.02)
    print("  a person allows it")
    await handle.asignal("allow:delete_customer", payload=True)


async def show_tokens(handle: JobHandle[str]) -> None:
    text = "".join([str(token) async for token in handle.stream("tokens")])
    print("  tokens:", text.strip())


if __name__ == "__main__":
    asyncio.run(main())
