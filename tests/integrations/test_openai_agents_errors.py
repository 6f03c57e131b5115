"""Agents of the OpenAI Agents SDK in flows: errors, other tries, traces, what is kept, and what is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    ComputerTool,
    CustomTool,
    GuardrailFunctionOutput,
    HostedMCPTool,
    InputGuardrailTripwireTriggered,
    LocalShellTool,
    ModelResponse,
    ModelSettings,
    RunConfig,
    SQLiteSession,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    TracingProcessor,
    Usage,
    WebSearchTool,
    function_tool,
    handoff,
    input_guardrail,
    set_trace_processors,
)
from agents.mcp import MCPServerStdio
from openai.types.responses import ResponseFunctionWebSearch
from openai.types.responses.response_function_web_search import ActionSearch

from faultline import BlockingJob, ConfigError, Faultline, Job, JobFailed, Retries, StepFailed
from faultline.integrations.openai_agents import DurableAgent, retries_of_models
from faultline.integrations.openai_agents.recorded import output_in, response_in, stored_output, stored_response
from tests.flow.running import ended, signals, waits
from tests.integrations.agent_runs import steps, two_tools
from tests.integrations.chat import Message, asks, chat, returned, says
from tests.integrations.sdk_runs import agent_of, asking, model_of, runs_again
from tests.worker.working import results, work

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors


def calls_both(messages: list[Message]) -> Message:
    return says(" and ".join(returned(messages))) if returned(messages) else asks(("find", {}), ("lose", {}))


def test_a_tool_that_raises_is_shown_to_the_model_as_the_sdk_does(app: Faultline) -> None:
    tried: list[str] = []

    async def find() -> str:
        return "found"

    def lose() -> str:
        tried.append("lose")
        raise LookupError("lost")

    with chat(calls_both) as model:
        handle = runs_again(app, DurableAgent(agent_of(model, find, lose))).enqueue("Go")

        said = ended(app, handle, waits(app), signals(app, "go"))
    assert "found and An error occurred while running the tool" in said
    assert tried == ["lose"]


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


def test_a_tool_that_fails_for_good_is_a_failed_step_and_of_two_it_is_the_same_in_every_run(app: Faultline) -> None:
    tried: list[str] = []
    raised: list[str] = []

    @function_tool(failure_error_function=None)
    async def find() -> str:
        tried.append("find")
        while "lose" not in tried:
            await asyncio.sleep(0.005)
        raise OSError("gone")

    @function_tool(failure_error_function=None)
    async def lose() -> str:
        tried.append("lose")
        raise LookupError("lost")

    with chat(calls_both) as model:
        agent = DurableAgent(agent_of(model, find, lose), tool_step={"retries": Retries(1, first=0)})

        @app.task
        async def ask(job: Job) -> str:
            try:
                await agent.run("Go")
            except StepFailed as error:
                raised.append(f"{error.kind} in {error.step}")
                await job.receive("go")
            return raised[-1]

        handle = ask.enqueue()
        assert ended(app, handle, waits(app), signals(app, "go")) == "OSError in shop: tool find"
    assert raised == ["OSError in shop: tool find"] * 2
    assert sorted(tried) == ["find", "find", "lose", "lose"]
    assert len(model.asked) == 1


def test_the_time_that_a_tool_may_take_is_counted_in_its_step(app: Faultline) -> None:
    begun: list[str] = []

    @function_tool(timeout=0.2, failure_error_function=None)
    async def find(name: str) -> str:
        begun.append(name)
        if name == "Ada":
            await asyncio.sleep(60)
        if begun.count("Bob") == 1:
            raise OSError("gone")
        return name

    with chat(two_tools) as model:
        # The pause before the second try is longer than a try may take.
        agent = DurableAgent(agent_of(model, find), tool_step={"retries": Retries(1, first=0.5)})
        handle = runs_again(app, agent).enqueue("Who?")

        said = str(ended(app, handle, waits(app), signals(app, "go")))
    assert "timed out" in said
    assert said.endswith(" and Bob")
    assert sorted(begun) == ["Ada", "Bob", "Bob"]


def test_a_guardrail_is_asked_before_the_first_request_and_stops_it(app: Faultline) -> None:
    @input_guardrail
    async def polite(_: object, __: object, said: object) -> GuardrailFunctionOutput:
        for _again in range(30 if said == "Rude!" else 0):  # time for a request, if one were made beside it
            if model.asked:
                break
            await asyncio.sleep(0.01)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=said == "Rude!")

    with chat(lambda _: says("here")) as model:
        agent = DurableAgent(agent_of(model, input_guardrails=[polite]))

        @app.task
        async def ask(job: Job) -> str:
            try:
                await agent.run("Rude!")
            except InputGuardrailTripwireTriggered:
                return str((await agent.run("Please.")).final_output)
            return "nothing"

        assert ended(app, ask.enqueue()) == "here"
    assert len(model.asked) == 1


# Traces


class Recorder(TracingProcessor):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.traces: list[str] = []

    def on_trace_start(self, trace: Any) -> None:
        self.traces.append(trace.name)

    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def on_span_end(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


@pytest.fixture
def traced() -> Iterator[list[str]]:
    recorder = Recorder()
    set_trace_processors([recorder])
    yield recorder.traces
    set_trace_processors([])


def test_nothing_is_traced_unless_it_is_asked_for(app: Faultline, traced: list[str]) -> None:
    with chat(lambda _: says("inner")) as inner, chat(two_tools) as model:
        plain = agent_of(inner, name="inner")

        async def find(name: str) -> str:
            return str((await DurableAgent(plain).run(name)).final_output)

        assert ended(app, asking(app, DurableAgent(agent_of(model, find))).enqueue()) == "inner and inner"
        assert traced == []

        del app.tasks["ask"]
        ended(app, asking(app, DurableAgent(agent_of(model, find), tracing=True)).enqueue())
        assert traced == ["Agent workflow"]


# What is kept


class Thing:
    """What JSON cannot hold."""

    def __str__(self) -> str:
        return "a thing"


def test_outputs_of_tools_come_back_as_what_they_were() -> None:
    image = ToolOutputImage(image_url="data:,")
    structured = [image, [ToolOutputText(text="t"), image], ToolOutputFileContent(file_id="1")]
    outputs = ["text", 5, None, {"a": [1.5, True]}, [], *structured]

    assert [output_in(stored_output(one)) for one in outputs] == outputs
    assert [output_in(stored_output(one)) for one in (Thing(), (1, 2), {1: 2})] == ["a thing", "(1, 2)", "{1: 2}"]


def test_what_the_servers_of_the_models_maker_did_is_kept_with_the_response() -> None:
    search = ResponseFunctionWebSearch(
        id="ws_1", action=ActionSearch(query="q", type="search"), status="completed", type="web_search_call"
    )
    response = ModelResponse(output=[search], usage=Usage(requests=1, total_tokens=5), response_id="r")

    kept = response_in(stored_response(response))

    assert kept == response
    assert kept.to_input_items() == response.to_input_items()


# Refusals


@pytest.mark.parametrize(
    "tool",
    [
        ComputerTool(computer=lambda **_: None),  # type: ignore[arg-type]  # never made
        LocalShellTool(executor=lambda _: ""),
        CustomTool(name="raw", description="", on_invoke_tool=lambda *_: ""),
        HostedMCPTool(tool_config={"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1:1"}),
    ],
)
def test_tools_that_cannot_be_remembered_are_refused_when_the_agent_is_wrapped(tool: Any) -> None:
    with pytest.raises(ConfigError, match=rf"agent shop: what {type(tool).__name__} .* is not remembered in a flow"):
        DurableAgent(Agent(name="shop", tools=[tool]))
    shop = Agent[Any](name="shop", tools=[tool])
    for other in (shop, handoff(shop)):
        with pytest.raises(ConfigError, match="agent shop"):
            DurableAgent(Agent(name="first", handoffs=[other]))


def test_mcp_servers_are_refused_and_what_the_models_maker_runs_is_not() -> None:
    with pytest.raises(ConfigError, match="agent shop: what its MCP servers do is not remembered"):
        DurableAgent(Agent(name="shop", mcp_servers=[MCPServerStdio(params={"command": "true"})]))
    DurableAgent(Agent(name="shop", tools=[WebSearchTool()]))


def test_an_agent_that_is_a_tool_cannot_wait_for_an_approval(app: Faultline) -> None:
    @function_tool(needs_approval=True)
    async def delete() -> str:
        return "deleted"

    with chat(lambda _: asks(("delete", {}))) as inner, chat(lambda _: asks(("inner", {"input": "x"}))) as model:
        tool = agent_of(inner, delete, name="inner").as_tool("inner", "Ask it.")
        handle = asking(app, DurableAgent(agent_of(model, tool))).options(max_attempts=1).enqueue()

        assert "with a tool that needs approval" in str(ended(app, handle))


def test_outside_of_a_job_it_is_the_plain_agent(traced: list[str]) -> None:
    with chat(lambda _: says("plain")) as model:
        agent = DurableAgent(agent_of(model), stream="tokens")

        assert asyncio.run(agent.run("Go")).final_output == "plain"
    assert traced == ["Agent workflow"]


def test_in_a_flow_it_refuses_what_it_could_not_remember(app: Faultline) -> None:
    with chat(lambda _: says("here")) as model:
        agent = DurableAgent(agent_of(model))

        @app.task(max_attempts=1)
        async def kept(job: Job) -> None:
            await agent.run("Go", session=SQLiteSession("one"))

        @app.task(max_attempts=1)
        async def limited(job: Job) -> None:
            await agent.run("Go", run_config=RunConfig(model_settings=ModelSettings(timeout=1)))

        @app.task(max_attempts=1)
        async def without_job() -> None:
            await agent.run("Go")

        @app.task(max_attempts=1)
        def blocking(job: BlockingJob) -> None:
            asyncio.run(agent.run("Go"))

        tasks: list[Any] = [kept, limited, without_job, blocking]
        said = [str(one) for one in results(app, [task.enqueue() for task in tasks])]
    for text, why in zip(
        said, ["a session would be written", "is not remembered", "takes `job: Job`", "takes `job: Job`"], strict=True
    ):
        assert why in text
    assert model.asked == []


def test_a_model_that_the_run_is_given_is_a_step_too_and_in_an_agent_that_is_a_tool_a_part_of_one(
    app: Faultline,
) -> None:
    def script(messages: list[Message]) -> Message:
        if messages[0]["content"] == "x":
            return says("inner")
        return says(returned(messages)[0]) if returned(messages) else asks(("inner", {"input": "x"}))

    with chat(lambda _: says("theirs")) as theirs, chat(script) as ours:
        inner = agent_of(theirs, name="inner").as_tool("inner", "Ask it.")
        agent = DurableAgent(agent_of(theirs, inner))
        handle = runs_again(app, agent, run_config=RunConfig(model=model_of(ours))).enqueue("Who?")

        assert ended(app, handle, waits(app), signals(app, "go")) == "inner"
    assert (len(theirs.asked), len(ours.asked)) == (0, 3)
    assert steps(app, handle) == ["shop: model request", "shop: tool inner", "shop: model request"]


def test_a_long_pause_before_another_try_holds_no_lease(app: Faultline) -> None:
    with chat(lambda _: says("here"), turned_away=1) as model:
        retries = retries_of_models(1, first=60, most=60)
        handle = asking(app, DurableAgent(agent_of(model), model_step={"retries": retries})).enqueue()

        work(app, lambda: waits(app)(handle))
    assert model.asked == []
