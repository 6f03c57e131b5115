"""Ids tell when a job was enqueued, in the database's time: "newest first" is the order of ids."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from faultline import Faultline
from faultline.core.host import Host
from faultline.core.model import Submission

if TYPE_CHECKING:
    from uuid import UUID

    from tests.driver import Clock, Driver

_DAYS = 3 * 86_400.0


class Machine:
    """Its clocks go on when they are told to."""

    def __init__(self) -> None:
        self.steady, self.day = 1_000.0, 2_000.0
        self.host = Host(monotonic=lambda: self.steady, seconds=lambda: self.day)


def seconds_of(job_id: UUID) -> float:
    return (job_id.int >> 80) / 1000


def seconds_now(queue: Driver) -> float:
    return float(queue.value("select extract(epoch from faultline.clock())::float8"))


def test_an_id_is_of_now_however_long_ago_the_database_was_first_seen(dsn: str, queue: Driver, clock: Clock) -> None:
    machine = Machine()

    async def enqueue() -> list[UUID]:
        async with Faultline(dsn, host=machine.host) as app:
            await app.async_database.facts()
            app.database.facts()
            clock.advance(24.8)
            machine.steady += 24.8
            machine.day += 24.8
            (one,) = await app.aenqueue_many([Submission("t")])
            (other,) = app.enqueue_many([Submission("t")])
            return [one.id, other.id]

    made = asyncio.run(enqueue())

    assert [seconds_of(job_id) for job_id in made] == pytest.approx([seconds_now(queue)] * 2, abs=1)


@pytest.mark.parametrize("steady", [0.0, _DAYS * 0.999], ids=["asleep", "idle"])
def test_a_program_that_was_asleep_or_idle_for_days_makes_ids_of_now(
    dsn: str, queue: Driver, clock: Clock, steady: float
) -> None:
    """A machine's steady clock stands still while it sleeps; awake, it is a little too slow or too fast."""
    machine = Machine()
    with Faultline(dsn, host=machine.host) as app:
        app.enqueue_many([Submission("t")])

        clock.advance(_DAYS)
        machine.steady += steady
        machine.day += steady or _DAYS
        (job,) = app.enqueue_many([Submission("t")])

    assert seconds_of(job.id) == pytest.approx(seconds_now(queue), abs=1)
