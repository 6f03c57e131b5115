"""An agent with tools: it asks a model, runs the tools that the model asks for, and shows tokens as they come.

Watch: every request to the model and every tool is a call that is remembered, so nothing is asked or done twice when a
worker dies. The tool that deletes something first waits for a person, without a slot, for an hour at most. Once the
conversation is long, the agent starts over with `ContinueAsNew`: the same job, with what it needs to know as its arguments
and an empty history. The model is a stand-in (chat_stand_in.py) that speaks the usual protocol; for a real one, set
MODEL_URL and what it needs as headers.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/agent.py
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from faultline import ContinueAsNew, Faultline, Job, JobHandle, Retries, Step

app = Faultline()

ROUNDS_MAX = 2  # small, to show `ContinueAsNew`; in earnest some hundred
Message = dict[str, Any]
customers = {1: "Ada", 2: "Grace"}


class RateLimited(Exception):
    """The model's way to say: not now."""


async def ask(messages: list[Message]) -> AsyncIterator[Message]:
    """The pieces of the model's answer, as they come."""
    url = f"{os.environ['MODEL_URL']}/chat/completions"
    body = {"model": "any", "messages": messages, "stream": True}
    async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json=body) as response:
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            print("  the model turns a request away")
            raise RateLimited("too many requests")
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))["choices"][0]["delta"]


@app.step
async def find_customer(name: str) -> str:
    found = [number for number, known in customers.items() if known == name]
    return f"{name} is customer {found[0]}" if found else f"there is no {name}"


@app.step
async def delete_customer(number: int) -> str:
    print(f"  deleting customer {number}")
    customers.pop(number, None)  # done twice, it does the same
    return f"deleted customer {number}"


TOOLS: dict[str, Step[..., str]] = {"find_customer": find_customer, "delete_customer": delete_customer}
DANGEROUS = {"delete_customer"}


@app.task(queue="agents")
async def agent(job: Job, messages: list[Message]) -> str | ContinueAsNew:
    tokens = job.stream("tokens")

    @app.step(retries=Retries(5, on=RateLimited, first=0.05), timeout=120)
    async def think(messages: list[Message]) -> Message:
        text = ""
        calls: dict[int, Message] = {}
        async for delta in ask(messages):
            for part in delta.get("tool_calls", []):
                add_part(calls, part)
            if delta.get("content"):
                text += delta["content"]
                tokens.write(delta["content"])
        return {"role": "assistant", "content": text, **({"tool_calls": list(calls.values())} if calls else {})}

    for _ in range(ROUNDS_MAX):
        move = await job.do(think, messages)
        messages = [*messages, move]
        if not move.get("tool_calls"):
            return str(move["content"]).strip()
        messages += await job.gather(*(job.branch(run_tool, job, asked) for asked in move["tool_calls"]))
    print("  starting over, with an empty history")
    return ContinueAsNew(messages)  # with a real model: have it summarise them first


def add_part(calls: dict[int, Message], part: Message) -> None:
    """Tools that the model asks for come in parts: first the name, then the arguments bit by bit."""
    one = calls.setdefault(part["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
    if "id" in part:
        one["id"] = part["id"]
    for field in ("name", "arguments"):
        one["function"][field] += part["function"].get(field, "")


async def run_tool(job: Job, asked: Message) -> Message:
    name, arguments = asked["function"]["name"], json.loads(asked["function"]["arguments"])
    if name in DANGEROUS and not await job.receive("allow", bool, timeout=timedelta(hours=1), default=False):
        answer = "refused by a person"
    else:
        answer = await job.do(TOOLS[name], **arguments)
    return {"role": "tool", "tool_call_id": asked["id"], "content": answer}


async def main() -> None:
    async with stand_in() as os.environ["MODEL_URL"], app, app.worker():
        question = {"role": "user", "content": "Which number has Ada? And delete Grace."}
        handle = await agent.aenqueue([question])
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
    await handle.asignal("allow", payload=True)


async def show_tokens(handle: JobHandle[str]) -> None:
    async for token in handle.stream("tokens"):
        print("  token:", str(token).strip())


if __name__ == "__main__":
    asyncio.run(main())
