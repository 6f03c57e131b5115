"""How a person approves a tool call: the signal that the job waits for, and what its payload says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.core.bounds import STEP_NAME_LENGTH_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline.app.job import Job
    from faultline.attempt.options import Duration

#: What the model is told when the time for an answer was over.
NOBODY_APPROVED = "Nobody approved this tool call in time."


@dataclass(frozen=True)
class Approval:
    """What a person says to a tool call. A plain `true` or `false` will do."""

    approved: bool
    #: What the model is told when the call was not approved.
    message: str | None = None
    #: To call the tool with these arguments instead.
    arguments: dict[str, Any] | None = None


def question(approvals: str, tool: str, timeout: Duration | None) -> Callable[[Job], Awaitable[Approval]]:
    """The call that waits for the answer to one tool call.

    :param approvals: The first word of the signal.
    :param tool: The tool that was called.
    :param timeout: After this time the call counts as denied. None: 30 days, and then the job fails.
    """
    name = f"{approvals}:{tool}"[:STEP_NAME_LENGTH_MAX]
    words: dict[str, Any] = {} if timeout is None else {"timeout": timeout, "default": None}

    async def ask(job: Job) -> Approval:
        # What was sent before the question, or to another one, is no answer to it.
        answer = await job.receive(name, bool | Approval, fresh=True, **words)
        if answer is None:
            return Approval(approved=False, message=NOBODY_APPROVED)
        return answer if isinstance(answer, Approval) else Approval(answer)

    return ask
