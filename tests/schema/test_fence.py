"""The fence: effects written through the job's own transaction, in every order that matters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline.core.errors import IllegalTransition, StaleLease
from faultline.core.model import JobState, Settled
from faultline.store import verbs
from tests.schema.losses import LOSSES, reaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease, Reason
    from tests.driver import Clock, Driver, Session, Sessions


@pytest.fixture(autouse=True)
def effects(queue: Driver) -> None:
    queue.connection.execute("create table effects (job_id uuid, token bigint)")


def write_effect(queue: Driver, lease: Lease) -> None:
    queue.connection.execute("insert into effects values (%s, %s)", (lease.job_id, lease.fencing_token))


def fenced_effect(session: Session, lease: Lease) -> None:
    session.begin()
    session.do(lambda q: q.run(verbs.fence(lease)))
    session.do(lambda q: write_effect(q, lease))


def test_a_fenced_effect_and_the_completion_commit_together(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    session = sessions.open()

    fenced_effect(session, lease)
    assert session.do(lambda q: q.complete(lease, result="paid")) == Settled()
    assert queue.value("select count(*) from effects") == 0
    session.commit()

    assert queue.value("select count(*) from effects") == 1
    assert (queue.job(job_id).state, queue.job(job_id).result) == (JobState.SUCCEEDED, "paid")


def test_a_rolled_back_effect_takes_its_completion_with_it(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    session = sessions.open()

    fenced_effect(session, lease)
    session.do(lambda q: q.complete(lease))
    session.rollback()

    assert queue.value("select count(*) from effects") == 0
    assert queue.state(job_id) is JobState.RUNNING


@pytest.mark.parametrize(("lose", "reason"), LOSSES, ids=[lose.__name__ for lose, _ in LOSSES])
def test_a_stale_fence_raises_and_can_be_put_on_record(
    queue: Driver, clock: Clock, lose: Callable[..., None], reason: Reason
) -> None:
    job_id = queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    lose(queue, clock, stale)

    with pytest.raises(StaleLease) as raised:
        queue.run(verbs.fence(stale))

    assert raised.value.reason == reason
    (refusal,) = queue.run(verbs.record_refusal(stale)).stale
    assert refusal.reason == reason
    assert queue.refusals(job_id) == [("fence", reason.value)]


def test_an_expired_lease_is_refused_by_the_fence_even_before_anyone_took_it(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    clock.advance(30)

    with pytest.raises(StaleLease, match="lease_expired"):
        queue.run(verbs.fence(lease))

    assert [refusal.reason for refusal in queue.run(verbs.record_refusal(lease)).stale] == ["lease_expired"]
    assert queue.refusals(job_id) == [("fence", "lease_expired")]


def test_a_good_lease_cannot_be_smeared(queue: Driver) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    settled = queue.run(verbs.record_refusal(lease))

    assert settled.stale == []
    assert queue.journal(job_id) == []


def test_an_effect_in_flight_keeps_reapers_away_until_it_is_committed(
    queue: Driver, sessions: Sessions, clock: Clock
) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    worker, reaper = sessions.open(), sessions.open()

    fenced_effect(worker, lease)
    clock.advance(3600)
    assert reaper.do(lambda q: q.reap()) == []
    worker.do(lambda q: q.complete(lease))
    worker.commit()

    assert reaper.do(lambda q: q.reap()) == []
    assert queue.state(job_id) is JobState.SUCCEEDED


def test_a_fence_that_waited_for_the_reaper_is_refused(queue: Driver, sessions: Sessions, clock: Clock) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    worker, reaper = sessions.open(), sessions.open()
    clock.advance(31)

    reaper.begin()
    assert len(reaper.do(lambda q: q.reap())) == 1
    worker.begin()
    answer = worker.start(lambda q: q.run(verbs.fence(lease)))
    sessions.wait_until_blocked(worker, answer)
    reaper.commit()

    with pytest.raises(StaleLease, match="lease_lost"):
        answer.result()


def test_a_fence_that_waited_past_its_own_expiry_is_refused(queue: Driver, sessions: Sessions) -> None:
    """The clock is asked after the lock. Asked before, it would still show the time when the wait began.

    With the server's own clocks, since the difference between them is the point.
    """
    queue.enqueue(lease_seconds=0.5)
    lease = queue.claim_one()
    holder, worker = sessions.open(), sessions.open()

    holder.begin()
    holder.connection.execute("select from faultline.open_jobs for update")
    worker.begin()
    answer = worker.start(lambda q: q.run(verbs.fence(lease)))
    sessions.wait_until_blocked(worker, answer)
    while not queue.value("select clock_timestamp() > lease_expires_at from faultline.open_jobs"):
        pass
    holder.commit()

    with pytest.raises(StaleLease, match="lease_expired"):
        answer.result()


@pytest.mark.parametrize("forged", ["token", "owner"])
def test_a_forged_token_or_owner_does_not_pass_the_fence(queue: Driver, forged: str) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    forgery = replace(lease, fencing_token=2) if forged == "token" else replace(lease, owner="w/forged")

    with pytest.raises(StaleLease, match="token_mismatch"):
        queue.run(verbs.fence(forgery))


def test_a_cancel_waits_for_the_effect_in_flight_and_then_comes_too_late(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    worker, operator = sessions.open(), sessions.open()

    fenced_effect(worker, lease)
    worker.do(lambda q: q.complete(lease))
    answer = operator.start(lambda q: q.run(verbs.cancel(job_id)))
    sessions.wait_until_blocked(operator, answer)
    worker.commit()

    with pytest.raises(IllegalTransition, match="has succeeded"):
        answer.result()


def test_an_effect_after_a_cancel_is_refused(queue: Driver, sessions: Sessions) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    worker, operator = sessions.open(), sessions.open()

    operator.begin()
    operator.do(lambda q: q.run(verbs.cancel(job_id)))
    worker.begin()
    answer = worker.start(lambda q: q.run(verbs.fence(lease)))
    sessions.wait_until_blocked(worker, answer)
    operator.commit()

    with pytest.raises(StaleLease, match="not_running"):
        answer.result()


def test_the_effect_exists_once_when_a_stale_worker_and_its_successor_both_write(
    queue: Driver, sessions: Sessions, clock: Clock
) -> None:
    queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    reaped(queue, clock, stale)
    current = queue.claim_one(worker="second")
    first, second = sessions.open(), sessions.open()

    fenced_effect(second, current)
    first.begin()
    answer = first.start(lambda q: q.run(verbs.fence(stale)))
    with pytest.raises(StaleLease, match="token_mismatch"):
        answer.result()
    first.rollback()
    second.do(lambda q: q.complete(current))
    second.commit()

    assert queue.value("select array_agg(token) from effects") == [2]


def test_under_repeatable_read_a_fence_after_a_renewal_is_refused_by_postgresql(queue: Driver, sessions: Sessions) -> None:
    """Documented: in such a transaction the fence comes first. What must not happen is that it silently passes."""
    queue.enqueue()
    lease = queue.claim_one()
    worker = sessions.open()

    worker.begin("repeatable read")
    worker.connection.execute("select count(*) from effects")
    queue.renew(lease)

    with pytest.raises(psycopg.errors.SerializationFailure):
        worker.do(lambda q: q.run(verbs.fence(lease)))


def test_a_stale_fence_in_a_repeatable_read_transaction_never_passes(
    queue: Driver, sessions: Sessions, clock: Clock
) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    worker = sessions.open()

    worker.begin("repeatable read")
    worker.connection.execute("select count(*) from effects")
    reaped(queue, clock, lease)

    with pytest.raises((psycopg.errors.SerializationFailure, StaleLease)):
        worker.do(lambda q: q.run(verbs.fence(lease)))
