"""An agent whose requests to the model and tool calls are steps of the flow that runs it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, overload
from uuid import uuid4

from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.durable_exec import conversation_id_from_run_id
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.output import OutputDataT
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import FunctionToolset

from faultline.core.errors import ConfigError
from faultline.flow.step_functions import Step
from faultline.integrations.agents.conductor import Conductor, flow_here
from faultline.integrations.pydantic_ai.durability import Durability, retries_of_models

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pydantic_ai.agent import AgentRun, AgentRunResult, EventStreamHandler
    from pydantic_ai.agent.abstract import RunOutputDataT
    from pydantic_ai.messages import ModelMessage, UserContent
    from pydantic_ai.models import Model
    from pydantic_ai.output import OutputSpec
    from pydantic_ai.toolsets import AbstractToolset

    from faultline.attempt.options import Duration
    from faultline.integrations.agents.conductor import StepOptions


class Began(TypedDict):
    """What every run of the program must see alike."""

    run_id: str
    at: str


class DurableAgent(WrapperAgent[AgentDepsT, OutputDataT]):
    """An agent for flows: `await DurableAgent(agent).run(...)` in a task that takes `job: Job`.

    Each request to the model and each tool call is a step: it runs once, and later runs of the program get its result. A
    tool that must be approved waits for a signal, without a slot. Outside of jobs, and inside of steps, it is the agent that
    it wraps.
    """

    def __init__(
        self,
        wrapped: AbstractAgent[AgentDepsT, OutputDataT],
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        model_step: StepOptions | None = None,
        tool_step: StepOptions | None = None,
        approvals: str | None = "approve",
        approval_timeout: Duration | None = None,
        stream: str | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
    ) -> None:
        """:param wrapped: An agent with a name, whose toolsets have ids. Else `ConfigError`.
        :param name: By which its steps are called. Default: the agent's.
        :param models: Further models, by the name that `run(model=...)` is given.
        :param model_step: How requests to the model are tried again. Default: four times, after errors that pass.
        :param tool_step: How tool calls are tried again. Default: they are not.
        :param approvals: A tool that needs approval waits for the signal `<approvals>:<tool>`, whose payload is true, false
            or an `Approval`. None: the run ends with `DeferredToolRequests`, as without Faultline.
        :param approval_timeout: After this time a tool call counts as denied. Default: 30 days, and then the job fails.
        :param stream: The stream of the job to which text is written as it comes. Default: none.
        :param event_stream_handler: Gets the model's events inside the step of the request, and each event of a tool in a
            step of its own.
        """
        super().__init__(wrapped)
        named = name or wrapped.name
        if not named:
            raise ConfigError("DurableAgent needs an agent with a name: Agent(..., name=...). Its steps are called by it")
        self._durability = Durability(
            name=named,
            models=models,
            model={"retries": retries_of_models(), **(model_step or {})},
            tools=tool_step or {},
            approvals=approvals,
            approval_timeout=approval_timeout,
            stream=stream,
            event_stream_handler=event_stream_handler,
        )
        try:
            self._durability.for_agent(wrapped)
        except UserError as error:  # a toolset without an id, or two with the same
            raise ConfigError(f"agent {named}: {error}") from error

    @overload
    async def run(
        self, user_prompt: str | Sequence[UserContent] | None = None, *, output_type: None = None, **options: Any
    ) -> AgentRunResult[OutputDataT]: ...
    @overload
    async def run(
        self,
        user_prompt: str | Sequence[UserContent] | None = None,
        *,
        output_type: OutputSpec[RunOutputDataT],
        **options: Any,
    ) -> AgentRunResult[RunOutputDataT]: ...
    async def run(
        self, user_prompt: str | Sequence[UserContent] | None = None, *, output_type: Any = None, **options: Any
    ) -> AgentRunResult[Any]:
        """Run the agent. In a flow, each request to the model and each tool call is a step.

        A step that failed for good raises `StepFailed` here, in every run alike.

        :param user_prompt: What the user says.
        :param output_type: What the run returns, if not what the agent returns.
        :param options: As those of the agent that it wraps. `timeout`, `cancellation_token` and `toolsets` are refused in a
            flow.
        """
        job = flow_here()
        if job is None:
            plain: AgentRunResult[Any] = await self.wrapped.run(user_prompt, output_type=output_type, **options)
            return plain
        if options.get("timeout") is not None:
            raise ConfigError("run(timeout=...) is not remembered in a flow; give the task or its steps a timeout")
        history = _history(options)
        began: Began = await job.do(Step(_begin, name=self._durability.named("begin")))
        given = {"run_id": began["run_id"], **_without_none(options), "output_type": output_type}
        if "conversation" not in given and not any(one.conversation_id for one in history):
            given.setdefault("conversation_id", conversation_id_from_run_id(given["run_id"]))
        given["capabilities"] = [*(options.get("capabilities") or ()), self._durability]
        conductor = Conductor(job, _calls_in, self._asked_for_tools(), _open_calls(history))
        result: AgentRunResult[Any] = await conductor.conduct(lambda: self.wrapped.run(user_prompt, **given))
        _keep_times(result.new_messages(), datetime.fromisoformat(began["at"]))
        return result

    @asynccontextmanager
    async def iter(self, *args: Any, **options: Any) -> AsyncIterator[AgentRun[AgentDepsT, Any]]:
        """Outside of flows: run the agent node by node. In a flow it is refused.

        :param args: As those of the agent that it wraps.
        :param options: Likewise.
        """
        if flow_here() is not None:
            raise ConfigError(
                "in a flow, an agent is run with `await agent.run(...)`: what it does node by node has no numbers there."
                " To show what comes, give DurableAgent a `stream` or an `event_stream_handler`"
            )
        async with self.wrapped.iter(*args, **options) as run:
            yield run

    def _asked_for_tools(self) -> list[str]:
        """The toolsets whose tools are not known before they are asked."""
        found: list[str] = []

        def look(toolset: AbstractToolset[AgentDepsT]) -> None:
            if toolset.id is not None and not isinstance(toolset, FunctionToolset):
                found.append(toolset.id)

        for toolset in self.wrapped.toolsets:
            toolset.apply(look)
        return found


async def _begin() -> Began:
    return {"run_id": str(uuid4()), "at": datetime.now().astimezone().isoformat()}


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _history(options: dict[str, Any]) -> Sequence[ModelMessage]:
    """The messages with which a run begins."""
    conversation = options.get("conversation")
    found = options.get("message_history") or getattr(conversation, "messages", None)
    return list(found or ())


def _open_calls(history: Sequence[ModelMessage]) -> list[str]:
    """The tool calls that the model has asked for last."""
    last = next((one for one in reversed(history) if isinstance(one, ModelResponse)), None)
    return [] if last is None else [one.tool_call_id for one in last.tool_calls]


def _calls_in(response: Any) -> list[str]:
    parts = response.get("parts", ()) if isinstance(response, dict) else ()
    return [str(part["tool_call_id"]) for part in parts if part.get("part_kind") == "tool-call"]


def _keep_times(messages: Sequence[ModelMessage], began: datetime) -> None:
    """Requests are made anew in each run of the program: give them times that are the same in each."""
    at = began
    for message in messages:
        if isinstance(message, ModelResponse):
            at = message.timestamp
            continue
        if message.timestamp is not None:
            message.timestamp = at
        for part in message.parts:
            if hasattr(part, "timestamp"):
                part.timestamp = at
