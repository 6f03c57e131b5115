"""Who was heard without a break may judge the silent, and nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.worker.beating import Time, hold_of, session_of

if TYPE_CHECKING:
    from faultline.worker.lease.heartbeat import Heartbeat
    from tests.driver import Driver, Sessions


def may_judge(beating: Heartbeat, time: Time, seconds: float) -> bool:
    """After so many seconds in which it beat whenever it should."""
    until = time.now + seconds
    while time.now < until:
        beating.tick()
        time.now += 0.1
    return beating.may_judge()


def test_who_was_heard_for_three_seconds_may_judge_the_silent(heartbeat: Heartbeat, time: Time) -> None:
    assert not heartbeat.may_judge()
    assert not may_judge(heartbeat, time, 2.8)
    assert may_judge(heartbeat, time, 0.4)


@pytest.mark.parametrize("table", ["workers", "open_jobs"])
def test_who_was_refused_judges_nobody_for_a_while(
    queue: Driver, sessions: Sessions, heartbeat: Heartbeat, time: Time, table: str
) -> None:
    """The silent may have been refused as well."""
    heartbeat.keep([hold_of(queue, time)])
    may_judge(heartbeat, time, 9)
    somebody = sessions.open()
    somebody.begin()
    somebody.execute(f"lock table faultline.{table} in exclusive mode")
    time.now += 1.1
    heartbeat.tick()
    somebody.rollback()

    assert not heartbeat.may_judge()
    assert not may_judge(heartbeat, time, 2.5)
    assert may_judge(heartbeat, time, 2)


def test_whose_connection_was_lost_judges_nobody_for_a_while(queue: Driver, heartbeat: Heartbeat, time: Time) -> None:
    may_judge(heartbeat, time, 4)
    queue.connection.execute("select pg_terminate_backend(%s, 10000)", (session_of(queue),))
    time.now += 1
    heartbeat.tick()

    assert not heartbeat.may_judge()
    assert not may_judge(heartbeat, time, 2.5)
    assert may_judge(heartbeat, time, 2)


def test_who_did_not_run_for_a_while_judges_nobody_until_it_was_heard_again(heartbeat: Heartbeat, time: Time) -> None:
    may_judge(heartbeat, time, 4)
    time.now += 10

    assert not heartbeat.may_judge()
    assert not may_judge(heartbeat, time, 2.5)
    assert may_judge(heartbeat, time, 2)
