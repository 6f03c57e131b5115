"""Cancel, retry, recover, reconcile, prune: what people and upkeep do to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest

from faultline.core.errors import IllegalTransition, JobNotFound, JobRejected
from faultline.core.model import JobState, Reason, Settled, Submission
from faultline.store import verbs
from tests.driver import reasons

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


def test_a_queued_job_can_be_cancelled(queue: Driver) -> None:
    job_id = queue.enqueue()

    assert queue.run(verbs.cancel(job_id, "not needed")) is JobState.CANCELLED

    assert queue.job(job_id).last_error == "cancelled: not needed"
    assert queue.claim() == []
    (entry,) = queue.journal(job_id)
    assert (entry.event, entry.detail["was"], entry.detail["reason"]) == ("cancelled", "queued", "not needed")


def test_from_its_cancel_on_a_running_job_can_write_nothing(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.connection.execute("listen faultline")

    queue.run(verbs.cancel(job_id))

    assert reasons(queue.complete(lease)) == [Reason.NOT_RUNNING]
    assert reasons(queue.renew(lease)) == [Reason.NOT_RUNNING]
    (notice,) = queue.connection.notifies(timeout=0)
    assert str(job_id) in notice.payload


def test_cancelling_twice_is_as_good_as_once(queue: Driver) -> None:
    job_id = queue.enqueue()
    queue.run(verbs.cancel(job_id))

    assert queue.run(verbs.cancel(job_id)) is JobState.CANCELLED

    assert len(queue.journal(job_id)) == 1


@pytest.mark.parametrize("ending", ["succeeded", "failed"])
def test_a_job_that_has_ended_cannot_be_cancelled(queue: Driver, ending: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.complete(lease) if ending == "succeeded" else queue.fail(lease, then="fail")

    with pytest.raises(IllegalTransition, match=f"has {ending} and cannot be cancelled"):
        queue.run(verbs.cancel(job_id))

    assert queue.state(job_id) == ending


def test_a_job_that_is_cancelled_while_it_completes_ends_one_way_only(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    operator = sessions.open()

    operator.begin()
    operator.do(lambda q: q.run(verbs.cancel(job_id)))
    assert queue.complete(lease) == Settled(busy=[lease])
    operator.commit()

    assert reasons(queue.complete(lease)) == [Reason.NOT_RUNNING]
    assert queue.state(job_id) is JobState.CANCELLED
    assert queue.broken_invariants() == []


@pytest.mark.parametrize("verb", [verbs.cancel, verbs.retry])
def test_an_unknown_job_is_said_to_be_unknown(queue: Driver, verb: object) -> None:
    with pytest.raises(JobNotFound, match="there is no job"):
        queue.run(verb(uuid4()))  # type: ignore[operator]


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_a_retried_job_has_all_its_attempts_again_but_never_an_old_token(queue: Driver, ending: str) -> None:
    job_id = queue.enqueue(max_attempts=1)
    first = queue.claim_one()
    queue.fail(first, then="fail" if ending == "failed" else "cancel")

    assert queue.run(verbs.retry(job_id)) is JobState.QUEUED

    second = queue.claim_one()
    assert (second.attempt, second.fencing_token) == (1, 2)
    assert reasons(queue.complete(first)) == [Reason.TOKEN_MISMATCH]
    assert queue.complete(second) == Settled()
    assert [entry.event for entry in queue.journal(job_id)][1] == "retried"


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
def test_only_a_job_that_ended_badly_can_be_retried(queue: Driver, state: str) -> None:
    job_id = queue.enqueue()
    if state != "queued":
        lease = queue.claim_one()
        if state == "succeeded":
            queue.complete(lease)

    with pytest.raises(IllegalTransition, match=state):
        queue.run(verbs.retry(job_id))

    assert queue.state(job_id) == state


# recover


def test_recover_voids_every_lease_and_grants_only_tokens_above_the_floor(queue: Driver) -> None:
    ids = [queue.enqueue(), queue.enqueue(), queue.enqueue()]
    held = queue.claim_one()
    queue.fail(queue.claim_one(), then="fail")

    assert queue.run(verbs.recover(500)) == (500, 1, 1)

    assert [queue.state(job_id) for job_id in ids] == ["queued", "failed", "queued"]
    assert reasons(queue.complete(held)) == [Reason.TOKEN_MISMATCH]
    queue.run(verbs.retry(ids[1]))
    granted = {lease.job_id: (lease.fencing_token, lease.attempt) for lease in queue.claim()}
    assert granted == dict.fromkeys(ids, (501, 1))
    assert queue.broken_invariants() == []


def test_recover_chooses_a_floor_that_no_job_can_have_reached(queue: Driver) -> None:
    """A token grows by one with every claim of its job, and no job is claimed a million times a second."""
    queue.enqueue()
    queue.release(queue.claim_one())
    microseconds = queue.value("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")

    floor, lifted, requeued = queue.run(verbs.recover())

    assert (lifted, requeued) == (0, 0)
    assert microseconds <= floor <= microseconds + 60_000_000
    assert queue.claim_one().fencing_token == floor + 1
    assert floor + 1 < queue.run(verbs.recover())[0] <= floor + 60_000_000


@pytest.mark.parametrize("ahead", [0, 1, 10**12, 3 * 10**17, 4 * 10**18])
def test_two_recovers_of_the_same_state_choose_different_floors(queue: Driver, ahead: int) -> None:
    """As when one backup is restored, recovered, worked with and lost, and then restored and recovered again."""
    floors = []
    queue.enqueue()
    queue.run(verbs.recover(ahead) if ahead else verbs.recover())
    for recovers in (2, 1):  # the history that is lost has recovered once more
        with queue.connection.transaction(force_rollback=True):
            floors.append([queue.run(verbs.recover())[0] for _ in range(recovers)][-1])
            assert queue.claim_one().fencing_token == floors[-1] + 1

    lost, kept = floors
    assert kept > lost + 1 > ahead


def test_recover_does_not_hold_others_up_behind_a_transaction_that_stays_open(queue: Driver, sessions: Sessions) -> None:
    """Everybody who writes waits behind a recover that waits for its lock."""
    holder = sessions.open()
    holder.begin()
    holder.do(lambda q: q.enqueue())
    queue.connection.execute("set statement_timeout = '5s'")
    queue.connection.execute("set lock_timeout = 0")

    with pytest.raises(psycopg.errors.LockNotAvailable):
        queue.connection.execute("select faultline.recover()")

    holder.commit()
    with queue.connection.transaction():
        queue.connection.execute("select faultline.recover()")
        assert queue.value("show lock_timeout") == "0"


def test_a_job_that_was_lost_and_is_sent_again_starts_above_the_floor(queue: Driver) -> None:
    job_id = queue.enqueue()
    assert queue.claim_one().fencing_token == 1
    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute("delete from faultline.open_jobs")  # as a failover that lost it

    queue.run(verbs.recover(500))
    queue.enqueue(id=job_id)

    assert queue.claim_one().fencing_token == 501


def test_recover_never_lowers_a_token(queue: Driver) -> None:
    waiting, running = queue.enqueue(), queue.enqueue(priority=-1)
    queue.run(verbs.recover(1000))
    assert queue.claim_one().job_id == running

    assert queue.run(verbs.recover(5)) == (1000, 0, 1)

    assert queue.job(running).fencing_token == 1001
    assert {lease.job_id: lease.fencing_token for lease in queue.claim()} == {waiting: 1001, running: 1002}


def test_recover_reads_the_running_jobs_and_no_others(queue: Driver) -> None:
    """The world waits for it: it must take as long with ten million waiting jobs as with none."""
    queue.connection.execute(
        "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
        " queue, task, args) select gen_random_uuid(), now(), now(), 30, 0, 5, true, 'many', 't', '{}'"
        " from generate_series(1, 30000)"
    )
    queue.enqueue()
    queue.claim_one()
    pages = queue.value("select pg_relation_size('faultline.open_jobs') / 8192")
    assert pages > 500

    queue.connection.execute("begin")
    before = blocks_read(queue)
    queue.run(verbs.recover())

    assert blocks_read(queue) - before < pages / 2


def blocks_read(queue: Driver) -> int:
    """By this session, in statistics that it has not reported yet."""
    return int(
        queue.value(
            "select sum(pg_stat_get_xact_blocks_fetched(oid)) from pg_class where relnamespace = 'faultline'::regnamespace"
        )
    )


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_claim_that_waited_for_recover_grants_no_token_below_the_floor(
    queue: Driver, sessions: Sessions, isolation: str
) -> None:
    queue.enqueue()
    operator, worker = sessions.open(), sessions.open()
    worker.do(lambda q: q.claim(queue="other"))  # its plans are made
    operator.begin()
    operator.do(lambda q: q.run(verbs.recover(500)))
    worker.begin(isolation)
    answer = worker.start(lambda q: q.claim_one())
    sessions.wait_until_blocked(worker, answer)

    operator.commit()

    if isolation == "read committed":
        assert answer.result().fencing_token == 501
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            answer.result()


def test_a_claim_with_an_old_snapshot_grants_no_token_below_the_floor(queue: Driver, sessions: Sessions) -> None:
    queue.enqueue()
    worker = sessions.open()
    worker.begin("repeatable read")
    worker.connection.execute("select count(*) from faultline.jobs")

    queue.run(verbs.recover(500))

    with pytest.raises(psycopg.errors.SerializationFailure):
        worker.do(lambda q: q.claim_one())


def test_recover_voids_the_lease_of_a_claim_that_commits_meanwhile(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    worker, operator = sessions.open(), sessions.open()
    worker.begin()
    lease = worker.do(lambda q: q.claim_one())
    operator.connection.execute("set lock_timeout = '30s'")
    answer = operator.start(lambda q: q.run(verbs.recover(500)))
    sessions.wait_until_blocked(operator, answer)

    worker.commit()

    assert answer.result() == (500, 1, 1)
    assert queue.state(job_id) is JobState.QUEUED
    assert reasons(queue.complete(lease)) == [Reason.TOKEN_MISMATCH]


@pytest.mark.parametrize("floor", [-1, 2**63 - 1])
def test_a_floor_that_leaves_tokens_no_room_to_grow_is_refused(queue: Driver, floor: int) -> None:
    job_id = queue.enqueue()

    with pytest.raises(JobRejected, match="floor"):
        queue.run(verbs.recover(floor))

    assert queue.job(job_id).fencing_token == 0


def test_recover_waits_for_a_fenced_transaction_and_does_not_deadlock_with_it(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    worker, operator = sessions.open(), sessions.open()

    worker.begin()
    worker.do(lambda q: q.run(verbs.fence(lease)))
    operator.connection.execute("set lock_timeout = '30s'")
    answer = operator.start(lambda q: q.run(verbs.recover()))
    sessions.wait_until_blocked(operator, answer)
    assert worker.do(lambda q: q.complete(lease)) == Settled()
    worker.commit()

    assert answer.result()[1:] == (0, 0)
    assert queue.state(job_id) is JobState.SUCCEEDED


# reconcile


def test_an_open_row_of_a_job_that_is_done_is_closed(queue: Driver) -> None:
    """As after a restore that brought the open row back: the ledger is right."""
    job_id = queue.enqueue()
    other = queue.enqueue()
    with queue.connection.transaction():
        queue.connection.execute("set local faultline.verb = 'complete'")
        queue.connection.execute(
            "insert into faultline.ledger select id, 7, now(), now(), now(), 0, 1, 5, 'w/1', queue, task, null, args, null"
            " from faultline.open_jobs where id = %s",
            (job_id,),
        )
    assert queue.broken_invariants() == ["a_job_is_open_or_done"]

    assert queue.run(verbs.reconcile()) == [job_id]

    assert queue.broken_invariants() == []
    assert (queue.state(job_id), queue.state(other)) == (JobState.SUCCEEDED, JobState.QUEUED)
    assert [entry.event for entry in queue.journal(job_id)] == ["reconciled"]


# prune


def test_pruning_forgets_what_is_old_enough_in_small_bites(queue: Driver, clock: Clock) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 5))
    leases = queue.claim()
    queue.run(verbs.step(leases[0], "s", 1))
    queue.complete(*leases)
    clock.advance(100)
    queue.enqueue()
    queue.complete(queue.claim_one())

    bites = [queue.run(verbs.prune("ledger", older_than_seconds=60, max_rows=3)) for _ in range(3)]

    assert bites == [3, 2, 0]
    assert queue.value("select count(*) from faultline.ledger") == 1
    assert queue.value("select count(*) from faultline.steps") == 0
    assert queue.broken_invariants() == []


def test_pruning_failed_jobs_leaves_the_others_alone(queue: Driver, clock: Clock) -> None:
    ids = [queue.enqueue() for _ in range(4)]
    queue.fail(queue.claim_one(), then="fail")
    queue.run(verbs.cancel(ids[1]))
    queue.claim_one()
    clock.advance(100)

    assert queue.run(verbs.prune("failed", older_than_seconds=60)) == 2

    assert {queue.state(ids[2]), queue.state(ids[3])} == {JobState.RUNNING, JobState.QUEUED}


def test_a_key_is_never_pruned_while_its_job_is_open(queue: Driver, clock: Clock) -> None:
    queue.enqueue(idempotency_key="open")
    queue.enqueue("done", idempotency_key="done", priority=-1)
    queue.complete(queue.claim_one())
    clock.advance(1000)

    assert queue.run(verbs.prune("keys", older_than_seconds=60)) == 1

    assert queue.value("select array_agg(key) from faultline.keys") == ["open"]


def test_a_key_outlives_the_ledger_row_of_its_job(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(idempotency_key="k")
    queue.complete(queue.claim_one())
    clock.advance(1000)
    queue.run(verbs.prune("ledger", older_than_seconds=60))

    (placed,) = queue.run(verbs.enqueue_many([Submission("t", idempotency_key="k")]))

    assert (placed.job_id, placed.created) == (job_id, False)


@pytest.mark.parametrize("ending", ["failed", "succeeded"])
def test_an_id_that_is_enqueued_again_after_it_was_pruned_never_sees_an_old_token(
    queue: Driver, clock: Clock, ending: str
) -> None:
    job_id = queue.enqueue(id=uuid4())
    queue.release(queue.claim_one())
    last = queue.claim_one()
    queue.complete(last) if ending == "succeeded" else queue.fail(last, then="fail")
    clock.advance(1000)
    queue.run(verbs.prune("ledger", older_than_seconds=60))
    queue.run(verbs.prune("failed", older_than_seconds=60))

    assert queue.enqueue(id=job_id) == job_id

    assert queue.claim_one().fencing_token == 3
    assert queue.broken_invariants() == []


@pytest.mark.parametrize("forgotten_by", ["failed", "ledger"])
def test_an_id_that_is_enqueued_again_beside_its_prune_never_sees_an_old_token(
    queue: Driver, sessions: Sessions, clock: Clock, forgotten_by: str
) -> None:
    job_id = queue.enqueue(id=uuid4())
    for _ in range(4):
        queue.release(queue.claim_one())
    last = queue.claim_one()
    queue.fail(last, then="fail") if forgotten_by == "failed" else queue.complete(last)
    clock.advance(1000)
    upkeep, client = sessions.open(), sessions.open()
    upkeep.begin()
    upkeep.do(lambda q: q.run(verbs.prune(forgotten_by, older_than_seconds=60)))
    again = client.start(lambda q: q.run(verbs.enqueue_many([Submission("t", id=job_id)])))
    if forgotten_by == "failed":
        sessions.wait_until_blocked(client, again)
    else:
        assert [placed.created for placed in again.result()] == [False]  # still in the ledger, for all that it sees

    upkeep.commit()
    if forgotten_by == "ledger":
        queue.enqueue(id=job_id)

    again.result()
    assert queue.claim_one().fencing_token == 6
    assert queue.broken_invariants() == []


def test_an_id_that_is_enqueued_again_beside_recover_never_sees_an_old_token(queue: Driver, sessions: Sessions) -> None:
    """A lossy failover forgot the job; its client sends it again while the operator recovers."""
    operator, client = sessions.open(), sessions.open()
    operator.begin()
    operator.do(lambda q: q.run(verbs.recover(500)))
    again = client.start(lambda q: q.enqueue(id=uuid4()))
    sessions.wait_until_blocked(client, again)

    operator.commit()

    again.result()
    assert queue.claim_one().fencing_token == 501


def test_closing_an_open_row_that_the_ledger_knows_forgets_no_token(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(id=uuid4())
    for _ in range(9):
        queue.release(queue.claim_one())
    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute(
            "insert into faultline.ledger select id, 7, now(), now(), now(), 0, 1, 5, 'w/1', queue, task, null, args, null"
            " from faultline.open_jobs"
        )
    queue.run(verbs.reconcile())
    clock.advance(1000)
    queue.run(verbs.prune("ledger", older_than_seconds=60))

    queue.enqueue(id=job_id)

    assert queue.claim_one().fencing_token == 10


def test_pruning_the_journal(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.fail(queue.claim_one())
    clock.advance(1000)

    assert queue.run(verbs.prune("journal", older_than_seconds=60)) == 1


def test_pruning_leaves_locked_rows_for_the_next_time(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    queue.run(verbs.enqueue_many([Submission("t")] * 3))
    queue.complete(*queue.claim())
    clock.advance(1000)
    reader = sessions.open()
    reader.begin()
    reader.connection.execute("select from faultline.ledger limit 1 for update")

    assert queue.run(verbs.prune("ledger", older_than_seconds=60)) == 2


@pytest.mark.parametrize(("what", "age"), [("everything", 60), ("ledger", -1)])
def test_pruning_what_makes_no_sense_is_refused(queue: Driver, what: str, age: float) -> None:
    with pytest.raises(JobRejected):
        queue.run(verbs.prune(what, older_than_seconds=age))
