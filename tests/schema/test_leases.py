"""What may be written under a lease: completions and renewals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from faultline.core.errors import JobRejected
from faultline.core.model import JobState, Settled
from faultline.store import verbs
from faultline.store.translation import translated
from tests.driver import reasons
from tests.schema.writes import VERBS

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


# complete


@pytest.mark.parametrize("results", ['{"total": 5}', "[]", "[1, 2]", "5"])
def test_results_that_do_not_fit_the_leases_change_nothing(queue: Driver, results: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    with pytest.raises(JobRejected, match="one result for each lease"), translated():
        queue.connection.execute(
            "select faultline.complete(array[%s]::uuid[], array[1], array[%s], %s::jsonb)", (job_id, lease.owner, results)
        )

    assert queue.state(job_id) is JobState.RUNNING


def test_completing_moves_the_job_into_the_ledger_once(queue: Driver) -> None:
    job_id = queue.enqueue(args={"n": 1}, idempotency_key="k")
    lease = queue.claim_one()

    assert queue.complete(lease, result={"ok": True}) == Settled()

    job = queue.job(job_id)
    assert (job.state, job.fencing_token, job.owner) == (JobState.SUCCEEDED, 1, lease.owner)
    assert (job.args, job.result, job.idempotency_key, job.attempt) == ({"n": 1}, {"ok": True}, "k", 1)
    assert queue.value("select count(*) from faultline.open_jobs") == 0
    assert queue.value("select count(*) from faultline.ledger") == 1
    assert queue.journal(job_id) == []


def test_completing_again_after_a_lost_answer_is_no_refusal(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.complete(lease, result=1)

    assert queue.complete(lease, result=2) == Settled()

    assert queue.job(job_id).result == 1
    assert queue.journal(job_id) == []


def test_renewing_what_was_completed_under_the_same_lease_is_no_refusal(queue: Driver) -> None:
    """The job completed itself in its own transaction, and its task goes on."""
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.complete(lease)

    assert queue.renew(lease) == Settled()
    assert reasons(queue.renew(replace(lease, owner="another/1"))) == ["token_mismatch"]
    assert reasons(queue.mark_started(lease)) == ["not_running"]

    assert queue.refusals(job_id) == [("renew", "token_mismatch"), ("mark_started", "not_running")]


def test_a_late_completion_is_accepted_while_nobody_else_was_granted_the_job(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    clock.advance(3600)

    assert queue.complete(lease) == Settled()
    assert queue.state(job_id) is JobState.SUCCEEDED


def test_results_stay_with_their_jobs_when_some_of_a_batch_are_stale(queue: Driver) -> None:
    for _ in range(6):
        queue.enqueue()
    leases = queue.claim()
    queue.release(leases[1], leases[4])

    settled = queue.run(verbs.complete(leases, [f'{{"n": {n}}}' for n in range(6)]))

    assert {refusal.lease for refusal in settled.stale} == {leases[1], leases[4]}
    done = {lease.job_id: queue.job(lease.job_id).result for lease in leases}
    assert list(done.values()) == [{"n": 0}, None, {"n": 2}, {"n": 3}, None, {"n": 5}]


def test_a_locked_row_is_reported_as_busy_and_holds_nobody_up(queue: Driver, sessions: Sessions) -> None:
    for _ in range(3):
        queue.enqueue()
    leases = queue.claim()
    holder = sessions.open()
    holder.begin()
    holder.do(lambda q: q.run(verbs.fence(leases[1])))

    settled = queue.complete(*leases)
    holder.rollback()

    assert (settled.stale, settled.busy) == ([], [leases[1]])
    assert queue.journal(leases[1].job_id) == []
    assert queue.complete(leases[1]) == Settled()
    assert queue.value("select count(*) from faultline.ledger") == 3


def test_a_task_may_choose_not_to_keep_its_arguments(queue: Driver) -> None:
    job_id = queue.enqueue(args={"secret": 1}, keep_args=False)
    lease = queue.claim_one()
    assert lease.args == {"secret": 1}

    queue.complete(lease)

    assert queue.job(job_id).args is None


# renew


def test_a_renewal_prolongs_the_lease_from_now(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(lease_seconds=10)
    lease = queue.claim_one()
    clock.advance(8)

    assert queue.renew(lease) == Settled()

    clock.advance(9)
    assert queue.reap() == []
    assert queue.job(job_id).renewals == 1
    clock.advance(1)
    assert len(queue.reap()) == 1


def test_a_late_renewal_is_accepted_until_the_job_was_reaped(queue: Driver, clock: Clock) -> None:
    queue.enqueue(lease_seconds=10)
    lease = queue.claim_one()
    clock.advance(60)

    assert queue.renew(lease) == Settled()

    assert queue.reap() == []


def test_a_renewal_reports_a_row_that_the_jobs_own_transaction_holds_as_busy(queue: Driver, sessions: Sessions) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    holder = sessions.open()
    holder.begin()
    holder.do(lambda q: q.run(verbs.fence(lease)))

    assert queue.renew(lease) == Settled(busy=[lease])

    assert queue.journal(lease.job_id) == []


@pytest.mark.parametrize("verb", ["claim", "complete", "fail", "release", "mark_started", "step"])
def test_what_was_acknowledged_is_durable_where_the_sessions_default_is_not(queue: Driver, verb: str) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    queue.enqueue()
    queue.connection.execute("set synchronous_commit = off")

    with queue.connection.transaction():
        if verb == "claim":
            queue.claim_one()
        else:
            VERBS[verb](queue, lease)
        assert queue.value("show synchronous_commit") == "on"


@pytest.mark.parametrize("storage", ["extended", "external"])
def test_large_arguments_go_to_the_ledger_as_they_were_stored(queue: Driver, storage: str) -> None:
    """Compressed stays compressed; what was not is not tried again, which would cost more than all the rest."""
    queue.connection.execute(f"alter table faultline.open_jobs alter args set storage {storage}".encode())
    job_id = queue.enqueue(args={"text": "again and " * 10_000})
    stored = queue.value("select pg_column_size(args) from faultline.open_jobs where id = %s", job_id)

    queue.complete(queue.claim_one())

    assert queue.value("select pg_column_size(args) from faultline.ledger where job_id = %s", job_id) == stored
    assert (stored < 10_000) == (storage == "extended")
