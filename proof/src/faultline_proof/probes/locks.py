"""Who waits for whom, who passes by, and what is believed after a wait. Each order of steps is made, never hoped for."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.model import Settled, Submission
from faultline.store import fencing, verbs
from faultline_proof.probes.leases import BATCH_VERBS, SINGLE_VERBS
from faultline_proof.probes.probe import expect, probe, reasons, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions

#: Longer than a claim waits for its turn, shorter than a session here waits for any lock.
_SOON_SECONDS = 4.0


@probe("fence", "record_refusal", "judge", "refuse")
def a_stale_fence_raises_and_can_be_put_on_record(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lost, expired, good = q.new_lease(), q.new_lease(lease_seconds=10), q.new_lease()
    q.release(lost)
    sessions.clock.advance(10)
    q.fence(good)
    expect("a good lease on record", (q.run(verbs.record_refusal(good)), q.journal(good.job_id)), (Settled(), []))
    for stale, reason in ((lost, "lease_lost"), (expired, "lease_expired")):
        with refused(q, "FL001", reason):
            q.fence(stale)
        expect("told", reasons(q.run(verbs.record_refusal(stale))), [reason])
        expect("on record", q.refusals(stale.job_id), [("fence", reason)])


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
        with refused(q, "FL006", "ended from inside", what=f"a completion, begun again: {begin_again}"):
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


@probe("step", "progress", "hold")
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


@probe(*BATCH_VERBS, "refuse")
def a_batch_passes_by_what_somebody_has_locked(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    for verb, call in BATCH_VERBS.items():
        locked, free = q.new_lease(), q.new_lease()
        holder.begin()
        holder.fence(locked)
        settled = sessions.at_once(q, lambda s, call=call, all_=(locked, free): call(s, *all_))  # type: ignore[misc]
        expect(verb, (settled.stale, settled.busy), ([], [locked]))
        expect("journal", q.refusals(locked.job_id), [])
        holder.rollback()
        expect(f"{verb} afterwards", call(q, locked), Settled())


@probe("complete")
def a_completion_leaves_the_patience_of_its_transaction_alone(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    free, locked = q.new_lease(), q.new_lease()
    q.begin()
    q.execute("set local lock_timeout = '1234ms'")
    expect("with nothing locked", q.complete(free), Settled())
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
    expect("once the table is free", q.complete(lease), Settled())


@probe("claim", "take_turn")
def large_claims_of_a_queue_take_turns_and_nobody_else_waits(sessions: Sessions) -> None:
    q, second = sessions.open(), sessions.open()
    q.run(verbs.enqueue_many([Submission("t")] * 100))
    turns = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    q.begin()
    granted = q.claim(20)
    expect("turns for a few", q.value(turns), 0)
    granted += q.claim(21)
    expect("turns for many", q.value(turns), 1)
    q.claim(21, queue="other")
    expect("turns in two queues", q.value(turns), 2)
    waiting = second.start(lambda s: s.claim(25))
    sessions.wait_until_blocked(second, waiting)
    q.commit()
    granted += waiting.result()
    expect("granted", (len(granted), len({lease.job_id for lease in granted})), (66, 66))


@probe("claim", "take_turn")
def a_claim_whose_turn_does_not_come_goes_on_without_it(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    q.run(verbs.enqueue_many([Submission("t")] * 60))
    patience = q.value("show lock_timeout")
    q.begin()
    expect("at once", len(q.claim(10)), 10)
    expect("in turn", (len(q.claim(21)), q.value("show lock_timeout")), (21, patience))
    q.rollback()
    holder.begin()
    holder.claim(25)
    q.begin()
    begun = time.monotonic()
    expect("out of turn", (len(q.claim(25)), q.value("show lock_timeout")), (25, patience))
    expect("soon", time.monotonic() - begun < _SOON_SECONDS, True)


@probe("take_turn")
def a_turn_ignores_what_somebody_left_in_the_session(sessions: Sessions) -> None:
    q = sessions.open()
    q.execute("set faultline.no_turns = 'x'")
    expect("claimed", q.claim(21), [])


@probe("take_turn")
def who_waited_for_a_turn_in_vain_does_not_wait_again_for_a_while(sessions: Sessions) -> None:
    q, hostile = sessions.open(), sessions.open()
    sessions.clock.take()
    hostile.execute("select pg_advisory_lock(faultline.claim_lock('default'))")
    pauses = []
    for seconds in (0, 0.9, 0.2, 2.1, 4.1):
        sessions.clock.advance(seconds)
        q.claim(21)
        pauses.append(q.value("show faultline.no_turns").split()[1])
    expect("pauses", pauses, ["1", "1", "2", "4", "8"])
    q.execute("set faultline.no_turns = '0 32'")
    q.claim(21)
    expect("the longest pause", q.value("show faultline.no_turns").split()[1], "32")
    hostile.execute("select pg_advisory_unlock_all()")
    sessions.clock.advance(33)
    q.claim(21)
    expect("after a turn", q.value("show faultline.no_turns"), "")


@probe("claim", "reap")
def claimers_and_reapers_share_the_work(sessions: Sessions) -> None:
    q, first, second = sessions.open(), sessions.open(), sessions.open()
    q.run(verbs.enqueue_many([Submission("t")] * 10))
    first.begin()
    one = first.claim(6)
    two = sessions.at_once(second, lambda s: s.claim(6))
    first.commit()
    expect("jobs of two claimers", (len(one), len(two), len({lease.job_id for lease in one + two})), (6, 4, 10))
    sessions.clock.advance(31)
    first.begin()
    taken = first.reap(max_jobs=6)
    expect("claimed while they are given back", sessions.at_once(q, lambda s: s.claim(6)), [])
    rest = sessions.at_once(second, lambda s: s.reap())
    first.commit()
    found = (len(taken), len(rest), len({job.job_id for job in taken + rest}))
    expect("jobs of two reapers", found, (6, 4, 10))


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


# Recover


@probe("recover")
def recover_waits_for_a_fenced_transaction_and_does_not_deadlock_with_it(sessions: Sessions) -> None:
    q, worker, operator = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    worker.begin()
    worker.fence(lease)
    answer = operator.start(lambda s: s.run(verbs.recover()))
    sessions.wait_until_blocked(operator, answer)
    expect("complete", worker.complete(lease), Settled())
    worker.commit()
    expect("what recover changed", answer.result()[1:], (0, 0))


@probe("recover")
def recover_gives_up_soon_and_keeps_its_callers_patience(sessions: Sessions) -> None:
    holder, operator = sessions.open(), sessions.open()
    holder.begin()
    holder.enqueue()
    operator.execute("set lock_timeout = 0")
    operator.execute("set statement_timeout = '3s'")
    with refused(operator, "55P03", "lock timeout"):
        operator.run(verbs.recover())
    operator.execute("set lock_timeout = '30s'")
    operator.execute("set statement_timeout = '1s'")
    with refused(operator, "57014", "statement timeout"):
        operator.run(verbs.recover())
    holder.rollback()
    operator.execute("set lock_timeout = 0")
    operator.begin()
    operator.run(verbs.recover())
    expect("patience afterwards", operator.value("show lock_timeout"), "0")
    operator.rollback()


@probe("recover")
def recover_voids_a_lease_that_is_granted_meanwhile(sessions: Sessions) -> None:
    q, worker, operator = sessions.open(), sessions.open(), sessions.open()
    q.enqueue()
    worker.begin()
    lease = worker.claim_one()
    answer = operator.start(lambda s: s.run(verbs.recover(500)))
    sessions.wait_until_blocked(operator, answer)
    worker.commit()
    expect("what recover changed", answer.result(), (500, 1, 1))
    expect("the lease", reasons(q.complete(lease)), ["token_mismatch"])


@probe("claim", "recover")
def a_claim_that_waited_for_recover_grants_no_token_below_the_floor(sessions: Sessions) -> None:
    q, worker, operator = sessions.open(), sessions.open(), sessions.open()
    for number, isolation in enumerate(("read committed", "repeatable read", "serializable"), start=1):
        q.enqueue()
        operator.begin()
        operator.run(verbs.recover(500 * number))
        worker.begin(isolation)
        answer = worker.start(lambda s: s.claim_one())
        sessions.wait_until_blocked(worker, answer)
        operator.commit()
        if isolation == "read committed":
            expect("the token", answer.result().fencing_token, 501)
            worker.commit()
        else:
            with refused(q, "40001", what=f"a {isolation} claim"):
                answer.result()
            worker.rollback()


@probe("claim", "recover")
def a_claim_with_an_old_snapshot_grants_no_token_below_the_floor(sessions: Sessions) -> None:
    q, worker = sessions.open(), sessions.open()
    q.enqueue()
    worker.begin("repeatable read")
    worker.execute("select count(*) from faultline.jobs")
    q.run(verbs.recover(500))
    with refused(q, "40001"):
        worker.claim_one()
    worker.rollback()
    expect("the token", q.claim_one().fencing_token, 501)


@probe("claim", "prune")
def an_id_that_is_enqueued_again_beside_its_prune_never_sees_an_old_token(sessions: Sessions) -> None:
    q, upkeep, client = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    for _ in range(4):
        q.release(lease)
        lease = q.claim_one()
    q.fail(lease, then="fail")
    sessions.clock.advance(1000)
    upkeep.begin()
    upkeep.run(verbs.prune("failed", older_than_seconds=60))
    again = client.start(lambda s: s.enqueue(id=lease.job_id))
    sessions.wait_until_blocked(client, again)
    upkeep.commit()
    again.result()
    expect("the token", q.claim_one().fencing_token, 6)


# Prune and reconcile


@probe("prune")
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


@probe("prune")
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


# Enqueue


@probe("place_known", "enqueue_many", "keys")
def submissions_with_the_same_keys_in_opposite_order_do_not_deadlock(sessions: Sessions) -> None:
    _opposite_orders(sessions, [Submission("t", idempotency_key=key) for key in "abc"])


@probe("place_known", "enqueue_many")
def submissions_with_the_same_ids_in_opposite_order_do_not_deadlock(sessions: Sessions) -> None:
    _opposite_orders(sessions, [Submission("t", id=UUID(int=n)) for n in (1, 2, 3)])


def _opposite_orders(sessions: Sessions, jobs: list[Submission]) -> None:
    """Stopped in the middle, each would hold what the other wants next, if they took things in the order given."""
    gate, one, two = sessions.open(), sessions.open(), sessions.open()
    gate.begin()
    gate.run(verbs.enqueue_many(jobs[1:2]))
    first = one.start(lambda s: s.run(verbs.enqueue_many(jobs)))
    sessions.wait_until_blocked(one, first)
    second = two.start(lambda s: s.run(verbs.enqueue_many(jobs[::-1])))
    sessions.wait_until_blocked(two, second)
    gate.commit()
    found = [[place.job_id for place in answer.result()] for answer in (first, second)]
    expect("the jobs of the second", found[1][::-1], found[0])
    expect("jobs", gate.value("select count(*) from faultline.jobs"), 3)


@probe("place_known", "withdraw_done")
def a_submission_sent_again_while_its_job_completes_does_not_run_it_again(sessions: Sessions) -> None:
    q, worker, client = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease(id=UUID(int=7), priority=0)
    worker.begin()
    worker.complete(lease)
    again = client.start(lambda s: s.run(verbs.enqueue_many([Submission("t", id=lease.job_id)])))
    sessions.wait_until_blocked(client, again)
    worker.commit()
    expect("new", again.result()[0].created, False)
    expect("state", q.state(lease.job_id), "succeeded")
    expect("invariants broken", q.broken_invariants(), [])


@probe("resolve_known")
def a_submission_that_meets_a_prune_is_sent_again(sessions: Sessions) -> None:
    """Its first job is known, its second makes it wait; meanwhile the first is pruned. To answer "known" would lose it."""
    q, gate, client = sessions.open(), sessions.open(), sessions.open()
    q.fail(q.new_lease(id=UUID(int=1)), then="fail")
    gate.begin()
    gate.enqueue(id=UUID(int=2))
    jobs = [Submission("t", id=UUID(int=n)) for n in (1, 2)]
    answer = client.start(lambda s: s.run(verbs.enqueue_many(jobs)))
    sessions.wait_until_blocked(client, answer)
    expect("pruned", q.run(verbs.prune("failed", older_than_seconds=0)), 1)
    gate.commit()
    with refused(q, "40001", "pruned at this moment"):
        answer.result()


@probe("place_known")
def an_id_is_refused_where_a_finished_job_could_not_be_seen(sessions: Sessions) -> None:
    q, client = sessions.open(), sessions.open()
    lease = q.new_lease(id=UUID(int=7))
    for level in ("repeatable read", "serializable"):
        client.begin(level)
        client.execute("select from faultline.settings")
        if level == "repeatable read":
            q.complete(lease)
        with refused(client, "FL005", "only in READ COMMITTED"):
            client.enqueue(id=lease.job_id)
        client.enqueue()
        client.rollback()
