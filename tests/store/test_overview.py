"""The overview says what was told and counted, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.core import histogram
from faultline.store import verbs
from faultline.store.reads import overview

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


def told(queue: Driver, *, minutes_ago: int, name: str = "mail", worker: str = "w", **counts: object) -> None:
    columns = ", ".join(["queue", "minute", "worker", *counts])
    places = ", ".join(["%s"] * (3 + len(counts)))
    minute = queue.value("select date_trunc('minute', faultline.now()) - make_interval(mins => %s::integer)", minutes_ago)
    queue.connection.execute(
        f"insert into faultline.tallies ({columns}) values ({places})".encode(), (name, minute, worker, *counts.values())
    )


def counted(queue: Driver, *, minutes_ago: int, due: int, name: str = "mail") -> None:
    queue.connection.execute(
        "insert into faultline.samples (queue, minute, sampled_at, due, delayed, running, failed, oldest_due_at)"
        " select %s, date_trunc('minute', at), at, %s, 2, 3, 4, at - interval '9 seconds'"
        " from (select faultline.now() - make_interval(mins => %s::integer)) as x (at)",
        (name, due, minutes_ago),
    )


def test_a_queue_is_shown_with_its_last_sample_and_its_rates(queue: Driver, clock: Clock) -> None:
    counted(queue, minutes_ago=1, due=70)
    counted(queue, minutes_ago=0, due=10)
    told(queue, minutes_ago=9, started=1_000_000)
    told(queue, minutes_ago=1, worker="a", started=40, succeeded=30, runs=[10, 0, 30])
    told(queue, minutes_ago=1, worker="b", started=20, failed=6, rescheduled=3, waits=[0, 0, 0, 100])
    seconds = 240 + queue.value("select extract(second from faultline.now())::float8")

    (line,) = queue.run(overview.queues())

    assert (line.name, line.due, line.delayed, line.running, line.failed) == ("mail", 10, 2, 3, 4)
    assert line.oldest_due_seconds == pytest.approx(9)
    assert line.started_per_second == pytest.approx(60 / seconds)
    assert line.succeeded_per_second == pytest.approx(30 / seconds)
    assert line.failed_per_second == pytest.approx(6 / seconds)
    assert line.rescheduled_per_second == pytest.approx(3 / seconds)
    assert line.run_seconds_p50 == pytest.approx(0.0025 + 0.0025 * 10 / 30)
    assert line.wait_seconds_p95 == pytest.approx(0.005 + 0.005 * 0.95)
    assert line.growth_per_second == pytest.approx(-1.0)
    assert line.drain_seconds == pytest.approx(10.0)


def test_a_queue_that_grows_is_never_drained(queue: Driver, clock: Clock) -> None:
    counted(queue, minutes_ago=1, due=10)
    counted(queue, minutes_ago=0, due=70)

    (line,) = queue.run(overview.queues())

    assert line.growth_per_second == pytest.approx(1.0)
    assert line.drain_seconds is None
    assert (line.wait_seconds_p50, line.started_per_second) == (None, 0.0)


def test_a_paused_queue_is_known_and_one_that_was_silent_for_a_day_is_not(queue: Driver) -> None:
    queue.run(verbs.pause("paused", "enough"))
    told(queue, minutes_ago=1500, name="old", started=1)
    told(queue, minutes_ago=1400, name="yesterday", started=1)

    lines = queue.run(overview.queues())

    assert [(line.name, line.paused_reason, line.sampled_at) for line in lines] == [
        ("paused", "enough", None),
        ("yesterday", None, None),
    ]


def test_a_trend_has_no_gaps_and_sums_queues_and_workers(queue: Driver, clock: Clock) -> None:
    told(queue, minutes_ago=2, worker="a", succeeded=1, refused=5)
    told(queue, minutes_ago=2, worker="b", succeeded=2)
    told(queue, minutes_ago=2, name="other", succeeded=4, failed=3)
    told(queue, minutes_ago=3, succeeded=100)
    counted(queue, minutes_ago=0, due=7)
    counted(queue, minutes_ago=0, due=1, name="other")

    everywhere, here = queue.run(overview.trend(3)), queue.run(overview.trend(3, "mail"))

    assert [(m.due, m.succeeded, m.failed, m.refused) for m in everywhere] == [
        (None, 7, 3, 5), (None, 0, 0, 0), (8, 0, 0, 0),
    ]  # fmt: skip
    assert [(m.due, m.succeeded, m.failed, m.refused) for m in here] == [(None, 3, 0, 5), (None, 0, 0, 0), (7, 0, 0, 0)]


def test_totals_sum_all_there_is_and_trouble_the_last_hour(queue: Driver, clock: Clock) -> None:
    told(queue, minutes_ago=5, refused=1, requeued=2, lost=3, failed=4)
    told(queue, minutes_ago=90, refused=10, succeeded=5)
    queue.connection.execute(
        "insert into faultline.tallies (queue, minute, worker, refused) values ('mail', '-infinity', '', 100)"
    )

    (total,) = queue.run(overview.totals())

    assert (total.queue, total.refused, total.succeeded, total.requeued) == ("mail", 111, 5, 2)
    lately = queue.run(overview.counted())
    assert (lately.refused, lately.lost, lately.requeued, lately.failed) == (1, 3, 2, 4)


def test_a_worker_that_is_silent_is_not_called_alive(queue: Driver, clock: Clock) -> None:
    queue.run(verbs.heartbeat("w", host="h", pid=7, version="1", queues=["q"], sleeping=["q"], watched=False))

    (fresh,) = queue.run(overview.workers())
    clock.advance(seconds=4)
    (silent,) = queue.run(overview.workers())

    assert (fresh.id, fresh.pid, fresh.queues, fresh.sleeping, fresh.alive) == ("w", 7, ["q"], ["q"], True)
    assert (silent.age_seconds, silent.alive) == (4.0, False)


def test_a_quantile_lies_within_its_bucket() -> None:
    assert histogram.quantile([], 0.5) is None
    assert histogram.quantile([0, 0], 0.5) is None
    assert histogram.quantile([4], 0.5) == pytest.approx(0.0005)
    assert histogram.quantile([0] * len(histogram.BOUNDS) + [3], 0.5) == histogram.BOUNDS[-1]


def test_counts_that_are_old_are_said_to_be(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.run(verbs.sample())

    fresh = queue.run(overview.queues())[0]
    clock.advance(61)
    old = queue.run(overview.queues())[0]

    assert [(line.counted_seconds_ago, line.counts_are_old) for line in (fresh, old)] == [(0.0, False), (61.0, True)]


def test_an_empty_queue_is_as_freshly_counted_as_the_others(queue: Driver, clock: Clock) -> None:
    """What is empty is written down once, and found so again with each count."""
    queue.enqueue(queue="mail")
    queue.run(verbs.sample())
    queue.complete(*queue.claim(queue="mail"))
    for _ in range(3):
        clock.advance(60)
        queue.run(verbs.sample())

    (line,) = queue.run(overview.queues())
    assert (line.name, line.due, line.counted_seconds_ago) == ("mail", 0, 0.0)


def test_what_nobody_counted_is_not_told_as_counted_now(queue: Driver, clock: Clock) -> None:
    told(queue, minutes_ago=0, started=1)

    (line,) = queue.run(overview.queues())

    assert (line.sampled_at, line.counted_seconds_ago, line.counts_are_old) == (None, None, True)
    assert queue.run(overview.counted_seconds_ago()) is None


def test_counts_that_were_rolled_up_are_not_known_any_more(queue: Driver, clock: Clock) -> None:
    queue.enqueue(queue="mail")
    queue.run(verbs.sample())
    clock.advance(26 * 3600)
    told(queue, minutes_ago=0, started=1)
    (old,) = queue.run(overview.queues())

    queue.run(verbs.roll_up())

    (line,) = queue.run(overview.queues())
    assert (old.due, old.counted_seconds_ago) == (1, 26 * 3600)
    assert (line.sampled_at, line.counted_seconds_ago) == (None, None)
    assert queue.run(overview.counted_seconds_ago()) == 26 * 3600, "the last count grows older, whatever is left of it"


def test_a_queue_that_a_count_has_found_empty_is_as_old_as_that_count(queue: Driver, clock: Clock) -> None:
    """Nothing is written down of a paused queue that never had a job: that is no reason to call its depth unknown."""
    queue.run(verbs.pause("never used"))
    queue.run(verbs.sample())
    clock.advance(7)

    (line,) = queue.run(overview.queues())

    assert (line.name, line.due, line.counted_seconds_ago) == ("never used", 0, 7.0)


def test_only_a_silent_worker_whose_session_lives_is_hung(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    sessions.open().lock_as("frozen")
    for worker in ("frozen", "dead"):
        queue.heartbeat(worker)
    queue.heartbeat("behind a pooler", watched=False)

    clock.advance(29)
    fresh = queue.run(overview.connected_and_silent())
    clock.advance(2)

    assert (fresh, queue.run(overview.connected_and_silent())) == (0, 1)
