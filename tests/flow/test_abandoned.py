"""Calls beside each other: who wins after a crash, who wakes the job, and what becomes of those that nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import BlockingJob, ChildFailed, Faultline, Job, SignalTimeout
from faultline.core.errors import DatabaseUnavailable
from faultline.flow import recording
from faultline.history.ending import Interrupted
from tests.flow.running import calls, ended, signals, waits
from tests.waiting import auntil
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from faultline import JobHandle


def lose_the_first_race(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends right before its race is recorded, and a signal comes meanwhile."""
    lost: list[int] = []
    record = recording.Recording._record  # noqa: SLF001 - the run must end right before it

    async def loses_one(self: Any, call: Any, *given: Any, text: str | None = None) -> None:
        if call.kind == "race" and not lost:
            await signals(app, "a", "A")(self)
            lost.append(1)
            raise self._program().end(Interrupted(DatabaseUnavailable("the connection is lost")))
        await record(self, call, *given, text=text)

    monkeypatch.setattr(recording.Recording, "_record", loses_one)


@pytest.mark.parametrize("how", ["branch", "race", "gather"])
def test_what_has_won_a_race_by_a_signal_wins_it_after_a_crash(
    app: Faultline, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    lose_the_first_race(app, monkeypatch)

    @app.task(backoff=lambda _: 0)
    async def program(job: Job) -> Any:
        async def asks() -> str:
            return await job.receive("b", str)

        one: Any
        if how == "branch":
            one = job.branch(asks)
        elif how == "race":
            one = job.race(job.receive("b", str), job.receive("c", str))
        else:
            one = job.gather(job.branch(asks))
        _, first = await job.race(one, job.receive("a", str))
        return [first.value if how == "race" else first, await job.receive("a", str)]

    got = ended(app, program.enqueue(), waits(app), signals(app, "b", "B"))

    assert got == [["B"] if how == "gather" else "B", "A"]


@pytest.mark.parametrize("how", ["gather", "race", "branches", "children"])
def test_a_timeout_beside_other_waits_wakes_the_job(app: Faultline, how: str) -> None:
    @app.task(queue="nobody")
    async def child() -> None: ...

    @app.task
    async def program(job: Job) -> str:
        async def asks(name: str, limit: float | None) -> Any:
            return await job.receive(name, int, timeout=limit)

        try:
            if how == "gather":
                await job.gather(job.receive("a", int, timeout=0.2), job.receive("b", int))
            elif how == "race":
                await job.race(job.receive("a", int, timeout=0.2), job.receive("b", int))
            elif how == "branches":
                await job.gather(job.branch(asks, "a", 0.2), job.branch(asks, "b", None))
            else:
                await job.gather(job.call(child), job.receive("a", int, timeout=0.2))
        except SignalTimeout:
            return "timeout"
        return "?"

    assert ended(app, program.enqueue()) == "timeout"


def cancelled(app: Faultline) -> Any:
    async def wait(_: JobHandle[Any]) -> None:
        query = "select state::text from faultline.jobs where task = 'child'"
        with psycopg.connect(app.dsn, autocommit=True) as connection:
            await auntil(lambda: connection.execute(query).fetchone() == ("cancelled",), PATIENCE)

    return wait


@pytest.mark.parametrize("how", ["returns", "completes", "blocking"])
def test_a_child_that_nobody_waits_for_is_cancelled_when_the_program_returns(app: Faultline, how: str) -> None:
    @app.task(queue="nobody")
    async def child() -> None: ...

    @app.task(max_attempts=1)
    async def bad() -> None:
        raise ValueError("bad")

    @app.task(name="program")
    async def program(job: Job) -> str:
        try:
            await job.gather(job.call(child), job.call(bad))
        except ChildFailed:
            if how == "completes":
                async with job.transaction() as tx:
                    tx.complete("instead")
        return "instead"

    @app.task
    def blocking(job: BlockingJob) -> str:
        try:
            job.gather(job.later.call(child), job.later.call(bad))
        except ChildFailed:
            return "instead"
        return "?"

    handle: Any = blocking.enqueue() if how == "blocking" else program.enqueue()

    assert ended(app, handle) == "instead"
    assert ended(app, handle, cancelled(app)) == "instead"
    assert calls(app, handle)["1"]["outcome"] == "closed"
