"""An agent whose requests to the model and tool calls are steps of the flow that runs it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import openai
from agents import RunConfig, Runner, RunState, TContext
from agents.exceptions import AgentsException

from faultline.core.errors import ConfigError, StepFailed
from faultline.flow.step_functions import Retries
from faultline.integrations.agents.approvals import question
from faultline.integrations.agents.conductor import Conductor, flow_here
from faultline.integrations.openai_agents.recorded import calls_in
from faultline.integrations.openai_agents.twins import Twins, one_by_one

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents import Agent, RunResult, TResponseInputItem
    from agents.items import ToolApprovalItem

    from faultline.app.job import Job
    from faultline.attempt.options import Duration
    from faultline.integrations.agents.conductor import StepOptions

#: Errors after which the same request may succeed.
PASSING = (openai.RateLimitError, openai.InternalServerError, openai.APIConnectionError)
#: What a run that goes on after an approval is given again. The rest is in its state.
_KEPT = ("hooks", "error_handlers")


def retries_of_models(times: int = 4, **words: Any) -> Retries:
    """Retries after errors that pass: too many requests, a server that is overloaded, broken or out of reach.

    :param times: How many tries follow the first.
    :param words: Others of `Retries`.
    """
    return Retries(times, on=PASSING, **words)


class DurableAgent(Generic[TContext]):
    """An agent for flows: `await DurableAgent(agent).run(...)` in a task that takes `job: Job`.

    Each request to the model and each tool call is a step: it runs once, and later runs of the program get its result. A
    tool that must be approved waits for a signal, without a slot. Outside of jobs, and inside of steps, it is the agent that
    it wraps, run by `Runner.run`.
    """

    def __init__(
        self,
        wrapped: Agent[TContext],
        *,
        name: str | None = None,
        model_step: StepOptions | None = None,
        tool_step: StepOptions | None = None,
        approvals: str = "approve",
        approval_timeout: Duration | None = None,
        stream: str | None = None,
        tracing: bool = False,
    ) -> None:
        """:param wrapped: An agent. Tools of it, or of those that it hands off to, that cannot be remembered: `ConfigError`.
        :param name: By which the steps of its runs are called. Default: the agent's.
        :param model_step: How requests to the model are tried again. Default: four times, after errors that pass.
        :param tool_step: How tool calls are tried again. Default: they are not.
        :param approvals: A tool that needs approval waits for the signal `<approvals>:<tool>`, whose payload is true, false
            or an `Approval`.
        :param approval_timeout: After this time a tool call counts as denied. Default: 30 days, and then the job fails.
        :param stream: The stream of the job to which text is written as it comes. Default: none.
        :param tracing: Whether the SDK traces runs in flows. It would send a trace of each run of the program.
        """
        self.wrapped = wrapped
        self._name = name or wrapped.name
        self._steps: dict[str, StepOptions] = {
            "model": {"retries": retries_of_models(), **(model_step or {})},
            "tool": tool_step or {},
        }
        self._approvals = approvals
        self._approval_timeout = approval_timeout
        self._stream = stream
        self._tracing = tracing
        Twins(self._name, self._steps, stream).of_agent(wrapped)

    async def run(self, input: str | list[TResponseInputItem], **options: Any) -> RunResult:  # noqa: A002 - the SDK's word
        """Run the agent. In a flow, each request to the model and each tool call is a step.

        A step that failed for good raises `StepFailed` here, in every run alike.

        :param input: What the user says, or the items of the conversation.
        :param options: As those of `Runner.run`. A `session`, a sandbox and a `RunState` are refused in a flow.
        """
        job = flow_here()
        if job is None:
            return await Runner.run(self.wrapped, input, **options)
        given = options.pop("run_config", None)
        config = given if isinstance(given, RunConfig) else RunConfig(**(given or {}))
        _refuse(job, input, options, config)
        twins = Twins(self._name, self._steps, self._stream)
        provider = config.model_provider
        config = replace(
            config,
            model=config.model if config.model is None or isinstance(config.model, str) else twins.of_model(config.model),
            model_provider=twins.of_provider(provider),
            input_guardrails=one_by_one(config.input_guardrails),
            tracing_disabled=config.tracing_disabled or not self._tracing,
        )
        conductor = Conductor(job, calls_in)
        try:
            result: RunResult = await conductor.conduct(lambda: self._run(conductor, twins, input, config, options))
        except AgentsException as error:
            if isinstance(error.__cause__, StepFailed):
                raise (conductor.failure or error.__cause__) from None
            raise
        finally:
            if given is None:
                await provider.aclose()
        return result

    async def _run(
        self,
        conductor: Conductor,
        twins: Twins,
        given: str | list[TResponseInputItem],
        config: RunConfig,
        options: dict[str, Any],
    ) -> RunResult:
        agent = twins.of_agent(self.wrapped)
        result = await Runner.run(agent, given, run_config=config, **options)
        kept = {name: options[name] for name in _KEPT if name in options}
        while result.interruptions:
            state = result.to_state()
            await self._answer(conductor, twins, state, result.interruptions)
            result = await Runner.run(agent, state, run_config=config, **kept)
        return result

    async def _answer(
        self, conductor: Conductor, twins: Twins, state: RunState[Any, Any], interruptions: Sequence[ToolApprovalItem]
    ) -> None:
        """Wait for a signal for each call that a person must approve."""
        calls = [
            conductor.ask(_call_id(one), question(self._approvals, one.name or "tool", self._approval_timeout))
            for one in interruptions
        ]
        for one, answer in zip(interruptions, await asyncio.gather(*calls), strict=True):
            if not answer.approved:
                state.reject(one, rejection_message=answer.message)
                continue
            state.approve(one)
            if answer.arguments is not None:
                twins.replaced[_call_id(one)] = json.dumps(answer.arguments)


def _call_id(item: ToolApprovalItem) -> str:
    return str(getattr(item.raw_item, "call_id", ""))


def _refuse(job: Job, given: object, options: dict[str, Any], config: RunConfig) -> None:
    """What a flow could not remember, or would do again in every run of the program."""
    if isinstance(given, RunState):
        raise ConfigError(f"job {job.id}: in a flow, approvals are signals; run the agent with its input, no RunState")
    if options.get("session") is not None:
        raise ConfigError(
            f"job {job.id}: a session would be written to in every run of the program; give the next run"
            " `result.to_input_list()` and what the user says"
        )
    if config.sandbox is not None:
        raise ConfigError(f"job {job.id}: what a sandbox does is not remembered in a flow; call it in a function tool")
