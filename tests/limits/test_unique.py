"""Unique jobs: what stands in for another, what is replaced, what is moved, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import JobRejected, KeyConflict
from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs

if TYPE_CHECKING:
    from faultline.core.model import Enqueued
    from tests.driver import Clock, Driver, Sessions


def submit(queue: Driver, unique: Any, args: str = "{}", ids: Ids | None = None, **options: Any) -> Enqueued:
    return queue.run(verbs.enqueue_many([Submission("t", args, unique=unique, **options)], ids))[0]


def claim(queue: Driver, owner: str = "w/1") -> list[Any]:
    return queue.run(verbs.claim("default", owner=owner, max_jobs=10))


def row(queue: Driver, job: Any, what: str) -> Any:
    return queue.value(f"select {what} from faultline.open_jobs where id = %s", job)


def test_a_queued_job_stands_in_for_the_second_and_a_running_one_does_not(queue: Driver) -> None:
    first = submit(queue, {"key": "doc:1"})
    second = submit(queue, {"key": "doc:1"})
    other = submit(queue, {"key": "doc:2"})
    claim(queue)
    third = submit(queue, {"key": "doc:1"})

    assert (first.created, second.created, other.created, third.created) == (True, False, True, True)
    assert second.job_id == first.job_id
    assert third.job_id != first.job_id


def test_while_open_a_running_one_stands_in_too_and_a_done_one_does_not(queue: Driver) -> None:
    unique = {"key": "k", "while": "open"}
    first = submit(queue, unique)
    (lease,) = claim(queue)
    second = submit(queue, unique)
    queue.complete(lease)
    third = submit(queue, unique)

    assert (second.job_id, second.created) == (first.job_id, False)
    assert third.created


def test_without_a_key_the_task_and_its_arguments_count(queue: Driver) -> None:
    first = submit(queue, {}, '{"a": 1, "b": 2}')

    assert submit(queue, {}, '{"b": 2,"a":1}').job_id == first.job_id
    assert submit(queue, {}, '{"a": 1, "b": 3}').created
    assert submit(queue, {}).created


def test_keys_are_of_their_queue(queue: Driver) -> None:
    submit(queue, {"key": "k"})

    assert queue.run(verbs.enqueue_many([Submission("t", queue="other", unique={"key": "k"})]))[0].created


def test_within_the_period_nothing_is_new_though_the_first_is_done(queue: Driver, clock: Clock) -> None:
    unique = {"key": "k", "while": None, "period": 60}
    first = submit(queue, unique)
    (lease,) = claim(queue)
    queue.complete(lease)
    clock.advance(59)
    second = submit(queue, unique)
    clock.advance(1)
    third = submit(queue, unique)

    assert (second.job_id, second.created) == (first.job_id, False)
    assert third.created


def test_a_failed_job_does_not_count_for_its_period(queue: Driver) -> None:
    unique = {"key": "k", "while": None, "period": 60}
    first = submit(queue, unique)
    queue.value("select faultline.cancel(%s)", first.job_id)

    assert submit(queue, unique).created


def test_a_clock_that_was_ahead_throttles_nobody(queue: Driver, clock: Clock) -> None:
    unique = {"key": "k", "while": None, "period": 60}
    submit(queue, unique)
    queue.value("update faultline.unique_keys set at = at + interval '1 day' returning 1")

    assert submit(queue, unique).created


def test_replace_gives_the_queued_job_new_arguments_and_a_new_time(queue: Driver, clock: Clock) -> None:
    unique = {"key": "k", "then": "replace"}
    first = submit(queue, unique, '{"n": 1}', delay_seconds=10)
    second = submit(queue, unique, '{"n": 2}', delay_seconds=20)

    assert (second.job_id, second.created) == (first.job_id, False)
    assert row(queue, first.job_id, "args::text") == '{"n": 2}'
    assert row(queue, first.job_id, "next_run_at - created_at") == timedelta(seconds=20)
    assert queue.value("select event from faultline.journal where job_id = %s", first.job_id) == "replaced"


@pytest.mark.parametrize("then", ["keep", "replace"])
def test_a_job_of_another_task_does_not_stand_in(queue: Driver, then: str) -> None:
    unique = {"key": "k", "then": then}
    submit(queue, unique)

    (other,) = queue.run(verbs.enqueue_many([Submission("other", unique=unique)]))

    assert other.created
    assert queue.value("select string_agg(task, ' ' order by task) from faultline.open_jobs") == "other t"


def test_debounce_runs_it_after_the_last_and_not_later_than_at_most_after_the_first(queue: Driver, clock: Clock) -> None:
    unique = {"key": "k", "debounce": 5, "at_most": 12}
    first = submit(queue, unique).job_id

    def due() -> Any:
        return row(queue, first, "next_run_at - created_at").total_seconds()

    assert due() == 5
    for after, expected in ((4, 9), (4, 12), (3, 12)):
        clock.advance(after)
        assert claim(queue) == []
        assert submit(queue, unique).job_id == first
        assert due() == expected
    clock.advance(1)
    assert [lease.job_id for lease in claim(queue)] == [first]


def test_without_at_most_a_debounce_ends_after_ten_times(queue: Driver, clock: Clock) -> None:
    first = submit(queue, {"key": "k", "debounce": 1}).job_id
    for _ in range(20):
        clock.advance(0.9)
        submit(queue, {"key": "k", "debounce": 1})

    assert row(queue, first, "next_run_at - created_at").total_seconds() == 10


def test_a_bulk_has_each_key_once_and_answers_in_order(queue: Driver) -> None:
    jobs = [Submission("t", unique={"key": key}) if key else Submission("t") for key in ("b", "", "a", "b", "", "a")]

    found = queue.run(verbs.enqueue_many(jobs, Ids()))

    assert [one.created for one in found] == [True, True, True, False, True, False]
    assert (found[3].job_id, found[5].job_id) == (found[0].job_id, found[2].job_id)


def test_a_fresh_submission_cannot_be_unique(queue: Driver) -> None:
    job = '[{"task": "t", "id": "00000000-0000-7000-8000-000000000007", "unique": {}}]'

    with pytest.raises(psycopg.Error, match="or be unique"):
        queue.value("select ordinal from faultline.enqueue_many(%s::text, false, true)", job)


def test_an_idempotency_key_gives_the_job_that_stood_in(queue: Driver) -> None:
    first = submit(queue, {"key": "k"}, '{"n": 1}')
    second = submit(queue, {"key": "k"}, '{"n": 2}', idempotency_key="once")
    (lease,) = claim(queue)
    queue.complete(lease)
    again = submit(queue, {"key": "k"}, '{"n": 2}', idempotency_key="once")

    assert (second.job_id, second.created) == (first.job_id, False)
    assert (again.job_id, again.created) == (first.job_id, False)
    with pytest.raises(KeyConflict):
        submit(queue, {"key": "k"}, '{"n": 3}', idempotency_key="once")


def test_a_submission_that_is_sent_again_is_known_by_its_id(queue: Driver) -> None:
    ids = Ids()
    statement = verbs.enqueue_many([Submission("t", unique={"key": "k", "then": "replace"})], ids)
    first = queue.run(statement)[0]
    assert queue.run(statement)[0] == (first.job_id, False)
    (lease,) = claim(queue)
    assert queue.run(statement)[0] == (first.job_id, False)
    queue.complete(lease)
    assert queue.run(statement)[0] == (first.job_id, False)

    assert queue.value("select count(*) from faultline.open_jobs") == 0
    assert queue.value("select count(*) from faultline.journal where event = 'replaced'") == 0


def test_a_job_that_has_begun_and_remembers_what_it_did_counts_as_running(queue: Driver) -> None:
    first = submit(queue, {"key": "k"})
    (lease,) = claim(queue)
    queue.step(lease)
    queue.release(lease)

    assert submit(queue, {"key": "k"}).job_id != first.job_id


def test_a_job_that_has_failed_once_and_remembers_nothing_is_queued(queue: Driver) -> None:
    first = submit(queue, {"key": "k"})
    (lease,) = claim(queue)
    queue.release(lease)

    assert submit(queue, {"key": "k"}).job_id == first.job_id


def test_a_job_that_has_expired_stands_in_for_nobody_and_one_that_will_expires_with_the_later(
    queue: Driver, clock: Clock
) -> None:
    first = submit(queue, {"key": "k"}, expires_seconds=60)
    clock.advance(30)
    assert submit(queue, {"key": "k"}, expires_seconds=60).job_id == first.job_id
    clock.advance(59)
    assert submit(queue, {"key": "k"}, expires_seconds=1).job_id == first.job_id
    clock.advance(1)

    assert submit(queue, {"key": "k"}).created
    assert [one.job_id for one in queue.run(verbs.expire())] == [first.job_id]


def test_one_that_never_expires_makes_the_queued_one_stay(queue: Driver, clock: Clock) -> None:
    first = submit(queue, {"key": "k"}, expires_seconds=60)
    submit(queue, {"key": "k"})
    clock.advance(60)

    assert [lease.job_id for lease in claim(queue)] == [first.job_id]


@pytest.mark.parametrize(
    ("unique", "why"),
    [
        ({"key": ""}, "1 to 500 characters"),
        ({"key": "x" * 10_000}, "1 to 500 characters"),
        ({"key": 7}, "1 to 500 characters"),
        ({"key": "a\x00b"}, "NUL|u0000"),
        ({"while": "running"}, 'not "queued", "open" or null'),
        ({"while": None}, "neither while nor period"),
        ({"then": "drop"}, 'not "keep" or "replace"'),
        ({"period": 0}, "period of its unique is not a number of seconds above zero"),
        ({"period": -1}, "period of its unique"),
        ({"period": "1"}, "period of its unique"),
        ({"debounce": 0}, "debounce of its unique"),
        ({"debounce": True}, "debounce of its unique"),
        ({"at_most": 5}, "at_most without a debounce"),
        ({"debounce": 5, "at_most": 4}, "at_most of its unique is shorter"),
        ({"while": None, "period": 5, "debounce": 5}, "debounce without while"),
        ({"keys": "a"}, 'a field "keys"'),
        ([], "not a JSON object"),
        ("queued", "not a JSON object"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_enqueued(queue: Driver, unique: Any, why: str) -> None:
    with pytest.raises(JobRejected, match=why):
        queue.run(verbs.enqueue_many([Submission("t"), Submission("t", unique=unique)]))

    assert queue.value("select count(*) from faultline.open_jobs") == 0
    assert queue.value("select count(*) from faultline.unique_keys") == 0


def test_a_debounce_is_the_delay(queue: Driver) -> None:
    with pytest.raises(JobRejected, match="has a debounce, which is its delay"):
        submit(queue, {"debounce": 5}, delay_seconds=3)


def test_keys_of_ended_jobs_are_pruned_and_those_of_others_are_not(queue: Driver, clock: Clock) -> None:
    submit(queue, {"key": "done"})
    queue.complete(*claim(queue))
    submit(queue, {"key": "throttled", "period": 7200})
    queue.complete(*claim(queue))
    submit(queue, {"key": "waits"})
    clock.advance(3601)

    assert queue.run(verbs.prune("unique_keys")) == 1
    assert queue.value("select array_agg(key order by key) from faultline.unique_keys") == ["throttled", "waits"]
    # An hour after its period.
    clock.advance(7201)
    assert queue.run(verbs.prune("unique_keys")) == 1
    assert queue.value("select key from faultline.unique_keys") == "waits"
    assert submit(queue, {"key": "done"}).created


def test_a_key_that_is_pruned_while_it_is_asked_for_is_written_again(sessions: Sessions, queue: Driver) -> None:
    pruner, asker = sessions.open(), sessions.open()
    submit(queue, {"key": "k"})
    queue.complete(*claim(queue))
    pruner.begin()
    pruner.run(verbs.prune("unique_keys", older_than_seconds=0))
    asked = asker.start(lambda session: submit(session, {"key": "k"}))
    sessions.wait_until_blocked(asker, asked)
    pruner.commit()
    made = asked.result()

    assert made.created
    assert queue.value("select job_id from faultline.unique_keys") == made.job_id
