"""Agents of Pydantic AI in flows: errors, other tries, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.toolsets import FunctionToolset

from faultline import BlockingJob, ConfigError, Faultline, Job, JobFailed, Retries, StepFailed
from faultline.integrations.pydantic_ai import DurableAgent, retries_of_models
from tests.flow.running import ended, signals, waits
from tests.integrations.agent_runs import agent_of, asking, runs_again, steps
from tests.integrations.chat import Message, asks, chat, returned, says
from tests.worker.working import results, work

# Errors


def test_a_tool_that_wants_another_try_of_the_model_gets_it(app: Faultline) -> None:
    tried: list[str] = []

    def script(messages: list[Message]) -> Message:
        done = returned(messages)
        return (
            says(done[-1]) if len(done) == 2 else asks(("find", {"name": ("Bob", "Ada")[len(done)]}), word=f"c{len(done)}")
        )

    with chat(script) as model:
        plain = agent_of(model)

        @plain.tool_plain
        async def find(name: str) -> str:
            tried.append(name)
            if name == "Bob":
                raise ModelRetry("there is no Bob")
            return name

        handle = runs_again(app, DurableAgent(plain)).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "Ada"
    assert tried == ["Bob", "Ada"]
    assert any("there is no Bob" in text for text in returned(model.asked[-1]))


def test_an_error_that_passes_is_tried_again_by_the_rules_of_the_step(app: Faultline) -> None:
    with chat(lambda _: says("here"), turned_away=2) as model:
        retries = retries_of_models(2, first=0.01)
        handle = asking(app, DurableAgent(agent_of(model), model_step={"retries": retries})).enqueue()
        assert ended(app, handle) == "here"

    with chat(lambda _: says("here"), turned_away=2) as model:
        del app.tasks["ask"]
        never = asking(app, DurableAgent(agent_of(model), name="other", model_step={"retries": 0}))
        with pytest.raises(JobFailed, match=r"step other: model request failed.*429"):
            raise ended(app, never.options(max_attempts=1).enqueue())


def test_a_long_pause_before_another_try_holds_no_lease(app: Faultline) -> None:
    with chat(lambda _: says("here"), turned_away=1) as model:
        retries = retries_of_models(1, first=60, most=60)
        handle = asking(app, DurableAgent(agent_of(model), model_step={"retries": retries})).enqueue()

        work(app, lambda: waits(app)(handle))
    assert model.asked == []


def test_a_tool_that_fails_is_tried_again_by_its_own_rules_and_is_a_failed_step_to_the_program(app: Faultline) -> None:
    tried: list[str] = []
    with chat(lambda messages: asks(("find", {}), ("lose", {})) if not returned(messages) else says("done")) as model:
        plain = agent_of(model)

        @plain.tool_plain(metadata={"faultline": {"retries": Retries(2, first=0)}})
        async def find() -> str:
            tried.append("find")
            if tried.count("find") < 3:
                raise OSError("gone")
            return "found"

        @plain.tool_plain
        async def lose() -> str:
            tried.append("lose")
            raise LookupError("lost")

        agent = DurableAgent(plain)

        @app.task
        async def ask(job: Job) -> str:
            try:
                await agent.run("Go")
            except StepFailed as error:
                await job.receive("go")
                return f"{error.kind} in {error.step}"
            return "nothing"

        handle = ask.enqueue()
        assert ended(app, handle, waits(app), signals(app, "go")) == "LookupError in shop: tool lose"
    assert sorted(tried) == ["find", "find", "find", "lose"]
    assert len(model.asked) == 1


def test_a_tool_may_be_left_out_of_what_is_remembered(app: Faultline) -> None:
    called: list[int] = []
    with chat(lambda messages: asks(("look", {})) if not returned(messages) else says("done")) as model:
        plain = agent_of(model)

        @plain.tool_plain(metadata={"faultline": False})
        async def look() -> int:
            called.append(1)
            return 1

        handle = runs_again(app, DurableAgent(plain)).enqueue("Go")

        assert ended(app, handle, waits(app), signals(app, "go")) == "done"
    assert len(called) == 2
    assert "shop: tool look" not in steps(app, handle)


# Refusals


def test_what_has_no_name_is_refused_when_the_agent_is_wrapped() -> None:
    with pytest.raises(ConfigError, match="needs an agent with a name"):
        DurableAgent(Agent("test"))
    with pytest.raises(ConfigError, match=r"agent shop: .*unique `id` in order to be used with Faultline"):
        DurableAgent(Agent("test", name="shop", toolsets=[FunctionToolset()]))
    with pytest.raises(ConfigError, match="Two toolsets have the same `id` 'one'"):
        DurableAgent(Agent("test", name="shop", toolsets=[FunctionToolset(id="one"), FunctionToolset(id="one")]))
    DurableAgent(Agent("test"), name="shop")


def test_outside_of_a_job_it_is_the_plain_agent() -> None:
    with chat(lambda _: says("plain")) as model:
        agent = DurableAgent(agent_of(model), stream="tokens")

        async def both() -> list[str]:
            async with agent.iter("Go") as run:
                async for _ in run:
                    pass
            assert run.result is not None
            return [(await agent.run("Go")).output, run.result.output]

        assert asyncio.run(both()) == ["plain", "plain"]


def test_in_a_flow_it_refuses_what_it_could_not_remember(app: Faultline) -> None:
    with chat(lambda _: says("here")) as model:
        agent = DurableAgent(agent_of(model))

        @app.task(max_attempts=1)
        async def by_nodes(job: Job) -> None:
            async with agent.iter("Go"):
                pass

        @app.task(max_attempts=1)
        async def limited(job: Job) -> None:
            await agent.run("Go", timeout=1)

        @app.task(max_attempts=1)
        async def without_job() -> None:
            await agent.run("Go")

        @app.task(max_attempts=1)
        def blocking(job: BlockingJob) -> None:
            asyncio.run(agent.run("Go"))

        @app.task(max_attempts=1)
        async def more_tools(job: Job) -> None:
            await agent.run("Go", toolsets=[FunctionToolset(id="more", tools=[len])])

        tasks: list[Any] = [by_nodes, limited, without_job, blocking, more_tools]
        said = [str(one) for one in results(app, [task.enqueue() for task in tasks])]
    for text, why in zip(
        said, ["await agent.run", "not remembered", "takes `job: Job`", "takes `job: Job`", "Toolset"], strict=True
    ):
        assert why in text
    assert model.asked == []
