"""What is measured stays true: told twice it counts once, summed up it stays the same, and counting holds nobody up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.errors import JobRejected
from faultline.store import verbs
from faultline.store.reads import overview, vitals

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions

NOTHING = {
    "started": 0, "succeeded": 0, "failed": 0, "retried": 0, "released": 0, "lost": 0, "refused": 0, "recovered": 0,
    "wait_seconds_sum": 0.0, "run_seconds_sum": 0.0, "waits": [], "runs": [],
}  # fmt: skip


def tell(queue: Driver, worker: str = "w", *, minutes_ago: float = 0, name: str = "mail", **counts: Any) -> None:
    minute = queue.value("select (faultline.clock() - make_interval(secs => %s))::text", minutes_ago * 60)
    queue.run(verbs.tally(worker, [{**NOTHING, "queue": name, "minute": minute, **counts}]))


def rows(queue: Driver, columns: str = "started") -> list[tuple[Any, ...]]:
    query = f"select queue, worker, {columns} from faultline.tallies order by queue, minute, worker"
    return queue.connection.execute(query.encode()).fetchall()


def test_a_tally_that_is_sent_twice_counts_once(queue: Driver, clock: Clock) -> None:
    for _ in range(2):
        tell(queue, started=3, waits=[0, 3], wait_seconds_sum=1.5)

    assert rows(queue, "started, waits, wait_seconds_sum") == [("mail", "w", 3, [0, 3], 1.5)]


def test_a_tally_that_comes_late_takes_nothing_back(queue: Driver, clock: Clock) -> None:
    tell(queue, started=5, succeeded=4)
    tell(queue, started=4, succeeded=4)

    assert rows(queue) == [("mail", "w", 5)]


def test_workers_count_side_by_side_and_by_the_minute(queue: Driver, clock: Clock) -> None:
    tell(queue, "a", started=1)
    tell(queue, "b", started=2)
    tell(queue, "a", minutes_ago=1, started=4)

    assert rows(queue) == [("mail", "a", 4), ("mail", "a", 1), ("mail", "b", 2)]


@pytest.mark.parametrize("minutes_ago", [56, -6])
def test_a_tally_of_another_hour_is_left_out(queue: Driver, clock: Clock, minutes_ago: int) -> None:
    tell(queue, minutes_ago=minutes_ago, started=1)

    assert rows(queue) == []


def test_a_tally_without_a_worker_is_refused(queue: Driver) -> None:
    with pytest.raises(JobRejected, match="id of its worker"):
        tell(queue, "", started=1)


def test_rolled_up_tallies_have_the_same_totals(queue: Driver, clock: Clock) -> None:
    for worker in "ab":
        tell(queue, worker, started=3, succeeded=2, refused=1, waits=[3], run_seconds_sum=0.5)
    before = queue.run(overview.totals())

    clock.advance(61 * 60)
    assert queue.run(verbs.roll_up()) == 2
    assert rows(queue, "started, waits, run_seconds_sum") == [("mail", "", 6, [], 1.0)]
    tell(queue, started=3)
    clock.advance(25 * 3600)
    assert queue.run(verbs.roll_up()) == 2

    assert rows(queue, "started, minute = '-infinity'") == [("mail", "", 9, True)]
    assert queue.run(verbs.roll_up()) == 0
    (total,) = queue.run(overview.totals())
    assert (total.started, total.succeeded, total.refused) == (9, before[0].succeeded, before[0].refused)


def test_a_minute_is_rolled_up_in_parts_as_well(queue: Driver, clock: Clock) -> None:
    for worker in "abc":
        tell(queue, worker, started=1)
    clock.advance(61 * 60)

    gone = [queue.value("select faultline.roll_up(2)") for _ in range(2)]

    assert (gone, rows(queue)) == ([2, 1], [("mail", "", 3)])


def test_only_one_rolls_up_and_nobody_waits_for_it(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    tell(queue, started=1)
    clock.advance(61 * 60)
    first, second = sessions.open(), sessions.open()
    first.begin()

    assert first.do(lambda q: q.run(verbs.roll_up())) == 1
    assert second.do(lambda q: q.run(verbs.roll_up())) == 0
    first.rollback()
    assert second.do(lambda q: q.run(verbs.roll_up())) == 1


def sampled(queue: Driver) -> list[tuple[Any, ...]]:
    query = (
        b"select queue, due, delayed, running, failed, oldest_due_at is null from faultline.samples order by queue, minute"
    )
    return queue.connection.execute(query).fetchall()


def test_a_sample_counts_what_waits_runs_and_has_failed(queue: Driver, clock: Clock) -> None:
    for _ in range(4):
        queue.enqueue()
    leases = queue.claim(3)
    queue.fail(leases[0], then="fail")
    queue.fail(leases[1], then="cancel")
    queue.enqueue(delay_seconds=60.0)
    queue.enqueue(queue="mail", delay_seconds=60.0)

    assert queue.run(verbs.sample())

    assert sampled(queue) == [("default", 1, 1, 1, 1, False), ("mail", 0, 1, 0, 0, True)]


def test_a_queue_that_has_emptied_is_sampled_as_empty_once(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.run(verbs.sample())
    queue.complete(queue.claim_one())

    for _ in range(2):
        clock.advance(60)
        queue.run(verbs.sample())

    assert sampled(queue) == [("default", 1, 0, 0, 0, False), ("default", 0, 0, 0, 0, True)]


def test_a_queue_that_was_worked_on_today_is_sampled_as_empty(queue: Driver, clock: Clock) -> None:
    tell(queue, started=1)

    queue.run(verbs.sample())
    clock.advance(86_400)
    queue.run(verbs.sample())

    assert sampled(queue) == [("mail", 0, 0, 0, 0, True)]


def test_samples_are_taken_every_five_seconds_at_most(queue: Driver, clock: Clock) -> None:
    taken = []
    for _ in range(7):
        taken.append(queue.run(verbs.sample()))
        clock.advance(1)

    assert taken == [True, False, False, False, False, True, False]


def test_a_dear_sample_is_taken_rarely(queue: Driver, clock: Clock) -> None:
    queue.connection.execute("update faultline.sampling set sampled_at = faultline.clock(), took_seconds = 16")

    clock.advance(29)
    assert not queue.run(verbs.sample())
    clock.advance(1)
    assert queue.run(verbs.sample())


def test_what_a_sample_took_is_remembered(queue: Driver) -> None:
    queue.run(verbs.sample())

    assert 0 < queue.value("select took_seconds from faultline.sampling") < 60


def test_a_sample_of_the_future_does_not_end_sampling(queue: Driver, clock: Clock) -> None:
    queue.connection.execute("update faultline.sampling set sampled_at = faultline.clock() + interval '1 day'")

    assert queue.run(verbs.sample())


def test_only_one_samples_and_nobody_waits_for_it(sessions: Sessions, queue: Driver) -> None:
    first, second = sessions.open(), sessions.open()
    first.begin()

    assert first.do(lambda q: q.run(verbs.sample()))
    assert not second.do(lambda q: q.run(verbs.sample()))


def test_old_samples_go(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.run(verbs.sample())
    clock.advance(24 * 3600)
    queue.run(verbs.sample())

    clock.advance(2 * 3600)

    assert queue.run(verbs.roll_up()) == 1
    assert queue.value("select count(*) from faultline.samples") == 1


def test_a_beat_tells_what_is_held_and_answers_with_the_time(queue: Driver, clock: Clock) -> None:
    told = verbs.beat(
        "w", host="h", pid=1, version="0", queues=["q"], sleeping=[], watched=True, leases=7, clock_ahead_seconds=-1.5
    )

    assert queue.run(told) == queue.value("select faultline.clock()")

    (worker,) = queue.run(overview.workers())
    assert (worker.leases, worker.clock_ahead_seconds) == (7, -1.5)


def test_a_reaped_job_is_told_with_its_queue(queue: Driver, clock: Clock) -> None:
    queue.enqueue(queue="mail")
    queue.claim_one(queue="mail")
    clock.advance(31)

    assert [reaped.queue for reaped in queue.reap()] == ["mail"]


def test_a_lost_row_of_the_sampling_comes_back_and_samples_stay_rare(queue: Driver) -> None:
    queue.connection.execute("delete from faultline.sampling")

    assert queue.value("select faultline.sample()")
    assert not queue.value("select faultline.sample()")


def test_a_job_that_was_to_run_in_the_past_has_waited_since_it_was_enqueued(queue: Driver, clock: Clock) -> None:
    queue.enqueue(run_at=datetime(2020, 1, 1, tzinfo=UTC))
    clock.advance(2)

    assert queue.run(verbs.sample())

    assert queue.value("select extract(epoch from faultline.clock() - oldest_due_at)::float8 from faultline.samples") == 2
    assert [waiting.oldest_seconds for waiting in queue.run(vitals.waiting())] == [2]
