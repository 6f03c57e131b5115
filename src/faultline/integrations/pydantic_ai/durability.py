"""What tells Pydantic AI how the parts of an agent become steps of a flow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from pydantic_ai import exceptions
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CapabilityOperationId,
    DurabilityEngineSpec,
    DurableOperationBackend,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
)
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.tools import DeferredToolResults, ToolApproved, ToolDenied

from faultline.app.job import Job
from faultline.attempt.current import current_job
from faultline.core.bounds import STEP_NAME_LENGTH_MAX
from faultline.flow.step_functions import Retries
from faultline.integrations.agents.approvals import question
from faultline.integrations.agents.conductor import StepOptions, conducting, track_of_toolset

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence

    from pydantic_ai import RunContext
    from pydantic_ai.agent import AgentRunResult, EventStreamHandler
    from pydantic_ai.durable_exec import BoundDurableOperation, DurableOperation
    from pydantic_ai.messages import AgentStreamEvent
    from pydantic_ai.models import Model
    from pydantic_ai.tools import DeferredToolRequests

    from faultline.attempt.options import Duration
    from faultline.integrations.agents.approvals import Approval

#: Errors after which the same request may succeed.
PASSING = (
    exceptions.ModelRateLimitError,
    exceptions.ModelUnavailableError,
    exceptions.ModelServerError,
    exceptions.ModelConnectionError,
)
#: The key of a tool's metadata that holds its `StepOptions`: `metadata={"faultline": {"retries": 3}}`.
METADATA = "faultline"


def retries_of_models(times: int = 4, **words: Any) -> Retries:
    """Retries after errors that pass: too many requests, a server that is overloaded, broken or out of reach.

    :param times: How many tries follow the first.
    :param words: Others of `Retries`.
    """
    return Retries(times, on=PASSING, **words)


class Durability(BaseDurabilityCapability[Any]):
    """Makes each request to the model and each tool call a step, while a conductor is there. Else it does nothing."""

    engine_spec = DurabilityEngineSpec(
        engine_name="Faultline",
        durable_unit_noun="step",
        durable_container_noun="flow",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key=METADATA,
    )

    def __init__(
        self,
        *,
        name: str | None,
        models: Mapping[str, Model] | None,
        model: StepOptions,
        tools: StepOptions,
        approvals: str | None,
        approval_timeout: Duration | None,
        stream: str | None,
        event_stream_handler: EventStreamHandler[Any] | None,
    ) -> None:
        super().__init__(name=name, models=models, event_stream_handler=event_stream_handler)
        self._options: dict[str, StepOptions] = {"model": model, "tool": tools}
        self._approvals = approvals
        self._approval_timeout = approval_timeout
        self._stream = stream

    @property
    def in_durable_context(self) -> bool:
        return conducting.get() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        return Backend(self)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Any]) -> AgentRunResult[Any]:
        """Of several tools that fail beside each other, every run raises the error of the same one."""
        agent = self.agent
        if agent is None or not self.in_durable_context:
            return await super().wrap_run(ctx, handler=handler)
        with agent.parallel_tool_call_execution_mode("parallel_ordered_events"):
            return await super().wrap_run(ctx, handler=handler)

    # How a step is run

    def named(self, what: str) -> str:
        return f"{self.name}: {what}"[:STEP_NAME_LENGTH_MAX]

    def options(self, role: str) -> StepOptions:
        return self._options.get(role, {})

    def options_of_tool(self, tool: object | None, name: str) -> StepOptions | Literal[False]:
        metadata = getattr(getattr(tool, "tool_def", None), "metadata", None) or {}
        own = metadata.get(METADATA, {})
        if own is False:
            return False
        unknown = set(own) - set(StepOptions.__annotations__) if isinstance(own, dict) else {own}
        if unknown:
            raise exceptions.UserError(
                f"The metadata {METADATA!r} of tool {name!r} must be False or a dict with `retries` and `timeout`, not"
                f" {own!r}"
            )
        return {**self._options["tool"], **own}

    # Tokens

    @property
    def has_wrap_run_event_stream(self) -> bool:
        return (self._stream is not None and self.in_durable_context) or super().has_wrap_run_event_stream

    def _model_stream_event_handler(self) -> EventStreamHandler[Any] | None:
        if self._stream is None:
            return super()._model_stream_event_handler()
        return self._write_tokens

    async def _write_tokens(self, ctx: RunContext[Any], stream: AsyncIterable[AgentStreamEvent]) -> None:
        """Inside the step of a request: it is written once, and again if the step is tried again."""
        job = current_job()
        assert isinstance(job, Job)  # noqa: S101 - it has started the run
        assert self._stream is not None  # noqa: S101 - see above
        tokens = job.stream(self._stream)

        async def watched() -> AsyncIterator[AgentStreamEvent]:
            async for event in stream:
                if text := _text_in(event):
                    tokens.write(text)
                yield event

        events = watched()
        if self._event_stream_handler is not None:
            await self._event_stream_handler(ctx, events)
        async for _ in events:
            pass

    # People

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for a signal for each call that a person must approve. Others are not ours."""
        conductor = conducting.get()
        if conductor is None or self._approvals is None or not requests.approvals:
            return await super().handle_deferred_tool_calls(ctx, requests=requests)
        asked = [question(self._approvals, one.tool_name, self._approval_timeout) for one in requests.approvals]
        calls = zip(requests.approvals, asked, strict=True)
        answers = await asyncio.gather(*(conductor.ask(one.tool_call_id, call) for one, call in calls))
        given = zip(requests.approvals, answers, strict=True)
        return DeferredToolResults(approvals={one.tool_call_id: _verdict(answer) for one, answer in given})


class Backend(DurableOperationBackend[StepOptions]):
    """Runs each operation of an agent as a step of the flow."""

    def __init__(self, durability: Durability) -> None:
        self._durability = durability

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> BoundDurableOperation[Any, Any, Any]:
        return Bound(self._durability, operation)

    def config_for_tool(
        self, operation: DurableOperation[Any, Any, Any], *, tool: object | None, tool_name: str
    ) -> StepOptions | Literal[False]:
        del operation
        return self._durability.options_of_tool(tool, tool_name)

    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()


class Bound:
    """An operation of an agent. Calling it makes a call of the flow."""

    def __init__(self, durability: Durability, operation: DurableOperation[Any, Any, Any]) -> None:
        self._durability = durability
        self._operation = operation

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        operation, conductor = self._operation, conducting.get()
        if conductor is None:
            return await operation.handler(params)
        name = self._durability.named(_said(operation, params))
        options: Any = self._durability.options(operation.config_role) if config is None else config

        async def body() -> Any:
            with durable_unit_scope():
                return operation.result_codec.dump(await operation.handler(params))

        asks_model = operation.config_role == "model"
        stored = await conductor.step(name, body, options, track=_track(operation, params), is_request=asks_model)
        return operation.result_codec.load(stored)


def _said(operation: DurableOperation[Any, Any, Any], params: Any) -> str:
    """What a step is called. Running jobs know it by that: it stays the same."""
    match operation.operation_id:
        case ModelRequestId():
            return "model request"
        case ModelCompactMessagesId():
            return "compact messages"
        case ToolsetCallToolId():
            return f"tool {params.name}"
        case ToolsetValidateToolArgumentsId():
            return f"check arguments of {params.name}"
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"tools of {toolset}"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"instructions of {toolset}"
        case CapabilityOperationId(capability_id=capability, operation=called):
            return f"{called} of {capability}"
    return type(operation.operation_id).__name__.removesuffix("Id")


def _track(operation: DurableOperation[Any, Any, Any], params: Any) -> str | None:
    match operation.operation_id:
        case ToolsetGetToolsId(toolset_id=toolset) | ToolsetGetInstructionsId(toolset_id=toolset):
            return track_of_toolset(toolset)
    found = getattr(getattr(params, "ctx", None), "tool_call_id", None)
    return None if found is None else str(found)


def _text_in(event: AgentStreamEvent) -> str | None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
    return None


def _verdict(answer: Approval) -> ToolApproved | ToolDenied:
    if answer.approved:
        return ToolApproved(override_args=answer.arguments)
    return ToolDenied() if answer.message is None else ToolDenied(answer.message)
