"""The fence: effects written through the job's own transaction, in every order that matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import Unwritten
from faultline.store import fencing, verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused
from faultline_proof.probes.writes import LOSSES

if TYPE_CHECKING:
    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


@probe("fence", "record_refusal", "lease_status", "refuse")
def a_stale_fence_raises_and_can_be_put_on_record(sessions: Sessions) -> None:
    q = sessions.open()
    for lose, reason in LOSSES.items():
        with q.unsaved():
            stale = q.new_lease()
            lose(q, stale)
            _refused_and_on_record(q, stale, reason)
    sessions.clock.take()
    lost, expired, good = q.new_lease(), q.new_lease(lease_seconds=10), q.new_lease()
    q.release(lost)
    sessions.clock.advance(10)
    q.fence(good)
    expect("a good lease on record", (q.run(verbs.record_refusal(good)), q.journal(good.job_id)), (Unwritten(), []))
    for stale, reason in ((lost, "lease_lost"), (expired, "lease_expired")):
        _refused_and_on_record(q, stale, reason)


def _refused_and_on_record(q: Session, stale: Lease, reason: str) -> None:
    with refused(q, "FL001", reason):
        q.fence(stale)
    expect("told", reasons(q.run(verbs.record_refusal(stale))), [reason])
    expect("on record", q.refusals(stale.job_id), [("fence", reason)])


_EFFECTS = "select array_agg(token) from story.effects"


def _fenced_effect(worker: Session, lease: Lease) -> None:
    worker.begin()
    worker.fence(lease)
    worker.execute("insert into story.effects values (%s, %s)", lease.job_id, lease.fencing_token)


@probe("fence", "complete")
def a_fenced_effect_and_the_completion_commit_together_or_not_at_all(sessions: Sessions) -> None:
    q, worker = sessions.open(), sessions.open()
    lease = q.new_lease()
    for end, effects, state in (("rollback", None, "running"), ("commit", [1], "succeeded")):
        _fenced_effect(worker, lease)
        expect("complete", worker.complete(lease, result="paid"), Unwritten())
        expect("effects before the end", q.value(_EFFECTS), None)
        getattr(worker, end)()
        expect(f"effects after {end}", (q.value(_EFFECTS), q.state(lease.job_id)), (effects, state))
    expect("result", q.job(lease.job_id).result, "paid")


@probe("fence", "lease_status")
def the_effect_exists_once_when_a_stale_worker_and_its_successor_both_write(sessions: Sessions) -> None:
    q, first, second = sessions.open(), sessions.open(), sessions.open()
    stale = q.new_lease(worker="frozen")
    sessions.clock.advance(31)
    q.reap()
    current = q.claim_one(worker="second")
    _fenced_effect(second, current)
    answer = first.start(lambda s: _fenced_effect(s, stale))
    with refused(q, "FL001", "token_mismatch"):
        answer.result()
    first.rollback()
    second.complete(current)
    second.commit()
    expect("effects", q.value(_EFFECTS), [2])


@probe("fence")
def a_fence_that_waited_for_a_reaper_or_a_cancel_is_refused(sessions: Sessions) -> None:
    q, other, worker = sessions.open(), sessions.open(), sessions.open()
    for verb, reason in (("reap", "lease_lost"), ("cancel", "not_running")):
        lease = q.new_lease()
        sessions.clock.advance(31)
        other.begin()
        other.run(verbs.cancel(lease.job_id)) if verb == "cancel" else other.reap()
        answer = worker.start(lambda s, lease=lease: s.fence(lease))  # type: ignore[misc]
        sessions.wait_until_blocked(worker, answer)
        other.commit()
        with refused(q, "FL001", reason, what=f"a fence after a {verb}"):
            answer.result()


@probe("fence")
def with_an_old_snapshot_no_fence_passes_over_what_has_happened_since(sessions: Sessions) -> None:
    """Documented: in such a transaction the fence comes first. What must not happen is that it silently passes."""
    q, worker = sessions.open(), sessions.open()
    for what in ("renew", "release"):
        lease = q.new_lease()
        worker.begin("repeatable read")
        worker.execute("select count(*) from story.effects")
        getattr(q, what)(lease)
        with refused(q, ("40001", "FL001"), what=f"a fence after a {what}"):
            worker.fence(lease)
        worker.rollback()


@probe("fence", "same_transaction")
def a_fence_is_good_for_one_transaction(sessions: Sessions) -> None:
    """Committed inside, the job's transaction has let go of the row: what follows is not fenced and completes nothing."""
    q = sessions.open()
    for begin_again in (False, True):
        lease = q.new_lease()
        q.begin()
        number = q.run(fencing.fence(lease))
        q.execute("savepoint inside")
        q.run(fencing.check(number))
        q.commit()
        if begin_again:
            q.begin()
            q.execute("select pg_current_xact_id()")
        with refused(q, "FL006", "ended the job's transaction itself", what=f"a completion, begun again: {begin_again}"):
            q.run(fencing.complete(lease, "1", number))
        if begin_again:
            q.rollback()
        expect("the job", q.job(lease.job_id).state, "running")
    lease = q.new_lease()
    q.begin()
    number = q.run(fencing.fence(lease))
    q.run(fencing.complete(lease, "1", number))
    q.commit()
    expect("completed in its own transaction", q.job(lease.job_id).state, "succeeded")


@probe("fence")
def an_effect_in_flight_keeps_everyone_away(sessions: Sessions) -> None:
    q, worker, operator = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    worker.begin()
    worker.fence(lease)
    sessions.clock.advance(3600)
    expect("jobs reaped under the fence", sessions.at_once(q, lambda s: s.reap()), [])
    worker.execute("savepoint done")
    worker.complete(lease)
    expect("jobs reaped while it completes", sessions.at_once(q, lambda s: s.reap()), [])
    worker.execute("rollback to savepoint done")
    answer = operator.start(lambda s: s.run(verbs.cancel(lease.job_id)))
    sessions.wait_until_blocked(operator, answer)
    worker.rollback()
    expect("the cancel that waited", answer.result().value, "cancelled")


@probe("fence", "clock")
def a_fence_that_waited_past_its_own_expiry_is_refused(sessions: Sessions) -> None:
    """The lease runs out between the beginning of the fence's statement and the moment when it gets the lock."""
    q, holder, worker = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    holder.begin()
    holder.execute("select from faultline.open_jobs for update")
    answer = worker.start(lambda s: s.fence(lease))
    sessions.wait_until_blocked(worker, answer)
    holder.execute("update faultline.open_jobs set lease_expires_at = clock_timestamp()")
    holder.commit()
    with refused(q, "FL001", "lease_expired"):
        answer.result()
