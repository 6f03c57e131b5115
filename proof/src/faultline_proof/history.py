"""What the clients of a run saw, and what the database holds when it is over. `checker.check` compares the two.

Every call is an operation: when it was invoked, and when and how it ended. `unknown` means that no answer came: it may have
taken effect at any time since, or never. A process that is killed leaves such operations behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from faultline.store.database import run_on
from faultline_proof.reads import holdings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

    from faultline_proof.reads.holdings import (
        BudgetHeld,
        CallHeld,
        EdgeHeld,
        JobHeld,
        PermitHeld,
        SignalHeld,
        StepHeld,
        TickHeld,
        Transition,
    )

Outcome = Literal["ok", "failed", "unknown"]


@dataclass(slots=True, eq=False, repr=False)
class Operation:
    """One call for one job, as its caller saw it. Ends once: by `ok`, `ok_with`, `failed` or `unknown`.

    `ok` means done, also for those verbs whose answer lists what was refused. `busy` is a failure: nothing was written.
    """

    process: str
    verb: str
    invoked_at: float
    job_id: str | None = None
    token: int | None = None
    owner: str | None = None
    #: Of an enqueue: its idempotency key. Of a signal: its own key.
    key: str | None = None
    #: Of a failure: why. Of a step: its name. Of `saw`: the state. Of an enqueue: its unique key.
    #: Of a change of limits, and of a take: what is said.
    detail: str | None = None
    #: When the caller had its answer. Never, if it did not live to see one.
    ended_at: float = math.inf
    outcome: Outcome = "unknown"
    _history: History | None = None

    def ok(self, at: float, **facts: Any) -> None:
        """It was answered. `facts` are what only the answer tells: the job's id, its token."""
        self._end(at, "ok", facts)

    def failed(self, at: float, why: str) -> None:
        """It surely had no effect: refused, or rolled back, or never sent."""
        self._end(at, "failed", {"detail": why})

    def unknown(self, at: float) -> None:
        self._end(at, "unknown", {})

    def ok_with(self, at: float, leases: Iterable[tuple[object, int, str | None]]) -> None:
        """It was answered with leases: those that a claim was granted, or a reap took back. Each is an operation."""
        assert self._history is not None  # noqa: S101
        for job_id, token, owner in leases:
            self._history.invoke(self.process, self.verb, self.invoked_at, job_id, token, owner).ok(at)
        self.ok(at)

    def _end(self, at: float, outcome: Outcome, facts: dict[str, Any]) -> None:
        assert self._history is not None and self.ended_at == math.inf, f"{self} has ended already"  # noqa: S101, PT018
        self.ended_at, self.outcome = at, outcome
        for name, value in facts.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        lease = "".join(f" {word} {value}" for word, value in (("token", self.token), ("owner", self.owner)) if value)
        why = f" ({self.detail})" if self.detail else ""
        return f"{self.process}: {self.verb}{lease} from {self.invoked_at:.6f} to {self.ended_at:.6f}: {self.outcome}{why}"


class History:
    """Operations in the order of their invocation."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def invoke(
        self,
        process: str,
        verb: str,
        at: float,
        job_id: object = None,
        token: int | None = None,
        owner: str | None = None,
        key: str | None = None,
        detail: str | None = None,
    ) -> Operation:
        """One operation for each job of a batch; a claim is one, whatever it will be granted."""
        job = None if job_id is None else str(job_id)
        operation = Operation(process, verb, at, job, token, owner, key, detail, _history=self)
        self.operations.append(operation)
        return operation


@dataclass(frozen=True, slots=True)
class Effect:
    """A row that a job has written in its own transaction. `key` is the job's id or its idempotency key."""

    key: str
    token: int | None = None


@dataclass(slots=True)
class Final:
    """What the database holds when all is over, and when that was."""

    at: float
    jobs: list[JobHeld]
    journal: list[Transition] = field(default_factory=list)
    steps: list[StepHeld] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    calls: list[CallHeld] = field(default_factory=list)
    edges: list[EdgeHeld] = field(default_factory=list)
    signals: list[SignalHeld] = field(default_factory=list)
    permits: list[PermitHeld] = field(default_factory=list)
    ticks: list[TickHeld] = field(default_factory=list)
    budgets: list[BudgetHeld] = field(default_factory=list)

    @classmethod
    def read(cls, connection: Connection[Any], *, effects: str | None = None) -> Self:
        """All of it at one moment. `effects`: a query of the caller's own that gives (job id or key, token)."""
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read")
            rows = connection.execute(effects.encode()).fetchall() if effects else []
            return cls(
                at=run_on(connection, holdings.time()),
                jobs=run_on(connection, holdings.jobs()),
                journal=run_on(connection, holdings.transitions()),
                steps=run_on(connection, holdings.steps()),
                effects=[Effect(str(key), token) for key, token in rows],
                calls=run_on(connection, holdings.calls()),
                edges=run_on(connection, holdings.edges()),
                signals=run_on(connection, holdings.signals()),
                permits=run_on(connection, holdings.permits()),
                ticks=run_on(connection, holdings.ticks()),
                budgets=run_on(connection, holdings.budgets()),
            )
