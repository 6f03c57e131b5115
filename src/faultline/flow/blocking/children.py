# Generated from src/faultline/flow/children.py by `make generate`: change that file, not this one.
"""The jobs that a program calls or waits for. They are enqueued once, and what became of them is recorded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg

from faultline.core.bounds import SPAWN_CHUNK
from faultline.core.errors import ChildFailed, FaultlineError
from faultline.core.ids import Ids
from faultline.flow.blocking.steps import Stepping
from faultline.history import children
from faultline.history.ending import Interrupted
from faultline.store.verbs import flow as verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.model import Submission
    from faultline.history.calls import BlockingCall
    from faultline.history.program import Recorded
    from faultline.store.statement import Statement
    from faultline.store.verbs.flow import ChildOutcome

T = TypeVar("T")

_PAGE = 1000


class Called(NamedTuple):
    """The jobs of one call."""

    jobs: Sequence[Submission]
    #: raise, keep, fast.
    policy: str
    #: What their results are read as.
    returns: Any
    #: One job was called, and its result is that of the call.
    alone: bool = False


class Watched(NamedTuple):
    job_id: UUID
    #: What its result is read as.
    returns: Any


class Calling(Stepping):
    """How calls of other jobs run."""

    def _run_children(self, call: BlockingCall[Any]) -> Any:
        known = self._arrived(call)
        called: Called = call.what
        is_spawned = self._spawned(call, known)
        taken = self._taken(call, known) if is_spawned or call.contest is not None else None
        if taken is None:
            raise self._wait(call, call.as_wait(policy=called.policy))
        failed = taken["failed"]
        if failed and called.policy != "keep":
            raise children.failed(self.id, call.name, len(called.jobs), children.errors_of(failed))
        found = [self._result_of(call, one, called.returns) for one in self._outcomes(call, len(called.jobs))]
        return found[0] if called.alone else found

    def _run_detached(self, call: BlockingCall[Any]) -> UUID:
        known = self._arrived(call)
        if known is None or known.outcome is None:
            (job,) = call.what.jobs
            fresh = self._new_ids(1)
            return self._ask_for(
                verbs.detach(self._hold.lease, call.number, job, name=call.name, digest=call.digest, fresh=fresh)
            )
        return UUID(known.result[0])

    def _run_watch(self, call: BlockingCall[Any]) -> Any:
        known = self._arrived(call)
        if known is None:
            self._refuse_in_transaction(call)
            self._pass_failures(call)
            watched: Watched = call.what
            lease = self._hold.lease
            statement = verbs.watch(lease, call.number, [watched.job_id], name=call.name, digest=call.digest)
            call.call_id = self._ask_for(statement)
        else:
            call.call_id = known.call_id
        taken = self._taken(call, known)
        if taken is None:
            raise self._wait(call, call.as_wait(policy="raise"))
        if taken["failed"]:
            raise children.failed(self.id, call.name, 1, children.errors_of(taken["failed"]))
        kept = taken["results"]
        result = kept["0"] if "0" in kept else (self._outcomes(call, 1))[0].result
        return self._read(call, result, call.what.returns)

    def _spawned(self, call: BlockingCall[Any], known: Recorded | None) -> bool:
        """Enqueue the jobs of a call, unless they are. True if they were all enqueued by an earlier run."""
        if call.is_spawned is None:
            call.is_spawned = self._spawned_before(call, known)
        return call.is_spawned

    def _spawned_before(self, call: BlockingCall[Any], known: Recorded | None) -> bool:
        jobs = call.what.jobs
        begun = 0
        if known is not None:
            call.call_id, begun = known.call_id, known.spawned
            if known.outcome is not None or begun >= len(jobs):
                return True
        self._refuse_in_transaction(call)
        self._pass_failures(call)
        while True:
            self._spawn(call, begun)
            begun += SPAWN_CHUNK
            if begun >= len(jobs):
                # Without jobs there is nothing to wait for.
                return not jobs

    def _spawn(self, call: BlockingCall[Any], first: int) -> None:
        called: Called = call.what
        chunk = called.jobs[first : first + SPAWN_CHUNK]
        statement = verbs.spawn(
            self._hold.lease,
            call.number,
            chunk,
            name=call.name,
            digest=call.digest,
            total=len(called.jobs),
            first_index=first,
            policy=called.policy,
            fresh=self._new_ids(len(chunk)) if chunk else None,
        )
        call.call_id = self._ask_for(statement)

    def _new_ids(self, count: int) -> list[int]:
        self._read_clock()
        return Ids(self._database.time.seconds, self._chance).new_numbers(count)

    def _ask_for(self, statement: Statement[T]) -> T:
        """The answer to a call of jobs. A refusal is not recorded, and another run may get another one: the run is over."""
        try:
            return self._ask(statement)
        except (FaultlineError, psycopg.Error) as error:
            raise self._program().end(Interrupted(error)) from error

    def _taken(self, call: BlockingCall[Any], known: Recorded | None) -> dict[str, Any] | None:
        """What became of the jobs, as it was recorded; None: wait on."""
        if known is not None and known.outcome is not None:
            status, result = ("taken" if known.outcome in ("done", "failed") else known.outcome), known.result
        elif call.contest is not None:
            status, result = self._in_turn(call, policy=getattr(call.what, "policy", "raise"))
        else:
            self._refuse_in_transaction(call)
            self._pass_failures(call)
            found_now = self._ask(verbs.collect_outcomes(self._hold.lease, call.number))
            status, result = found_now.status, found_now.result
        if status == "open":
            return None
        if status != "taken":
            raise ChildFailed(f"job {self.id}: call {call.number} ({call.name}) was waited for in vain: its time is over")
        self._refuse_unreadable(call, result)
        found: dict[str, Any] = result
        return found

    def _outcomes(self, call: BlockingCall[Any], total: int) -> list[ChildOutcome]:
        """All of them, by pages. Their results count for what one job may have in memory."""
        found: list[ChildOutcome] = []
        while len(found) < total:
            after = found[-1].index if found else -1
            page = self._ask(verbs.outcomes(int(call.call_id or 0), after, _PAGE))
            if not page:
                break
            self._program().weigh(sum(len(repr(one.result)) for one in page))
            found += page
        return found

    def _result_of(self, call: BlockingCall[Any], one: ChildOutcome, returns: Any) -> Any:
        return self._read(call, one.result, returns) if one.state == "succeeded" else None
