"""Agents of Pydantic AI in flows, with a model behind a real server: everything is asked and done once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import types
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai import ApprovalRequired, RunContext
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from faultline import Faultline, Job
from faultline.integrations.pydantic_ai import DurableAgent
from tests.flow.running import calls, ended, signals, waits
from tests.integrations.agent_runs import agent_of, asking, runs_again, steps, two_tools
from tests.integrations.chat import Chat, Message, asks, chat, returned, says
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable

    import pytest

    from faultline import JobHandle

ROOT = Path(__file__).parents[2]


def test_each_request_and_each_tool_call_is_a_step_that_later_runs_remember(app: Faultline) -> None:
    found: list[str] = []
    with chat(two_tools) as model:
        plain = agent_of(model)

        @plain.tool_plain
        async def find(name: str) -> str:
            found.append(name)
            return f"{name} is here"

        handle = runs_again(app, DurableAgent(plain)).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada is here and Bob is here"
    assert len(model.asked) == 2
    assert sorted(found) == ["Ada", "Bob"]
    assert steps(app, handle) == [
        "shop: begin", "shop: model request", "shop: tool find", "shop: tool find", "shop: model request",
    ]  # fmt: skip


def test_tools_beside_each_other_keep_their_numbers_whichever_is_quicker(app: Faultline) -> None:
    done: list[str] = []
    with chat(two_tools) as model:
        plain = agent_of(model)

        @plain.tool_plain
        async def find(name: str) -> str:
            if name == "Ada":
                await _until(lambda: done == ["Bob"])
            done.append(name)
            return name

        handle = runs_again(app, DurableAgent(plain)).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada and Bob"
    assert done == ["Bob", "Ada"]
    by_number = [row["result"]["result"] for row in calls(app, handle).values() if row["name"] == "shop: tool find"]
    assert by_number == ["Ada", "Bob"]


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def test_usage_and_messages_are_the_same_in_every_run(app: Faultline) -> None:
    seen: list[Any] = []
    with chat(two_tools) as model:
        plain = agent_of(model)

        @plain.tool_plain
        async def find(name: str) -> str:
            return name

        agent = DurableAgent(plain)

        @app.task
        async def ask(job: Job) -> int:
            result = await agent.run("Who?")
            seen.append((result.run_id, result.all_messages_json()))
            await job.receive("go")
            return result.usage.total_tokens

        assert ended(app, ask.enqueue(), waits(app), signals(app, "go")) == 30
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_a_later_run_goes_on_from_the_messages_of_an_earlier_one(app: Faultline) -> None:
    with chat(lambda messages: says(f"{len(messages)} messages")) as model:
        agent = DurableAgent(agent_of(model))

        @app.task
        async def talk(job: Job) -> list[Any]:
            first = await agent.run("Hello")
            kept = ModelMessagesTypeAdapter.validate_python(await job.do(stored, first.all_messages_json().decode()))
            await job.receive("go")
            second = await agent.run("And now?", message_history=kept)
            return [first.output, second.output, second.all_messages()[0].conversation_id == kept[0].conversation_id]

        @app.step
        async def stored(text: str) -> Any:
            return ModelMessagesTypeAdapter.dump_python(ModelMessagesTypeAdapter.validate_json(text), mode="json")

        handle = talk.enqueue()

        assert ended(app, handle, waits(app), signals(app, "go")) == ["1 messages", "3 messages", True]
    assert len(model.asked) == 2


# People


def deletes(messages: list[Message]) -> Message:
    done = returned(messages)
    return asks(("delete", {"number": 2}), ("delete", {"number": 3})) if not done else says(" and ".join(done))


def deleting(model: Chat, deleted: list[int], **words: Any) -> DurableAgent[None, str]:
    plain = agent_of(model)

    @plain.tool_plain(requires_approval=True)
    async def delete(number: int) -> str:
        deleted.append(number)
        return f"deleted {number}"

    return DurableAgent(plain, **words)


def test_a_tool_that_needs_approval_waits_for_a_signal_and_both_are_asked_for_at_once(app: Faultline) -> None:
    deleted: list[int] = []
    with chat(deletes) as model:
        handle = asking(app, deleting(model, deleted)).enqueue()

        async def answer(handle: JobHandle[Any]) -> None:
            open_ = [row for row in calls(app, handle).values() if row["kind"] == "signal"]
            assert [row["name"] for row in open_] == ["approve:delete", "approve:delete"]
            assert deleted == []
            await handle.asignal("approve:delete", payload=True, for_call=open_[1]["number"])
            refusal = {"approved": False, "message": "Not that one."}
            await handle.asignal("approve:delete", payload=refusal, for_call=open_[0]["number"])

        assert ended(app, handle, waits(app), answer) == "Not that one. and deleted 3"
    assert deleted == [3]
    assert len(model.asked) == 2


def test_a_person_may_change_the_arguments_and_a_tool_may_ask_by_itself(app: Faultline) -> None:
    paid: list[int] = []
    with chat(lambda messages: asks(("pay", {"cents": 900})) if not returned(messages) else says("paid")) as model:
        plain = agent_of(model)

        @plain.tool
        async def pay(ctx: RunContext[None], cents: int) -> str:
            if cents > 500 and not ctx.tool_call_approved:
                raise ApprovalRequired
            paid.append(cents)
            return "ok"

        handle = asking(app, DurableAgent(plain)).enqueue()
        approval = {"approved": True, "arguments": {"cents": 100}}

        assert ended(app, handle, waits(app), signals(app, "approve:pay", approval)) == "paid"
    assert paid == [100]


def test_a_call_that_nobody_approves_in_time_is_denied(app: Faultline) -> None:
    deleted: list[int] = []
    with chat(deletes) as model:
        agent = deleting(model, deleted, approvals="allow", approval_timeout=timedelta(seconds=0.2))
        handle = asking(app, agent).enqueue()

        assert str(ended(app, handle)).count("Nobody approved this tool call in time.") == 2
    assert deleted == []


def test_an_answer_from_before_the_question_allows_nothing(app: Faultline) -> None:
    deleted: list[int] = []
    with chat(deletes) as model:
        handle = asking(app, deleting(model, deleted, approval_timeout=0.2)).enqueue()
        handle.signal("approve:delete", payload=True)

        assert "Nobody approved" in ended(app, handle)
    assert deleted == []


# Tokens


def test_text_is_written_to_the_stream_once_as_it_comes(app: Faultline) -> None:
    with chat(two_tools) as model:
        plain = agent_of(model)

        @plain.tool_plain
        async def find(name: str) -> str:
            return name

        events: list[str] = []

        async def handler(_: RunContext[None], stream: AsyncIterable[Any]) -> None:
            events.extend([event.event_kind async for event in stream])

        handle = runs_again(app, DurableAgent(plain, stream="tokens", event_stream_handler=handler)).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada and Bob "
    tokens = list(handle.stream("tokens"))
    assert len(tokens) > 1
    assert "".join(map(str, tokens)) == "Ada and Bob "
    assert events.count("function_tool_result") == 2
    assert len(model.asked) == 2


def test_an_agent_that_a_tool_runs_is_a_part_of_its_step(app: Faultline) -> None:
    with chat(lambda _: says("inner")) as inner_model, chat(two_tools) as model:
        inner = DurableAgent(agent_of(inner_model), name="inner")
        plain = agent_of(model)

        @plain.tool_plain
        async def find(name: str) -> str:
            return f"{name} {(await inner.run(name)).output}"

        handle = runs_again(app, DurableAgent(plain)).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada inner and Bob inner"
    assert len(inner_model.asked) == 2
    assert not [name for name in steps(app, handle) if name.startswith("inner")]


def test_two_agents_run_in_branches_beside_each_other(app: Faultline) -> None:
    with chat(two_tools) as model:
        plain = agent_of(model)

        @plain.tool_plain
        async def find(name: str) -> str:
            return name

        agent = DurableAgent(plain)

        @app.task
        async def both(job: Job) -> list[str]:
            async def one(prompt: str) -> str:
                return str((await agent.run(prompt)).output)

            found = await job.gather(job.branch(one, "a"), job.branch(one, "b"))
            await job.receive("go")
            return list(found)

        handle = both.enqueue()
        assert ended(app, handle, waits(app), signals(app, "go")) == ["Ada and Bob", "Ada and Bob"]
    assert len(model.asked) == 4


def test_a_toolset_that_is_made_for_the_run_is_asked_for_its_tools_in_steps(app: Faultline) -> None:
    found: list[str] = []

    def late(ctx: RunContext[None]) -> FunctionToolset[None]:
        async def find(name: str) -> str:
            found.append(name)
            return name

        return FunctionToolset([find], id="inner")

    with chat(two_tools) as model:
        agent = DurableAgent(agent_of(model, toolsets=[DynamicToolset(late, id="late")]))
        handle = runs_again(app, agent).options(max_attempts=1).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada and Bob"
    assert sorted(found) == ["Ada", "Bob"]
    named = steps(app, handle)
    assert named.count("shop: tools of late") == 2
    assert named.count("shop: tool find") == 2


def test_a_worker_that_is_killed_between_the_request_and_the_tool_costs_neither(dsn: str, tmp_path: Path) -> None:
    with chat(two_tools) as model, Faultline(dsn) as app:
        handle: JobHandle[Any] = app.task(name="ask", lease=3)(lambda: None).enqueue()
        environ = {**os.environ, "FAULTLINE_DSN": dsn, "MODEL_URL": model.url, "NOTES": str(tmp_path)}
        command = [sys.executable, "-m", "faultline", "worker", "tests.integrations.agents:app"]

        first = subprocess.run(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False)
        asked = len(model.asked)
        with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL) as second:
            try:
                result = handle.result(timeout=PATIENCE)
            finally:
                second.kill()

    assert first.returncode == -signal.SIGKILL
    assert asked == 1
    assert result == "Ada and Bob"
    assert len(model.asked) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Ada", "Bob", "killed"]


def test_the_program_of_the_page_on_agents_does_what_the_page_says(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/agents.md").read_text().partition("## An agent of Pydantic AI")[2]
    program = page.partition("```python\n")[2].partition("```")[0]

    def script(messages: list[Message]) -> Message:
        done = returned(messages)
        wants = [asks(("find_customer", {"name": "Grace"})), asks(("delete_customer", {"number": 2}), word="second")]
        return says(", ".join(done)) if len(done) == 2 else wants[len(done)]

    with chat(script) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("FAULTLINE_DSN", dsn)
        module = types.ModuleType("page")
        monkeypatch.setitem(sys.modules, "page", module)
        exec(compile(program, "page", "exec", dont_inherit=True), vars(module))  # noqa: S102 - it is our own page
        with module.app as app:
            handle = module.ask.enqueue("Delete Grace.")

            async def story() -> str:
                await waits(app)(handle)
                await handle.asignal("approve:delete_customer", payload=True)
                return str(await handle.aresult(PATIENCE))

            answer = work(app, story, {"agents": 1})
            named = steps(app, handle)
            text = "".join(map(str, handle.stream("tokens")))

    assert answer.strip() == text.strip() == "Grace is customer 2, deleted customer 2"
    assert {"shop: model request", "shop: tool find_customer"} <= set(named)
    assert len(model.asked) == 3
