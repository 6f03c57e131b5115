from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from faultline.core.errors import JobRejected, KeyConflict
from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.translation import translated

if TYPE_CHECKING:
    from tests.driver import Driver, Sessions


def test_plain_sql_is_a_client_too(queue: Driver) -> None:
    job_id = queue.value("""select faultline.enqueue('mail', '{"to": "ada"}', queue => 'post', priority => -5)""")

    job = queue.job(job_id)
    assert (job.state, job.queue, job.task, job.priority, job.args) == ("queued", "post", "mail", -5, {"to": "ada"})
    assert (job.attempt, job.max_attempts, job.fencing_token) == (0, 5, 0)


def test_a_delay_is_counted_from_the_databases_time(queue: Driver) -> None:
    job_id = queue.value("select faultline.enqueue('t', delay => '90 seconds')")

    job = queue.job(job_id)
    assert job.next_run_at is not None
    assert (job.next_run_at - job.created_at).total_seconds() == 90


def test_bulk_answers_in_the_order_given(queue: Driver) -> None:
    submissions = [Submission(f"task-{n}") for n in range(1000)]

    placed = queue.run(verbs.enqueue_many(submissions))

    tasks: dict[UUID, str] = dict(queue.connection.execute("select id, task from faultline.open_jobs").fetchall())
    assert [tasks[place.job_id] for place in placed] == [f"task-{n}" for n in range(1000)]
    assert all(place.created for place in placed)


def test_ids_made_by_the_database_are_in_the_order_of_time(queue: Driver) -> None:
    placed = queue.run(verbs.enqueue_many([Submission("t")] * 1000))

    ids = [place.job_id for place in placed]
    assert ids == sorted(ids)
    assert {job_id.version for job_id in ids} == {7}
    assert len(set(ids)) == 1000


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"task": ""}, "it names no task"),
        ({}, "it names no task"),
        ({"task": "x" * 201}, "longer than 200"),
        ({"task": "t", "queue": ""}, "the name of its queue is empty"),
        ({"task": "t", "queue": "q" * 101}, "longer than 100"),
        ({"task": "t", "queue": " "}, "white space"),
        ({"task": "t", "queue": "a "}, "white space"),
        ({"task": "t", "queue": "a\nb"}, "control characters"),
        ({"task": "t", "args": [1]}, "no JSON object"),
        ({"task": "t", "args": {"x": "y" * 1_100_000}}, "more than the limit of 1048576"),
        ({"task": "t", "priority": 1_000_000_000_000}, "priority lies outside"),
        ({"task": "t", "priority": 0.5}, "no whole number"),
        ({"task": "t", "max_attempts": 0}, "max_attempts lies outside"),
        ({"task": "t", "max_attempts": 1.5}, "no whole number"),
        ({"task": "t", "lease_seconds": 0}, "lease lies outside"),
        ({"task": "t", "delay_seconds": -1}, "delay is negative"),
        ({"task": "t", "delay_seconds": 1e12}, "longer than ten years"),
        ({"task": "t", "delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z"}, "both a delay and a run_at"),
        ({"task": "t", "run_at": "infinity"}, "no time with a time zone"),
        ({"task": "t", "run_at": "2030-01-01T00:00:00"}, "no time with a time zone"),
        ({"task": "t", "run_at": "0044-03-15 00:00:00+00"}, "outside the years 1970 to 9998"),
        ({"task": "t", "run_at": "20000-01-01 00:00:00Z"}, "outside the years 1970 to 9998"),
        ({"task": "t", "idempotency_key": ""}, "idempotency_key is empty"),
        ({"task": "t", "idempotency_key": "k" * 501}, "longer than 500"),
    ],
)
def test_one_bad_job_in_a_bulk_is_named_and_nothing_is_enqueued(queue: Driver, job: dict[str, object], why: str) -> None:
    jobs = [{"task": "good"}] * 1000
    jobs[616] = job  # type: ignore[assignment]

    with pytest.raises(JobRejected, match=f"job 617 of 1000 .*{why}"), translated():
        queue.connection.execute("select from faultline.enqueue_many(%s)", (Jsonb(jobs),))

    assert queue.value("select count(*) from faultline.jobs") == 0


def test_a_submission_that_is_no_array_is_refused(queue: Driver) -> None:
    with pytest.raises(JobRejected, match="array"), translated():
        queue.connection.execute("""select from faultline.enqueue_many('{"task": "t"}')""")


def test_the_size_limit_is_the_databases_and_can_be_changed_there(queue: Driver) -> None:
    queue.connection.execute("update faultline.settings set args_bytes_max = 2000")

    queue.enqueue(args={"x": "y" * 1900})
    with pytest.raises(JobRejected, match="limit of 2000"):
        queue.enqueue(args={"x": "y" * 2000})


def test_a_number_that_is_long_only_when_written_out_counts_as_written_out(queue: Driver) -> None:
    with pytest.raises(JobRejected, match="more than the limit"), translated():
        queue.connection.execute("""select faultline.enqueue('t', ('{"x": [' || repeat('1e9999,', 200) || '1]}')::jsonb)""")


# Keys


def test_the_same_key_gives_the_same_job(queue: Driver) -> None:
    first = queue.enqueue(args={"n": 1}, idempotency_key="order:1")

    assert queue.enqueue(args={"n": 1}, idempotency_key="order:1") == first
    assert queue.value("select count(*) from faultline.jobs") == 1


@pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled"])
def test_the_same_key_gives_the_same_job_after_it_has_ended(queue: Driver, ending: str) -> None:
    first = queue.enqueue(idempotency_key="order:1")
    lease = queue.claim_one()
    if ending == "succeeded":
        queue.complete(lease)
    else:
        queue.fail(lease, then="fail" if ending == "failed" else "cancel")

    assert queue.enqueue(idempotency_key="order:1") == first
    assert queue.state(first) == ending


@pytest.mark.parametrize(("task", "args"), [("t", {"n": 2}), ("other", {"n": 1})])
def test_the_same_key_with_another_task_or_other_args_is_refused(queue: Driver, task: str, args: dict[str, int]) -> None:
    first = queue.enqueue("t", {"n": 1}, idempotency_key="order:1")

    with pytest.raises(KeyConflict, match="belongs to a job with another task or other arguments"):
        queue.enqueue(task, args, idempotency_key="order:1")

    assert queue.value("select array_agg(id) from faultline.jobs") == [first]


def test_a_key_used_twice_in_one_bulk_makes_one_job(queue: Driver) -> None:
    same = Submission("t", idempotency_key="k")

    placed = queue.run(verbs.enqueue_many([same, Submission("t"), same]))

    assert placed[0].job_id == placed[2].job_id != placed[1].job_id
    assert [place.created for place in placed] == [True, True, False]


def test_a_conflicting_key_in_a_bulk_takes_everything_back(queue: Driver) -> None:
    queue.enqueue(args={"n": 1}, idempotency_key="k")

    with pytest.raises(KeyConflict, match="job 3 "):
        queue.run(verbs.enqueue_many([Submission("t"), Submission("t"), Submission("t", idempotency_key="k")]))

    assert queue.value("select count(*) from faultline.jobs") == 1


def test_twenty_submitters_with_one_key_make_one_job(queue: Driver, sessions: Sessions) -> None:
    submitters = [sessions.open() for _ in range(20)]

    answers = [s.start(lambda q: q.enqueue(args={"n": 1}, idempotency_key="order:1")) for s in submitters]

    assert len({answer.result() for answer in answers}) == 1
    assert queue.value("select count(*) from faultline.jobs") == 1


def test_who_loses_the_race_for_a_key_waits_and_gets_the_winners_job(queue: Driver, sessions: Sessions) -> None:
    winner, loser = sessions.open(), sessions.open()

    winner.begin()
    first = winner.do(lambda q: q.enqueue(idempotency_key="k"))
    second = loser.start(lambda q: q.enqueue(idempotency_key="k"))
    sessions.wait_until_blocked(loser, second)
    winner.commit()

    assert second.result() == first
    assert queue.value("select count(*) from faultline.jobs") == 1


def test_when_the_winner_of_a_key_rolls_back_the_loser_gets_a_new_job(queue: Driver, sessions: Sessions) -> None:
    winner, loser = sessions.open(), sessions.open()

    winner.begin()
    first = winner.do(lambda q: q.enqueue(idempotency_key="k"))
    second = loser.start(lambda q: q.enqueue(idempotency_key="k"))
    sessions.wait_until_blocked(loser, second)
    winner.rollback()

    assert second.result() != first
    assert queue.value("select array_agg(id) from faultline.jobs") == [second.result()]


def test_bulks_with_the_same_keys_in_opposite_order_do_not_deadlock(queue: Driver, sessions: Sessions) -> None:
    """Stopped after its first key, each would hold what the other wants next, if keys were taken in the order given."""
    forward = [Submission("t", idempotency_key=f"k{n}") for n in range(200)]
    gate = sessions.open()
    gate.begin()
    gate.do(lambda q: q.enqueue(idempotency_key="k100"))

    one, two = sessions.open(), sessions.open()
    first = one.start(lambda q: q.run(verbs.enqueue_many(forward)))
    second = two.start(lambda q: q.run(verbs.enqueue_many(forward[::-1])))
    sessions.wait_until_blocked(one, first)
    sessions.wait_until_blocked(two, second)
    gate.commit()

    assert {place.job_id for place in first.result()} == {place.job_id for place in second.result()}
    assert queue.value("select count(*) from faultline.jobs") == 200


# Ids: a lost answer


def test_a_submission_sent_again_with_its_id_makes_one_job(queue: Driver) -> None:
    job_id = uuid4()

    assert queue.enqueue(args={"n": 1}, id=job_id) == job_id
    assert queue.enqueue(args={"n": 1}, id=job_id) == job_id
    assert queue.value("select count(*) from faultline.jobs") == 1


def test_a_submission_sent_again_after_its_job_has_finished_does_not_run_it_again(queue: Driver) -> None:
    job_id = queue.enqueue(id=uuid4())
    queue.complete(queue.claim_one())

    (placed,) = queue.run(verbs.enqueue_many([Submission("t", id=job_id)]))

    assert (placed.job_id, placed.created) == (job_id, False)
    assert queue.state(job_id) is JobState.SUCCEEDED
    assert queue.claim() == []


def test_a_submission_sent_again_while_its_job_is_completing_does_not_run_it_again(
    queue: Driver, sessions: Sessions
) -> None:
    """The order that a look into the ledger *before* the insert gets wrong: the job finishes between look and insert."""
    job_id = queue.enqueue(id=uuid4())
    lease = queue.claim_one()
    worker, client = sessions.open(), sessions.open()

    worker.begin()
    worker.do(lambda q: q.complete(lease))
    again = client.start(lambda q: q.enqueue(id=job_id))
    sessions.wait_until_blocked(client, again)
    worker.commit()

    assert again.result() == job_id
    assert queue.state(job_id) is JobState.SUCCEEDED
    assert queue.broken_invariants() == []


@pytest.mark.parametrize("second", [Submission("a", id=UUID(int=7)), Submission("b", id=UUID(int=7))])
def test_an_id_stands_once_in_a_submission(queue: Driver, second: Submission) -> None:
    with pytest.raises(JobRejected, match="the same id to two jobs"):
        queue.run(verbs.enqueue_many([Submission("a", id=UUID(int=7)), second]))

    assert queue.value("select count(*) from faultline.jobs") == 0


def test_an_id_that_a_known_key_leads_away_from_is_not_lent_to_another_job(queue: Driver) -> None:
    queue.enqueue("a", idempotency_key="k")

    with pytest.raises(JobRejected, match="the same id to two jobs"):
        queue.run(
            verbs.enqueue_many([Submission("a", id=UUID(int=7), idempotency_key="k"), Submission("b", id=UUID(int=7))])
        )


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_id_is_refused_where_a_finished_job_could_not_be_seen(queue: Driver, sessions: Sessions, level: str) -> None:
    """The look into the ledger needs a fresh snapshot; such a transaction has only its old one."""
    job_id = queue.enqueue(id=uuid4())
    client = sessions.open()
    client.begin(level)
    client.connection.execute("select 1 from faultline.settings")
    queue.complete(queue.claim_one())

    with pytest.raises(JobRejected, match="only in READ COMMITTED"):
        client.do(lambda q: q.enqueue(id=job_id))

    client.rollback()
    client.begin(level)
    client.do(lambda q: q.enqueue())
    client.commit()
    assert queue.broken_invariants() == []


def test_the_same_id_with_other_args_is_refused(queue: Driver) -> None:
    job_id = queue.enqueue(args={"n": 1}, id=uuid4())

    with pytest.raises(KeyConflict, match="its id belongs to a job"):
        queue.enqueue(args={"n": 2}, id=job_id)
    queue.complete(queue.claim_one())
    with pytest.raises(KeyConflict, match="its id belongs to a job"):
        queue.enqueue(args={"n": 2}, id=job_id)


def test_an_id_of_a_job_that_kept_no_args_is_known_by_its_task(queue: Driver) -> None:
    job_id = queue.enqueue(args={"n": 1}, id=uuid4(), keep_args=False)
    queue.complete(queue.claim_one())

    assert queue.job(job_id).args is None
    assert queue.enqueue(args={"n": 1}, id=job_id) == job_id
    with pytest.raises(KeyConflict):
        queue.enqueue("other", {"n": 1}, id=job_id)


def test_bulks_with_the_same_ids_in_opposite_order_do_not_deadlock(queue: Driver, sessions: Sessions) -> None:
    forward = [Submission("t", id=UUID(int=n + 1)) for n in range(200)]
    gate = sessions.open()
    gate.begin()
    gate.do(lambda q: q.enqueue(id=UUID(int=100)))

    one, two = sessions.open(), sessions.open()
    first = one.start(lambda q: q.run(verbs.enqueue_many(forward)))
    second = two.start(lambda q: q.run(verbs.enqueue_many(forward[::-1])))
    sessions.wait_until_blocked(one, first)
    sessions.wait_until_blocked(two, second)
    gate.commit()

    assert sum(place.created for place in first.result() + second.result()) == 199
    assert queue.value("select count(*) from faultline.jobs") == 200


def test_a_fresh_submission_has_no_keys(queue: Driver) -> None:
    jobs = Jsonb([{"task": "t", "idempotency_key": "k"}])

    with pytest.raises(JobRejected, match="no idempotency keys"), translated():
        queue.connection.execute("select from faultline.enqueue_many(%s, fresh => true)", (jobs,))

    assert queue.value("select count(*) from faultline.jobs") == 0


# Durability and wake-ups


@pytest.mark.parametrize(("before", "after"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_an_enqueue_is_durable_where_the_sessions_default_is_not(queue: Driver, before: str, after: str) -> None:
    queue.connection.execute("select set_config('synchronous_commit', %s, false)", (before,))

    with queue.connection.transaction():
        queue.enqueue()
        assert queue.value("show synchronous_commit") == after

    assert queue.value("show synchronous_commit") == before


def test_everyone_is_woken_by_an_enqueue_only_when_somebody_sleeps(queue: Driver) -> None:
    queue.enqueue()  # the first of a session takes longer, and jobs that took long are told of
    queue.connection.execute("listen faultline")
    queue.connection.execute("select faultline.beat('w', 'host', 1, '0', '{default}', '{}')")
    queue.enqueue()
    assert list(queue.connection.notifies(timeout=0)) == []

    queue.connection.execute("select faultline.beat('w', 'host', 1, '0', '{default}', '{default}')")
    queue.enqueue(queue="other")
    queue.enqueue(priority=-3)

    (notice,) = queue.connection.notifies(timeout=0)
    assert '"queue" : "default", "priority" : -3' in notice.payload


def test_a_job_that_will_appear_late_wakes_even_who_is_awake(queue: Driver) -> None:
    """It becomes visible at commit, below the bound of workers that have claimed past its time meanwhile."""
    queue.connection.execute("listen faultline")
    queue.connection.execute("select faultline.beat('w', 'host', 1, '0', '{default}', '{}')")

    queue.run(verbs.enqueue_many([Submission("t")], appears_late=True))

    assert len(list(queue.connection.notifies(timeout=0))) == 1


def test_a_transaction_that_has_written_before_is_known_to_go_on(queue: Driver) -> None:
    """All in one message to the server, so that no time passes by which it could be told from a single statement."""
    queue.connection.execute("listen faultline")
    queue.connection.execute("create table orders (n integer)")
    queue.connection.execute("select faultline.beat('w', 'host', 1, '0', '{default}', '{}')")

    queue.connection.execute(
        "begin; insert into orders values (1); select faultline.enqueue('t'); select faultline.enqueue('t'); commit"
    )

    assert len(list(queue.connection.notifies(timeout=0))) == 1


def test_nul_characters_are_refused_by_the_database_too(queue: Driver) -> None:
    with pytest.raises(psycopg.Error, match="unsupported Unicode escape"):
        queue.connection.execute("""select faultline.enqueue('t', '{"x": "\\u0000"}')""")
