"""Take from a budget inside a job. If it has too little, the job gives its slot back, and comes again when it has enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.attempt.unawaited import must_await
from faultline.core.errors import ConfigError, CostTooHigh, StaleLease
from faultline.core.limits import check_budget, check_cost
from faultline.flow.sagas import Sagas
from faultline.history.calls import branch_around
from faultline.history.ending import TAKE_NUMBER, TooFew
from faultline.store.verbs import budget as verbs

if TYPE_CHECKING:
    from faultline.attempt.lease_protocol import Held
    from faultline.core.host import Host
    from faultline.history.program import Branch


class Takes(Sagas):
    """How a job takes from budgets."""

    def __init__(self, hold: Held, host: Host, timeout_seconds: float | None) -> None:
        super().__init__(hold, host, timeout_seconds)
        #: How often this attempt has asked: a take whose answer was lost is known by its number.
        self._takes = 0

    @must_await
    async def take(self, budget: str, *, cost: float) -> None:
        """Take from a budget what this job is about to use, once the cost is known: `await job.take("openai", cost=800)`.

        If it has too little, the job gives its slot back. It runs again, from the top, when there will be enough; no attempt
        is used up. So take before the work. Each run that comes here takes; a step that is done, or a program that only
        repeats what is recorded, does not come here and takes nothing. What was taken is never given back.

        Raises `CostTooHigh` if the budget can never have as much: the job has failed then, without another attempt.

        :param budget: Its name, as declared by `app.budget`.
        :param cost: How much, more than 0.
        """
        check_budget(budget)
        check_cost(cost)
        if self._is_in_transaction():
            raise ConfigError(
                f"job {self.id}: job.take({budget!r}) inside job.transaction() would keep the budget locked until it ends;"
                " take before the transaction"
            )
        branch = await self._branch_that_takes()
        if branch is not None and branch.program.written.has(branch):
            # A run before this one took, and went on to a call that is recorded.
            return
        self._takes += 1
        try:
            asked = await self._write(verbs.take_budget(self._hold.lease, budget, cost, self._takes))
        except StaleLease as error:
            raise self._lost("take_budget", error.reason or "lease_lost", error.current_token) from error
        if asked.status == "never":
            raise CostTooHigh(
                f"job {self.id} takes {cost:g} from budget {budget}, which never has more than {asked.burst or 0:g}, its"
                " burst; take less at a time, or raise the burst and retry the job"
            )
        if asked.until is None or asked.seconds is None:
            return
        wait = {"number": TAKE_NUMBER, "kind": "retry", "name": budget, "until": asked.until.isoformat()}
        if branch is None:
            raise TooFew([wait], self._monotonic() + asked.seconds)
        raise branch.suspend([wait])

    async def _branch_that_takes(self) -> Branch | None:
        """The branch of the program in which this runs. None: in a step, or in a job that has made no call."""
        program = self.program
        if program is None:
            return None
        await self._know(program)
        branch = branch_around(program)
        if branch is not None:
            program.refuse_if_ended(branch)
            if any(one.call["outcome"] == "failed" for one in program.due(branch, program.next_moment())):
                # The program caught the error of a step and went on: the next run must go the same way.
                await self._record_here(branch)
        return branch
