"""Flows in a soak: programs that sleep, have children, wait for signals and write effects, as coroutines and in threads.

Their results say what they must be, so a lost or doubled part is found out. A lost wake-up is a flow that is not over in the
end, and a lost signal is a default where a number was sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from faultline.app.blocking_job import BlockingJob  # noqa: TC001 - looked at when the task is registered
from faultline.app.job import Job  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.app.application import Faultline
    from faultline.attempt.async_transaction import Transaction

#: What atomic steps write. No unique key: that it exists once must not be the doing of this table.
MARKS = "create table soak_marks (job_id uuid not null)"
_MARK = "insert into soak_marks values (%s)"
_PARTS = 4
SIGNAL = "go"
SIGNALS = 2
#: Longer than the faults can keep a signal from its job.
_SIGNAL_SECONDS = 120.0
#: How often each is submitted, among the others.
SHARES = {"family": 1.0, "family_in_thread": 0.5, "ask": 1.0, "ask_in_thread": 0.5, "broken_family": 0.3}
SIGNALLED = frozenset({"ask", "ask_in_thread"})
#: These fail, and take their open children with them. Those end in any way.
DOOMED, ANY_END = frozenset({"broken_family", "bad_part"}), frozenset({"slow_part"})


async def _mark(tx: Transaction, job_id: UUID) -> None:
    await tx.execute(_MARK, (job_id,))


def _mark_in_thread(tx: Any, job_id: UUID) -> None:
    tx.execute(_MARK, (job_id,))


def register(app: Faultline, options: dict[str, Any], doomed: dict[str, Any]) -> None:
    """`options` are those of innocent tasks, `doomed` those of tasks that fail."""

    @app.task(**options)
    async def part(of: int) -> int:
        return of

    @app.task(**options)
    def part_in_thread(of: int) -> int:
        return of

    @app.task(**options)
    async def branch(job: Job, of: int) -> list[int]:
        return await job.map(part_in_thread, [of, of + 1])

    @app.task(**options)
    async def family(job: Job, n: int) -> list[int]:
        """A sleep, an atomic step, children, and children of a child."""
        await job.sleep(0.1 * (n % 4))
        await job.atomic("mark", _mark, job.id)
        parts = await job.map(part, [n + index for index in range(_PARTS)])
        return [*parts, *await job.call(branch, n)]

    @app.task(**options)
    def family_in_thread(job: BlockingJob, n: int) -> list[int]:
        job.sleep(0.1 * (n % 4))
        job.atomic("mark", _mark_in_thread, job.id)
        parts = job.map(part_in_thread, [n + index for index in range(_PARTS)])
        return [*parts, *job.call(branch, n)]

    @app.task(**options)
    async def ask(job: Job, n: int) -> list[int]:
        """Signals, in the order in which they are sent."""
        return [await job.receive(SIGNAL, int, timeout=_SIGNAL_SECONDS, fresh=False, default=-n - 1) for _ in range(SIGNALS)]

    @app.task(**options)
    def ask_in_thread(job: BlockingJob, n: int) -> list[int]:
        return [job.receive(SIGNAL, int, timeout=_SIGNAL_SECONDS, fresh=False, default=-n - 1) for _ in range(SIGNALS)]

    _register_doomed(app, options, doomed)


def _register_doomed(app: Faultline, options: dict[str, Any], doomed: dict[str, Any]) -> None:
    @app.task(**doomed)
    async def bad_part(of: int) -> int:
        raise RuntimeError(f"{of} never works")

    @app.task(**options)
    async def slow_part(of: int) -> int:
        await asyncio.sleep(5)
        return of

    @app.task(**doomed)
    async def broken_family(job: Job, n: int) -> None:
        """One child fails and the other is still running: it ends with its parent."""
        await job.gather(job.map(slow_part, [n]), job.map(bad_part, [n], on_failure="fast"))


def wrong(task: str, n: int, result: Any) -> bool:
    """Whether a flow that has succeeded has another result than it must have."""
    if task in SIGNALLED:
        return bool(result != list(range(SIGNALS)))
    return bool(result != [*(n + index for index in range(_PARTS)), n, n + 1])
