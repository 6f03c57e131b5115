"""Who waits for whom, who passes by, and what is believed after a wait. Each order of steps is made, never hoped for."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from faultline.core.model import Unwritten
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused
from faultline_proof.probes.writes import BATCH_VERBS, SINGLE_VERBS

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


@probe("step", "progress", "lock_lease")
def a_write_for_one_job_waits_for_the_reaper_and_is_then_refused(sessions: Sessions) -> None:
    q, reaper, worker = sessions.open(), sessions.open(), sessions.open()
    for verb, call in SINGLE_VERBS.items():
        lease = q.new_lease()
        sessions.clock.advance(31)
        reaper.begin()
        reaper.reap()
        answer = worker.start(lambda s, call=call, lease=lease: call(s, lease))  # type: ignore[misc]
        sessions.wait_until_blocked(worker, answer)
        reaper.commit()
        expect(verb, reasons(answer.result()), ["lease_lost"])
    expect("steps", q.value("select count(*) from faultline.steps"), 0)


@probe(*BATCH_VERBS, "refuse")
def a_write_that_meets_a_reaper_in_mid_flight_is_busy_and_then_refused(sessions: Sessions) -> None:
    q, reaper = sessions.open(), sessions.open()
    for verb, call in BATCH_VERBS.items():
        lease = q.new_lease()
        sessions.clock.advance(31)
        reaper.begin()
        reaper.reap()
        expect(verb, call(q, lease), Unwritten(busy=[lease]))
        reaper.commit()
        expect(f"{verb} afterwards", reasons(call(q, lease)), ["lease_lost"])


@probe(*BATCH_VERBS, "refuse")
def a_batch_passes_by_what_somebody_has_locked(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    for verb, call in BATCH_VERBS.items():
        locked, free = q.new_lease(), q.new_lease()
        holder.begin()
        holder.fence(locked)
        unwritten = sessions.at_once(q, lambda s, call=call, all_=(locked, free): call(s, *all_))  # type: ignore[misc]
        expect(verb, (unwritten.stale, unwritten.busy), ([], [locked]))
        expect("journal", q.refusals(locked.job_id), [])
        holder.rollback()
        expect(f"{verb} afterwards", call(q, locked), Unwritten())


@probe("complete")
def a_completion_leaves_the_patience_of_its_transaction_alone(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    free, locked = q.new_lease(), q.new_lease()
    q.begin()
    q.execute("set local lock_timeout = '1234ms'")
    expect("with nothing locked", q.complete(free), Unwritten())
    expect("patience", q.value("show lock_timeout"), "1234ms")
    holder.begin()
    holder.fence(locked)
    expect("with a locked row", q.complete(locked).busy, [locked])
    expect("patience", q.value("show lock_timeout"), "1234ms")
    q.rollback()
    holder.rollback()


@probe("complete")
def a_completion_waits_for_a_locked_table_as_long_as_its_session_says(sessions: Sessions) -> None:
    """A row can be left out, a table cannot: then the session's own patience counts, and its end is the end."""
    q, holder = sessions.open(), sessions.open()
    lease = q.new_lease()
    holder.begin()
    holder.execute("lock table faultline.ledger")
    q.execute("set lock_timeout = '200ms'")
    begun_at = q.value("select clock_timestamp()")
    with refused(q, "55P03"):
        q.complete(lease)
    waited = q.value("select clock_timestamp()") - begun_at
    expect("waited too little", waited < timedelta(milliseconds=200), False)
    holder.rollback()
    expect("once the table is free", q.complete(lease), Unwritten())


@probe("cancel")
def a_cancel_waits_for_a_completion_and_comes_too_late(sessions: Sessions) -> None:
    q, worker, operator = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    worker.begin()
    worker.complete(lease)
    answer = operator.start(lambda s: s.run(verbs.cancel(lease.job_id)))
    sessions.wait_until_blocked(operator, answer)
    worker.commit()
    with refused(q, "FL002", "has succeeded"):
        answer.result()
    expect("journal", q.events(lease.job_id), [])


@probe("cancel", "complete")
def a_completion_that_meets_a_cancel_is_busy_and_then_refused(sessions: Sessions) -> None:
    q, operator = sessions.open(), sessions.open()
    lease = q.new_lease()
    operator.begin()
    operator.run(verbs.cancel(lease.job_id))
    expect("beside the cancel", q.complete(lease), Unwritten(busy=[lease]))
    operator.commit()
    expect("after it", reasons(q.complete(lease)), ["not_running"])
    expect("the job", q.state(lease.job_id), "cancelled")
    expect("invariants broken", q.broken_invariants(), [])


@probe("retry")
def of_two_retries_one_comes_too_late(sessions: Sessions) -> None:
    q, first, second = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    q.fail(lease, then="fail")
    first.begin()
    first.run(verbs.retry(lease.job_id))
    answer = second.start(lambda s: s.run(verbs.retry(lease.job_id)))
    sessions.wait_until_blocked(second, answer)
    first.commit()
    with refused(q, "FL002", "is queued"):
        answer.result()
    expect("journal", q.events(lease.job_id), ["attempt_failed", "retried"])


# Prune and reconcile


@probe("prune", "prune_ledger", "prune_failed", "prune_journal", "prune_keys")
def pruning_passes_by_what_somebody_has_locked(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    for key in ("a", "b"):
        q.complete(q.new_lease(idempotency_key=key))
        q.fail(q.new_lease(), then="fail")
    sessions.clock.advance(1000)
    for what, table in {"ledger": "ledger", "failed": "open_jobs", "journal": "journal", "keys": "keys"}.items():
        holder.begin()
        holder.execute(f"select from faultline.{table} limit 1 for update")
        prune = verbs.prune(what, older_than_seconds=60)
        expect(f"{what} pruned beside a lock", sessions.at_once(q, lambda s, p=prune: s.run(p)), 1)  # type: ignore[misc]
        holder.rollback()


@probe("prune", "desummarize_pages")
def pruning_does_not_wait_for_a_vacuum(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    for _ in range(2):
        q.complete(q.new_lease())
    sessions.clock.advance(1000)
    prune = verbs.prune("ledger", older_than_seconds=60, max_rows=1)
    holder.begin()
    holder.execute("lock table faultline.ledger in share update exclusive mode")
    expect("pruned beside a vacuum", sessions.at_once(q, lambda s: s.run(prune)), 1)
    holder.rollback()
    with q.unsaved():
        q.execute("set local lock_timeout = '7s'")
        expect("pruned", q.run(prune), 1)
        expect("lock_timeout afterwards", q.value("show lock_timeout"), "7s")


@probe("reconcile")
def reconciling_passes_by_what_somebody_has_locked(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    q.enqueue()
    sessions.hand.execute(
        "insert into faultline.ledger select id, 1, now(), now(), now(), 0, 1, 5, 'w', queue, task, null, args, null"
        " from faultline.open_jobs"
    )
    holder.begin()
    holder.execute("select from faultline.open_jobs for update")
    expect("closed beside a lock", sessions.at_once(q, lambda s: s.run(verbs.reconcile())), [])
