"""Copies of agents, their models and their tools that make steps of a flow while a conductor is there.

The agents themselves stay as they are. A copy does what its original does, except that each request to the model and each
tool call is a step. Inside of a step, where no conductor is, a copy is like its original.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import weakref
from typing import TYPE_CHECKING, Any

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    Model,
    ModelProvider,
    WebSearchTool,
)
from agents.agent_tool_state import consume_agent_tool_run_result, get_agent_tool_state_scope
from agents.tool import invoke_function_tool
from agents.util._approvals import evaluate_function_tool_approval

from faultline.core.bounds import STEP_NAME_LENGTH_MAX
from faultline.core.errors import ConfigError
from faultline.integrations.agents.conductor import conducting
from faultline.integrations.openai_agents.recorded import gathered, output_in, response_in, stored_output, stored_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agents import InputGuardrail, ModelResponse, RunContextWrapper
    from agents.items import TResponseStreamEvent
    from agents.tool import Tool
    from agents.tool_context import ToolContext

    from faultline.integrations.agents.conductor import StepOptions

#: They run on the servers of the model's maker, as a part of the request, and are remembered with it.
_PARTS_OF_REQUESTS = (WebSearchTool, FileSearchTool, CodeInterpreterTool, ImageGenerationTool)


class Twins:
    """Makes the copies for one run."""

    def __init__(self, name: str, steps: Mapping[str, StepOptions], stream: str | None) -> None:
        self.name = name
        self.steps = steps
        self.stream = stream
        #: Arguments that a person has given instead of the model's, by the id of the tool call.
        self.replaced: dict[str, str] = {}
        #: By the id of the original, which is kept so that no other gets its id.
        self._made: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def named(self, what: str) -> str:
        return f"{self.name}: {what}"[:STEP_NAME_LENGTH_MAX]

    def of_agent(self, agent: Agent[Any]) -> Agent[Any]:
        if id(agent) in self._made:
            return self._made[id(agent)][1]
        twin = copy.copy(agent)
        self._made[id(agent)] = agent, twin
        if agent.mcp_servers:
            raise ConfigError(
                f"agent {agent.name}: what its MCP servers do is not remembered in a flow; call them in function tools"
            )
        if isinstance(agent.model, Model):
            twin.model = self.of_model(agent.model)
        twin.tools = [self.of_tool(agent, tool) for tool in agent.tools]
        twin.handoffs = [self.of_agent(one) if isinstance(one, Agent) else self.of_handoff(one) for one in agent.handoffs]
        twin.input_guardrails = one_by_one(agent.input_guardrails) or []
        return twin

    def of_handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return self.of_agent(await handoff.on_invoke_handoff(context, arguments))

        twin = copy.copy(handoff)
        twin.on_invoke_handoff = invoke
        target = handoff._agent_ref and handoff._agent_ref()  # noqa: SLF001 - the SDK finds agents by it
        if isinstance(target, Agent):
            twin._agent_ref = weakref.ref(self.of_agent(target))  # noqa: SLF001 - likewise
        return twin

    def of_model(self, model: Model) -> Model:
        return ModelTwin(self, model)

    def of_provider(self, provider: ModelProvider) -> ModelProvider:
        return ProviderTwin(self, provider)

    def of_tool(self, agent: Agent[Any], tool: Tool) -> Tool:
        if isinstance(tool, _PARTS_OF_REQUESTS):
            return tool
        if isinstance(tool, HostedMCPTool) and tool.tool_config.get("require_approval") == "never":
            return tool
        if not isinstance(tool, FunctionTool) or tool.output_json_schema is not None:
            raise ConfigError(
                f"agent {agent.name}: what {type(tool).__name__} {tool.name} does is not remembered in a flow; write a"
                " function tool that does it"
            )
        twin = copy.copy(tool)
        # How long a call may take is counted inside of its step.
        twin.timeout_seconds = None
        twin.on_invoke_tool = self._invoker(tool)
        if callable(tool.needs_approval):
            twin.needs_approval = _policy(tool)
        return twin

    def _invoker(self, tool: FunctionTool) -> Any:
        name = self.named(f"tool {tool.name}")

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            given = self.replaced.get(context.tool_call_id, arguments)

            async def body() -> Any:
                output = await invoke_function_tool(function_tool=tool, context=context, arguments=given)
                _refuse_questions(tool, context)
                return stored_output(output)

            conductor = conducting.get()
            if conductor is None:
                return await invoke_function_tool(function_tool=tool, context=context, arguments=arguments)
            return output_in(await conductor.step(name, body, self.steps["tool"], track=context.tool_call_id))

        return invoke


class ModelTwin(Model):
    """A model, each request to which is a step."""

    def __init__(self, twins: Twins, model: Model) -> None:
        self._twins = twins
        self._model = model

    async def get_response(self, *args: Any, **words: Any) -> ModelResponse:
        conductor = conducting.get()
        if conductor is None:
            return await self._model.get_response(*args, **words)
        settings = words["model_settings"]
        if settings.timeout is not None:
            raise ConfigError(
                "ModelSettings(timeout=...) is not remembered in a flow; give DurableAgent `model_step={'timeout': ...}`"
            )
        stream = self._twins.stream

        async def body() -> Any:
            if stream is None:
                return stored_response(await self._model.get_response(*args, **words))
            # Inside the step of a request: it is written once, and again if the step is tried again.
            tokens = conductor.job.stream(stream)
            return stored_response(await gathered(self._model.stream_response(*args, **words), tokens.write))

        name = self._twins.named("model request")
        return response_in(await conductor.step(name, body, self._twins.steps["model"], track=None, is_request=True))

    def stream_response(self, *args: Any, **words: Any) -> AsyncIterator[TResponseStreamEvent]:
        return self._model.stream_response(*args, **words)

    async def close(self) -> None:
        await self._model.close()

    def __getattr__(self, name: str) -> Any:
        # What some models can do and others cannot.
        return getattr(self._model, name)


class ProviderTwin(ModelProvider):
    """A provider of such models."""

    def __init__(self, twins: Twins, provider: ModelProvider) -> None:
        self._twins = twins
        self._provider = provider

    def get_model(self, model_name: str | None) -> Model:
        return self._twins.of_model(self._provider.get_model(model_name))

    async def aclose(self) -> None:
        await self._provider.aclose()


def one_by_one(guardrails: list[InputGuardrail[Any]] | None) -> list[InputGuardrail[Any]] | None:
    """They run before the first request, not beside it: which of the two is quicker must not matter."""
    return guardrails and [dataclasses.replace(one, run_in_parallel=False) for one in guardrails]


def _policy(tool: FunctionTool) -> Any:
    """Whether a call needs approval, by the SDK's own rules about arguments that it cannot judge."""

    async def needs_approval(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        found = await evaluate_function_tool_approval(tool, context, json.dumps(arguments), call_id)
        return found.outcome != "invoke"

    return needs_approval


def _refuse_questions(tool: FunctionTool, context: ToolContext[Any]) -> None:
    """An agent that is a tool runs inside of a step, where nobody can be asked."""
    if context.tool_call is None:
        return
    nested = consume_agent_tool_run_result(context.tool_call, scope_id=get_agent_tool_state_scope(context))
    if getattr(nested, "interruptions", None):
        raise ConfigError(
            f"tool {tool.name} is an agent with a tool that needs approval, which it cannot wait for inside of a step; hand"
            " off to that agent, or let the tool that it is need approval"
        )
