"""What may be written under a lease, and what is refused when it is lost. One table of stale writes for every verb."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.errors import JobRejected, StaleLease
from faultline.core.model import Failure, JobState, Reason, Settled, Submission
from faultline.store import queue as verbs
from faultline.store.translation import translated
from tests.driver import reasons
from tests.schema.losses import LOSSES, taken_by_another

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from tests.driver import Clock, Driver, Sessions

VERBS: dict[str, Callable[[Driver, Lease], Settled]] = {
    "renew": lambda q, lease: q.renew(lease),
    "complete": lambda q, lease: q.complete(lease),
    "fail": lambda q, lease: q.fail(lease),
    "release": lambda q, lease: q.release(lease),
    "mark_started": lambda q, lease: q.mark_started(lease),
    "step": lambda q, lease: q.run(verbs.step(lease, "s", 1)),
    "progress": lambda q, lease: q.run(verbs.progress(lease, {"percent": 50})),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("lose", "reason"), LOSSES, ids=[lose.__name__ for lose, _ in LOSSES])
def test_a_stale_write_changes_nothing_and_is_on_record(
    queue: Driver, clock: Clock, verb: str, lose: Callable[..., None], reason: Reason
) -> None:
    job_id = queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    lose(queue, clock, stale)
    before = (queue.job(job_id), queue.value("select count(*) from faultline.steps"))

    settled = VERBS[verb](queue, stale)

    assert reasons(settled) == [reason]
    assert (queue.job(job_id), queue.value("select count(*) from faultline.steps")) == before
    assert queue.refusals(job_id) == [(verb, reason.value)]
    assert queue.broken_invariants() == []


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("forged", ["token", "owner"])
def test_a_forged_token_or_owner_is_refused(queue: Driver, verb: str, forged: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    forgery = replace(lease, fencing_token=2) if forged == "token" else replace(lease, owner="w/forged")
    before = queue.job(job_id)

    assert reasons(VERBS[verb](queue, forgery)) == [Reason.TOKEN_MISMATCH]

    assert queue.job(job_id) == before


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "renew", "mark_started"])
def test_a_refusal_tells_the_stale_and_the_current_token(queue: Driver, clock: Clock, verb: str) -> None:
    job_id = queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    taken_by_another(queue, clock, stale)

    (refusal,) = VERBS[verb](queue, stale).stale

    assert (refusal.lease, refusal.current_token) == (stale, 2)
    (entry,) = [entry for entry in queue.journal(job_id) if entry.event == "stale_write_blocked"]
    assert (entry.fencing_token, entry.owner) == (1, stale.owner)
    assert entry.detail == {"verb": verb, "reason": "token_mismatch", "stale_token": 1, "current_token": 2}


def test_a_stale_and_a_good_lease_of_one_job_in_one_batch_are_told_apart(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    clock.advance(31)
    queue.reap()
    good = queue.claim_one(worker="second")

    for verb in (queue.renew, queue.mark_started, queue.complete):
        assert [refusal.lease for refusal in verb(stale, good).stale] == [stale]

    assert queue.state(job_id) is JobState.SUCCEEDED
    assert len(queue.refusals(job_id)) == 3


def test_two_leases_with_one_token_in_one_batch_are_told_apart_by_their_owners(queue: Driver) -> None:
    """As after a failover that took tokens back: the worker holds a grant of the lost history and one of this one."""
    job_id = queue.enqueue()
    good = queue.claim_one()
    forgotten = replace(good, owner="w/before")

    for verb in (queue.renew, queue.mark_started, queue.complete):
        assert [refusal.lease for refusal in verb(forgotten, good).stale] == [forgotten]

    assert queue.state(job_id) is JobState.SUCCEEDED


def test_a_lease_that_stands_twice_in_a_batch_is_written_once(queue: Driver) -> None:
    queue.enqueue()
    lease = queue.claim_one()

    assert queue.renew(lease, lease) == Settled()
    assert queue.complete(lease, lease) == Settled()
    assert queue.value("select count(*) from faultline.journal") == 0


@pytest.mark.parametrize(
    "arrays", ["array[]::bigint[], array['w/1']", "array[null]::bigint[], array['w/1']", "array[1], array[null]"]
)
@pytest.mark.parametrize("verb", ["renew", "complete", "release", "mark_started"])
def test_half_a_lease_is_bad_input(queue: Driver, verb: str, arrays: str) -> None:
    job_id = queue.enqueue()
    queue.claim_one()

    with pytest.raises(JobRejected, match="arrays of one length without nulls"), translated():
        queue.connection.execute(f"select faultline.{verb}(array['{job_id}']::uuid[], {arrays})".encode())


def test_a_fence_without_a_token_is_refused(queue: Driver) -> None:
    job_id = queue.enqueue()
    queue.claim_one()

    with pytest.raises(StaleLease, match="token_mismatch"), translated():
        queue.connection.execute("select faultline.fence(%s, null, 'w/1')", (job_id,))


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


# fail


def test_a_failed_attempt_is_queued_again_after_its_delay(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    queue.fail(lease, delay=30, error="no route to host")

    job = queue.job(job_id)
    assert (job.state, job.attempt, job.owner, job.last_error) == (JobState.QUEUED, 1, None, "no route to host")
    (entry,) = queue.journal(job_id)
    assert (entry.event, entry.fencing_token, entry.owner) == ("attempt_failed", 1, lease.owner)
    assert (entry.detail["attempt"], entry.detail["error"]) == (1, "no route to host")
    clock.advance(29)
    assert queue.claim() == []
    clock.advance(1)
    assert queue.claim_one().fencing_token == 2


def test_the_last_failed_attempt_ends_the_job_visibly(queue: Driver) -> None:
    job_id = queue.enqueue(max_attempts=2)

    for _ in range(2):
        queue.fail(queue.claim_one())

    job = queue.job(job_id)
    assert (job.state, job.attempt, job.last_error) == (JobState.FAILED, 2, "boom")
    assert job.finished_at is not None
    assert [entry.event for entry in queue.journal(job_id)] == ["attempt_failed"] * 2
    assert queue.claim() == []


@pytest.mark.parametrize(
    ("then", "state", "event"), [("fail", "failed", "attempt_failed"), ("cancel", "cancelled", "cancelled")]
)
def test_a_job_can_end_itself_before_its_attempts_are_used_up(queue: Driver, then: str, state: str, event: str) -> None:
    job_id = queue.enqueue()

    queue.fail(queue.claim_one(), then=then)

    assert queue.state(job_id) == state
    assert [entry.event for entry in queue.journal(job_id)] == [event]


def test_without_a_delay_the_wait_doubles_up_to_an_hour(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue(max_attempts=20)
    waits = []

    for _ in range(14):
        queue.fail(queue.claim_one(), delay=None)
        job = queue.job(job_id)
        assert job.next_run_at is not None
        waits.append((job.next_run_at - queue.value("select faultline.now()")).total_seconds())
        clock.advance(3600)

    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600]


@pytest.mark.parametrize(
    "failures", ["[]", "{}", "null", '[{"then": "explode"}]', "[{}]", '[{"then": "retry", "delay_seconds": -1}]']
)
def test_failures_that_make_no_sense_change_nothing(queue: Driver, failures: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    with pytest.raises(JobRejected, match="failures must be an array"):
        queue.run(_fail_with(lease, failures))

    assert queue.state(job_id) is JobState.RUNNING


def _fail_with(lease: Lease, failures: str) -> Any:
    statement = verbs.fail([lease], [Failure("x")])
    return type(statement)("fail", statement.sql, (*statement.params[:3], failures), statement.read)


def test_an_endless_error_text_is_cut(queue: Driver) -> None:
    job_id = queue.enqueue()

    queue.fail(queue.claim_one(), error="x" * 10_000_000)

    assert len(queue.job(job_id).last_error or "") == 65536


# release


def test_a_released_job_keeps_its_place_and_gets_its_attempt_back(queue: Driver, clock: Clock) -> None:
    first = queue.enqueue()
    clock.advance(5)
    queue.enqueue()
    lease = queue.claim_one()

    assert queue.release(lease) == Settled()

    job = queue.job(first)
    assert (job.state, job.attempt, job.fencing_token, job.owner) == (JobState.QUEUED, 0, 1, None)
    again = queue.claim_one()
    assert (again.job_id, again.fencing_token, again.attempt) == (first, 2, 1)


def test_a_snoozed_job_sleeps_as_long_as_it_asked(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.release(queue.claim_one(), delays=[60])

    assert queue.claim() == []
    clock.advance(60)

    again = queue.claim_one()
    assert (again.fencing_token, again.attempt) == (2, 1)


def test_snoozing_never_uses_up_attempts_nor_resets_the_token(queue: Driver) -> None:
    queue.enqueue(max_attempts=1)

    tokens = []
    for _ in range(10):
        lease = queue.claim_one()
        tokens.append(lease.fencing_token)
        queue.release(lease, delays=[0])

    assert tokens == list(range(1, 11))


def test_a_negative_snooze_is_refused(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    with pytest.raises(JobRejected, match="delay"):
        queue.release(lease, delays=[-1])

    assert queue.state(job_id) is JobState.RUNNING


def test_released_jobs_wake_workers_that_have_claimed_past_them(queue: Driver) -> None:
    queue.run(verbs.enqueue_many([Submission("t"), Submission("t", priority=-2)]))
    leases = queue.claim()
    queue.connection.execute("listen faultline")

    queue.release(*leases)

    (notice,) = queue.connection.notifies(timeout=0)
    assert '"priority" : -2' in notice.payload


# steps and progress


def test_a_step_is_remembered_for_every_later_attempt(queue: Driver) -> None:
    queue.enqueue()
    first = queue.claim_one()
    assert queue.run(verbs.recall(first, "quote")) == (False, None)

    queue.run(verbs.step(first, "quote", {"price": 9}))
    queue.fail(first)

    second = queue.claim_one()
    assert queue.run(verbs.recall(second, "quote")) == (True, {"price": 9})


def test_a_step_is_recorded_once_per_job_whichever_attempt_comes_first(queue: Driver) -> None:
    queue.enqueue()
    first = queue.claim_one()
    queue.run(verbs.step(first, "quote", "first"))
    queue.release(first)
    second = queue.claim_one()

    assert queue.run(verbs.step(second, "quote", "second")) == Settled()

    assert queue.run(verbs.recall(second, "quote")) == (True, "first")
    assert queue.value("select fencing_token from faultline.steps") == 1


def test_a_step_may_give_nothing(queue: Driver) -> None:
    queue.enqueue()
    lease = queue.claim_one()

    queue.run(verbs.step(lease, "sent", None))

    assert queue.run(verbs.recall(lease, "sent")) == (True, None)


def test_progress_is_shown_while_the_job_runs(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    queue.run(verbs.progress(lease, {"percent": 10}))
    queue.run(verbs.progress(lease, {"percent": 20}))

    assert queue.job(job_id).progress == {"percent": 20}


def test_progress_is_no_place_for_data(queue: Driver) -> None:
    queue.enqueue()

    with pytest.raises(JobRejected, match="65536 bytes"):
        queue.run(verbs.progress(queue.claim_one(), "x" * 70_000))


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
