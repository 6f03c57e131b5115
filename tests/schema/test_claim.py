from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from faultline.core.errors import JobRejected
from faultline.core.model import Bound, JobState, Settled, Submission
from faultline.store import verbs

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


def test_a_claim_raises_the_token_counts_the_attempt_and_sets_the_lease(queue: Driver) -> None:
    job_id = queue.enqueue(args={"n": 1}, lease_seconds=7.5, idempotency_key="k")

    (lease,) = queue.claim(worker="w")

    job = queue.job(job_id)
    assert (lease.job_id, lease.fencing_token, lease.attempt, lease.args) == (job_id, 1, 1, {"n": 1})
    assert lease.idempotency_key == "k"
    assert (job.state, job.owner, job.fencing_token, job.attempt) == (JobState.RUNNING, lease.owner, 1, 1)
    assert job.lease_expires_at is not None
    assert job.claimed_at is not None
    assert (job.lease_expires_at - job.claimed_at).total_seconds() == 7.5


def test_without_a_key_the_jobs_id_is_its_idempotency_key(queue: Driver) -> None:
    job_id = queue.enqueue()

    assert queue.claim_one().idempotency_key == str(job_id)


def test_the_most_urgent_comes_first_and_then_the_longest_due(queue: Driver, clock: Clock) -> None:
    late = queue.enqueue()
    clock.advance(1)
    later, urgent, relaxed = queue.enqueue(), queue.enqueue(priority=-5), queue.enqueue(priority=7)
    clock.advance(1)

    assert [queue.claim_one().job_id for _ in range(4)] == [urgent, late, later, relaxed]


def test_one_claim_walks_over_several_priorities_and_keeps_its_limit(queue: Driver) -> None:
    for priority in (3, 1, 2, 1, 3):
        queue.enqueue(priority=priority)

    first, rest = queue.claim(3), queue.claim(10)

    assert [lease.priority for lease in first] == [1, 1, 2]
    assert [lease.priority for lease in rest] == [3, 3]


def test_a_delayed_job_is_not_claimed_before_its_time(queue: Driver, clock: Clock) -> None:
    queue.enqueue(delay_seconds=60)

    clock.advance(59.9)
    assert queue.claim() == []
    clock.advance(0.1)
    assert len(queue.claim()) == 1


def test_delayed_jobs_of_an_urgent_priority_do_not_hide_due_ones_behind_them(queue: Driver) -> None:
    queue.run(verbs.enqueue_many([Submission("t", priority=-1, delay_seconds=3600)] * 50))
    due = queue.enqueue(priority=5)

    assert [lease.job_id for lease in queue.claim()] == [due]


def test_queues_are_apart(queue: Driver) -> None:
    queue.enqueue(queue="mail")

    assert queue.claim(queue="other") == []
    assert len(queue.claim(queue="mail")) == 1


def test_two_claimers_never_get_the_same_job(queue: Driver, sessions: Sessions) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 30))
    first, second = sessions.open(), sessions.open()

    first.begin()
    held = first.do(lambda q: q.claim(20))
    rest = second.do(lambda q: q.claim(20))
    first.commit()

    assert (len(held), len(rest)) == (20, 10)
    assert not {lease.job_id for lease in held} & {lease.job_id for lease in rest}


def test_a_large_claim_waits_for_another_of_its_queue_and_locks_none_of_its_jobs(queue: Driver, sessions: Sessions) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 100))
    first, second = sessions.open(), sessions.open()
    first.begin()
    held = first.do(lambda q: q.claim(50))
    second.begin()

    waiting = second.start(lambda q: q.claim(50))
    sessions.wait_until_blocked(second, waiting)
    first.commit()

    assert len(waiting.result(10)) == 50
    assert queue.complete(*held) == Settled()


@pytest.mark.parametrize("max_jobs", ["null", "0", "-5"])
def test_asking_for_no_jobs_gives_none(queue: Driver, max_jobs: str) -> None:
    queue.enqueue()

    assert queue.value(f"select count(*) from faultline.claim('default', 'w/1', {max_jobs})") == 0


@pytest.mark.parametrize(
    "args", ["""'{"a": 1e400}'""", """('{"a":' || repeat('[', 2000) || repeat(']', 2000) || '}')::jsonb"""]
)
def test_arguments_that_python_cannot_read_do_not_strand_the_batch(queue: Driver, args: str) -> None:
    queue.enqueue()
    odd = queue.value(f"select faultline.enqueue('t', {args})")
    queue.enqueue()

    leases = queue.claim()

    assert [lease.fault is not None for lease in leases] == [lease.job_id == odd for lease in leases]
    assert len(leases) == 3


def test_an_owner_is_needed(queue: Driver) -> None:
    with pytest.raises(JobRejected, match="owner"):
        queue.run(verbs.claim("default", owner="", max_jobs=1))


# Lower bounds


def test_a_bound_skips_what_lies_below_it_at_its_priority_only(queue: Driver, clock: Clock) -> None:
    old = [queue.enqueue(priority=p) for p in (0, 1)]
    clock.advance(10)
    new = [queue.enqueue(priority=p) for p in (0, 1)]
    bound = Bound(0, queue.job(new[0]).created_at)

    claimed = queue.claim(bounds=[bound])

    assert [lease.job_id for lease in claimed] == [new[0], old[1], new[1]]


def test_a_bound_lies_between_jobs_that_are_due_at_the_same_moment(queue: Driver) -> None:
    placed = queue.run(verbs.enqueue_many([Submission("t")] * 3))
    first, second, third = (one.job_id for one in placed)
    moment = queue.job(first).created_at

    assert [lease.job_id for lease in queue.claim(bounds=[Bound(0, moment, second)])] == [second, third]
    assert [lease.job_id for lease in queue.claim(bounds=[Bound(0, moment)])] == [first]


@pytest.mark.parametrize("priority", [-9, -1, 1, 4, 6, 9])
def test_a_priority_that_the_caller_does_not_know_is_found_between_its_bounds(queue: Driver, priority: int) -> None:
    known = queue.job(queue.enqueue(priority=0)).created_at
    job_id = queue.enqueue(priority=priority)
    bounds = [Bound(p, known + timedelta(hours=1)) for p in (5, 0, -5)]

    assert [lease.job_id for lease in queue.claim(bounds=bounds)] == [job_id]


def test_bounds_may_name_priorities_that_nobody_uses(queue: Driver) -> None:
    job_id = queue.enqueue()
    now = queue.job(job_id).created_at

    claimed = queue.claim(bounds=[Bound(p, now) for p in range(-20, 20)])

    assert [lease.job_id for lease in claimed] == [job_id]


@pytest.mark.parametrize("left", ["x", "1", "1 x", "nan nan", "1e999 1"])
def test_what_somebody_left_in_the_session_about_turns_is_ignored(queue: Driver, left: str) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 21))
    queue.connection.execute("select set_config('faultline.no_turns', %s, false)", (left,))

    assert len(queue.claim(21)) == 21


def test_a_login_that_holds_a_queues_turn_costs_each_session_little(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    """Advisory locks need no privilege. A session that waited in vain does not wait again for 1, 2, 4 … 32 s."""
    hostile = sessions.open()
    hostile.connection.execute("select pg_advisory_lock(faultline.claim_lock('default'))")
    now = "select extract(epoch from faultline.clock())"
    queue.run(verbs.enqueue_many([Submission("t")] * 300))
    pauses: list[float] = []

    for seconds in (0, 0.9, 0.2, 1.9, 0.2, 3.9, 0.2):
        clock.advance(seconds)
        assert len(queue.claim(21)) == 21
        until, pause = queue.value("show faultline.no_turns").split()
        pauses.append(float(pause))
        assert float(until) >= queue.value(now)
    hostile.close()
    clock.advance(8.1)
    queue.claim(21)

    assert pauses == [1, 1, 2, 2, 4, 4, 8]
    assert queue.value("show faultline.no_turns") == ""
