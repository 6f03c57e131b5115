"""Agents of the OpenAI Agents SDK in flows, with a model behind a real server: everything is asked and done once."""

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

import pytest
from agents import ModelResponse, function_tool, handoff, set_default_openai_api
from openai.types.responses import ResponseFunctionToolCall

from faultline import Faultline, Job
from faultline.integrations.openai_agents import DurableAgent
from tests.flow.running import calls, ended, signals, waits
from tests.integrations.agent_runs import steps, two_tools
from tests.integrations.chat import Message, asks, chat, returned, says
from tests.integrations.sdk_runs import agent_of, asking, runs_again
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents import FunctionTool

    from faultline import JobHandle

ROOT = Path(__file__).parents[2]


async def find(name: str) -> str:
    return name


def test_each_request_and_each_tool_call_is_a_step_that_later_runs_remember(app: Faultline) -> None:
    found: list[str] = []

    async def find(name: str) -> str:
        found.append(name)
        return f"{name} is here"

    with chat(two_tools) as model:
        handle = runs_again(app, DurableAgent(agent_of(model, find))).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada is here and Bob is here"
    assert len(model.asked) == 2
    assert sorted(found) == ["Ada", "Bob"]
    assert steps(app, handle) == ["shop: model request", "shop: tool find", "shop: tool find", "shop: model request"]


def test_tools_beside_each_other_keep_their_numbers_whichever_is_quicker(app: Faultline) -> None:
    done: list[str] = []

    async def find(name: str) -> str:
        if name == "Ada":
            await _until(lambda: done == ["Bob"])
        done.append(name)
        return name

    with chat(two_tools) as model:
        handle = runs_again(app, DurableAgent(agent_of(model, find))).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada and Bob"
    assert done == ["Bob", "Ada"]
    by_number = [row["result"]["value"] for row in calls(app, handle).values() if row["name"] == "shop: tool find"]
    assert by_number == ["Ada", "Bob"]


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def test_usage_and_items_are_the_same_in_every_run_and_of_the_sdks_own_types(app: Faultline) -> None:
    seen: list[Any] = []
    with chat(two_tools) as model:
        agent = DurableAgent(agent_of(model, find))

        @app.task
        async def ask(job: Job) -> int:
            result = await agent.run("Who?")
            seen.append((result.to_input_list(), result.raw_responses))
            await job.receive("go")
            return result.context_wrapper.usage.total_tokens

        assert ended(app, ask.enqueue(), waits(app), signals(app, "go")) == 30
    assert len(seen) == 2
    assert seen[0] == seen[1]
    response = seen[1][1][0]
    assert isinstance(response, ModelResponse)
    assert all(isinstance(one, ResponseFunctionToolCall) for one in response.output)


def test_a_later_run_goes_on_from_the_items_of_an_earlier_one(app: Faultline) -> None:
    with chat(lambda messages: says(f"{len(messages)} messages")) as model:
        agent = DurableAgent(agent_of(model))

        @app.task
        async def talk(job: Job) -> list[Any]:
            first = await agent.run("Hello")
            await job.receive("go")
            second = await agent.run([*first.to_input_list(), {"role": "user", "content": "And now?"}])
            return [first.final_output, second.final_output]

        handle = talk.enqueue()

        assert ended(app, handle, waits(app), signals(app, "go")) == ["1 messages", "3 messages"]
    assert len(model.asked) == 2


# People


def deletes(messages: list[Message]) -> Message:
    done = returned(messages)
    return asks(("delete", {"number": 2}), ("delete", {"number": 3})) if not done else says(" and ".join(done))


def deleting(deleted: list[int]) -> FunctionTool:
    @function_tool(needs_approval=True)
    async def delete(number: int) -> str:
        deleted.append(number)
        return f"deleted {number}"

    return delete


def answers(app: Faultline, deleted: list[int]) -> Callable[[JobHandle[Any]], Any]:
    """Refuse the first call, with a reason, and approve the second."""

    async def answer(handle: JobHandle[Any]) -> None:
        open_ = [row for row in calls(app, handle).values() if row["kind"] == "signal"]
        assert [row["name"] for row in open_] == ["approve:delete", "approve:delete"]
        assert deleted == []
        await handle.asignal("approve:delete", payload=True, for_call=open_[1]["number"])
        refusal = {"approved": False, "message": "Not that one."}
        await handle.asignal("approve:delete", payload=refusal, for_call=open_[0]["number"])

    return answer


def test_a_tool_that_needs_approval_waits_for_a_signal_and_both_are_asked_for_at_once(app: Faultline) -> None:
    deleted: list[int] = []
    with chat(deletes) as model:
        handle = asking(app, DurableAgent(agent_of(model, deleting(deleted)))).enqueue()

        assert ended(app, handle, waits(app), answers(app, deleted)) == "Not that one. and deleted 3"
    assert deleted == [3]
    assert len(model.asked) == 2


@pytest.mark.parametrize("how", [lambda agent: agent, handoff])
def test_an_agent_that_is_handed_off_to_is_a_part_of_the_run_and_asks_too(app: Faultline, how: Callable[[Any], Any]) -> None:
    deleted: list[int] = []
    wants = lambda messages: says("done") if returned(messages) else asks(("transfer_to_second", {}), word="first")  # noqa: E731
    with chat(wants) as first, chat(lambda messages: deletes(messages[3:])) as second:
        other = agent_of(second, deleting(deleted), name="second")
        handle = asking(app, DurableAgent(agent_of(first, handoffs=[how(other)]))).enqueue()

        assert ended(app, handle, waits(app), answers(app, deleted)) == "Not that one. and deleted 3"
    assert deleted == [3]
    assert (len(first.asked), len(second.asked)) == (1, 2)
    assert steps(app, handle).count("shop: model request") == 3


def test_a_person_may_change_the_arguments_and_a_tool_may_ask_by_itself(app: Faultline) -> None:
    paid: list[int] = []

    async def is_much(_: object, arguments: dict[str, Any], __: str) -> bool:
        return int(arguments["cents"]) > 500

    @function_tool(needs_approval=is_much)
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "ok"

    def script(messages: list[Message]) -> Message:
        done = returned(messages)
        return says("paid") if len(done) == 2 else asks(("pay", {"cents": (100, 900)[len(done)]}), word=f"c{len(done)}")

    with chat(script) as model:
        handle = asking(app, DurableAgent(agent_of(model, pay))).enqueue()
        approval = {"approved": True, "arguments": {"cents": 200}}

        assert ended(app, handle, waits(app), signals(app, "approve:pay", approval)) == "paid"
    assert paid == [100, 200]


def test_arguments_that_the_sdk_cannot_judge_are_asked_about_whatever_the_policy_says(app: Faultline) -> None:
    async def never(*_: object) -> bool:
        return False

    @function_tool(needs_approval=never)
    async def pay(cents: int = 5) -> str:
        return f"paid {cents}"

    with chat(lambda messages: says(returned(messages)[0]) if returned(messages) else asks(("pay", {}))) as model:
        handle = asking(app, DurableAgent(agent_of(model, pay))).enqueue()

        assert ended(app, handle, waits(app), signals(app, "approve:pay", payload=True)) == "paid 5"


def test_a_call_that_nobody_approves_in_time_is_denied(app: Faultline) -> None:
    deleted: list[int] = []
    with chat(deletes) as model:
        agent = agent_of(model, deleting(deleted))
        durable = DurableAgent(agent, approvals="allow", approval_timeout=timedelta(seconds=0.2))
        handle = asking(app, durable).enqueue()

        assert str(ended(app, handle)).count("Nobody approved this tool call in time.") == 2
    assert deleted == []


def test_an_answer_from_before_the_question_allows_nothing(app: Faultline) -> None:
    deleted: list[int] = []
    with chat(deletes) as model:
        handle = asking(app, DurableAgent(agent_of(model, deleting(deleted)), approval_timeout=0.2)).enqueue()
        handle.signal("approve:delete", payload=True)

        assert "Nobody approved" in ended(app, handle)
    assert deleted == []


# Tokens, and agents in agents


def test_text_is_written_to_the_stream_once_as_it_comes(app: Faultline) -> None:
    with chat(two_tools) as model:
        handle = runs_again(app, DurableAgent(agent_of(model, find), stream="tokens")).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada and Bob "
    tokens = list(handle.stream("tokens"))
    assert len(tokens) > 1
    assert "".join(map(str, tokens)) == "Ada and Bob "
    assert len(model.asked) == 2


def test_usage_of_requests_that_stream_is_kept_too(app: Faultline) -> None:
    with chat(two_tools) as model:
        agent = DurableAgent(agent_of(model, find), stream="tokens")

        @app.task
        async def ask(job: Job) -> list[int]:
            usage = (await agent.run("Who?")).context_wrapper.usage
            await job.receive("go")
            return [usage.requests, usage.total_tokens]

        assert ended(app, ask.enqueue(), waits(app), signals(app, "go")) == [2, 30]


def test_an_agent_that_is_a_tool_is_a_part_of_its_step(app: Faultline) -> None:
    wants = [asks(("inner", {"input": "Ada"}), ("inner", {"input": "Bob"}))]
    script = lambda messages: says(" and ".join(returned(messages))) if returned(messages) else wants[0]  # noqa: E731
    with chat(lambda messages: says(f"{messages[-1]['content']} inner")) as inner_model, chat(script) as model:
        inner = agent_of(inner_model, name="inner").as_tool("inner", "Ask it.")
        handle = runs_again(app, DurableAgent(agent_of(model, inner))).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada inner and Bob inner"
    assert len(inner_model.asked) == 2
    assert steps(app, handle).count("shop: tool inner") == 2
    assert steps(app, handle).count("shop: model request") == 2


def test_two_agents_run_in_branches_beside_each_other(app: Faultline) -> None:
    with chat(two_tools) as model:
        agent = DurableAgent(agent_of(model, find))

        @app.task
        async def both(job: Job) -> list[str]:
            async def one(prompt: str) -> str:
                return str((await agent.run(prompt)).final_output)

            found = await job.gather(job.branch(one, "a"), job.branch(one, "b"))
            await job.receive("go")
            return list(found)

        handle = both.enqueue()
        assert ended(app, handle, waits(app), signals(app, "go")) == ["Ada and Bob", "Ada and Bob"]
    assert len(model.asked) == 4


# Crashes


@pytest.mark.parametrize(("point", "asked"), [("tool", 1), ("request 2", 1), ("end", 2)])
def test_a_worker_that_is_killed_costs_no_request_and_no_tool_call(dsn: str, tmp_path: Path, point: str, asked: int) -> None:
    with chat(two_tools) as model, Faultline(dsn) as app:
        handle: JobHandle[Any] = app.task(name="ask", lease=3)(lambda: None).enqueue()
        environ = {**os.environ, "FAULTLINE_DSN": dsn, "MODEL_URL": model.url, "NOTES": str(tmp_path), "KILLED_AT": point}
        command = [sys.executable, "-m", "faultline", "worker", "tests.integrations.sdk_agents:app"]

        first = subprocess.run(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False)
        before = len(model.asked)
        with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL) as second:
            try:
                result = handle.result(timeout=PATIENCE)
            finally:
                second.kill()

    assert first.returncode == -signal.SIGKILL
    assert before == asked
    assert result == "Ada and Bob"
    assert len(model.asked) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Ada", "Bob", "killed"]


# The page


def test_the_program_of_the_page_on_agents_does_what_the_page_says(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/agents.md").read_text().partition("## An agent of the OpenAI Agents SDK")[2]
    program = page.partition("```python\n")[2].partition("```")[0]

    def script(messages: list[Message]) -> Message:
        done = returned(messages)
        wants = [asks(("find_customer", {"name": "Grace"})), asks(("delete_customer", {"number": 2}), word="second")]
        return says(", ".join(done)) if len(done) == 2 else wants[len(done)]

    with chat(script) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("FAULTLINE_DSN", dsn)
        set_default_openai_api("chat_completions")
        module = types.ModuleType("page")
        monkeypatch.setitem(sys.modules, "page", module)
        try:
            exec(compile(program, "page", "exec", dont_inherit=True), vars(module))  # noqa: S102 - it is our own page
            answer, named, text = _answered(module)
        finally:
            set_default_openai_api("responses")

    assert answer.strip() == text.strip() == "Grace is customer 2, deleted customer 2"
    assert {"shop: model request", "shop: tool find_customer"} <= set(named)
    assert len(model.asked) == 3


def _answered(module: Any) -> tuple[str, list[str], str]:
    with module.app as app:
        handle = module.ask.enqueue("Delete Grace.")

        async def story() -> str:
            await waits(app)(handle)
            await handle.asignal("approve:delete_customer", payload=True)
            return str(await handle.aresult(PATIENCE))

        answer = work(app, story, {"agents": 1})
        return answer, steps(app, handle), "".join(map(str, handle.stream("tokens")))
