"""Cancel, retry, recover, reconcile, prune: what people and upkeep do to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.model import Submission
from faultline.explain.epochs import epochs
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused, the_one

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions


@probe("cancel")
def from_its_cancel_on_a_job_can_write_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    q.execute("listen faultline")
    waiting, lease = q.enqueue(delay_seconds=60), q.new_lease()
    q.run(verbs.cancel(waiting, "not needed"))
    expect("told of a waiting job", q.notices(), [])
    q.run(verbs.cancel(lease.job_id))
    expect("told", q.notices(), [f'{{"cancelled" : "{lease.job_id}"}}'])
    expect("cancelled again", q.run(verbs.cancel(lease.job_id)), "cancelled")
    expect("a completion", reasons(q.complete(lease)), ["not_running"])
    expect("states", {q.state(waiting), q.state(lease.job_id)}, {"cancelled"})
    expect("error", q.job(waiting).last_error, "cancelled: not needed")
    entry = the_one("journal", q.journal(waiting))
    login = q.value("select session_user")
    told = {"was": "queued", "reason": "not needed", "by": login, "login": login}
    expect("journal", (entry.event, entry.detail), ("cancelled", told))
    expect("journal of the other", q.events(lease.job_id), ["cancelled", "stale_write_blocked"])


@probe("cancel", "retry", "not_open")
def what_has_ended_otherwise_can_be_neither_cancelled_nor_retried(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        done, failed, running, waiting = q.new_lease(), q.new_lease(), q.new_lease(), q.enqueue()
        q.complete(done)
        q.fail(failed, then="fail")
        with refused(q, "FL002", "has succeeded and cannot be cancelled"):
            q.run(verbs.cancel(done.job_id))
        with refused(q, "FL002", "has succeeded and cannot be retried"):
            q.run(verbs.retry(done.job_id))
        with refused(q, "FL002", "has failed"):
            q.run(verbs.cancel(failed.job_id))
        with refused(q, "FL002", "is running"):
            q.run(verbs.retry(running.job_id))
        with refused(q, "FL002", "is queued"):
            q.run(verbs.retry(waiting))
        for verb in (verbs.cancel, verbs.retry):
            with refused(q, "FL004", "no job"):
                q.run(verb(UUID(int=1)))


@probe("retry", "requeue_ended_jobs", "wake_for")
def a_retried_job_has_all_its_attempts_but_never_an_old_token(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for then in ("fail", "cancel"):
        first = q.new_lease(max_attempts=1)
        sessions.clock.advance(31)
        q.reap()
        first = q.claim_one()
        q.fail(first, then=then)
        q.execute("update faultline.open_jobs set next_run_at = 'infinity'")
        q.execute("listen faultline")
        q.notices()
        q.run(verbs.retry(first.job_id))
        expect("workers told", len(q.notices()), 1)
        job = q.job(first.job_id)
        found = (job.state.value, job.attempt, job.reaps, job.last_error, job.next_run_at)
        expect("the job", found, ("queued", 0, 0, None, q.value("select faultline.now()")))
        second = q.claim_one()
        expect("the second life", (second.attempt, second.fencing_token), (1, 3))
        expect("a write of the first life", reasons(q.complete(first)), ["token_mismatch"])
        expect("journal", q.events(first.job_id)[1:3], ["cancelled" if then == "cancel" else "attempt_failed", "retried"])
        expect("what it was", q.journal(first.job_id)[2].detail["was"], "cancelled" if then == "cancel" else "failed")
        q.complete(second)


# reconcile


@probe("reconcile")
def open_rows_of_jobs_that_are_done_are_closed(sessions: Sessions) -> None:
    q = sessions.open()
    done, other, third = q.enqueue(), q.enqueue(), q.enqueue()
    for job_id in (done, third):
        sessions.hand.execute(
            "insert into faultline.ledger select id, 7, now(), now(), now(), 0, 1, 5, 'w', queue, task, null, args, null"
            " from faultline.open_jobs where id = %s",
            job_id,
        )
    sessions.hand.execute("update faultline.open_jobs set fencing_token = 9 where id = %s", third)
    expect("invariants broken", q.broken_invariants(), ["a_job_is_open_or_done"])
    expect("closed", [len(q.run(verbs.reconcile(max_jobs=1))) for _ in range(3)], [1, 1, 0])
    expect("the floor", q.value("select token_floor from faultline.settings"), 9)
    expect("states", [q.state(job_id) for job_id in (done, other, third)], ["succeeded", "queued", "succeeded"])
    expect("journal", (q.events(done), q.events(other)), (["reconciled"], []))
    expect("still in two places", "a_job_is_open_or_done" in q.broken_invariants(), False)


# prune


@probe("prune", "prune_ledger", "prune_failed", "prune_journal", "prune_keys", "forget_steps")
def pruning_forgets_what_is_old_in_small_bites(sessions: Sessions) -> None:
    q = sessions.open()
    old = _endings(q, "old")
    sessions.clock.advance(1000)
    _endings(q, "new")
    running = q.new_lease()
    for what, found in {"ledger": [2, 1, 0], "failed": [2, 1, 0], "journal": [2, 1, 0], "keys": [2, 1, 0]}.items():
        prune = verbs.prune(what, older_than_seconds=60, max_rows=2)
        expect(f"{what} pruned", [q.run(prune) for _ in range(3)], found)
    expect("ledger", q.value("select count(*) from faultline.ledger"), 3)
    expect("steps left", q.value("select array_agg(name order by name) from faultline.steps"), ["new", "new"])
    expect("running", q.state(running.job_id), "running")
    expect("invariants broken", q.broken_invariants(), [])
    expect("gone", old & {job_id for (job_id,) in q.execute("select id from faultline.jobs")}, set())


def _endings(q: Session, name: str) -> set[UUID]:
    """Three jobs that succeed, with keys, and three that do not; a step in one of each."""
    done = [q.new_lease(idempotency_key=f"{name} {n}") for n in range(3)]
    failed = [q.new_lease() for _ in range(3)]
    q.step(done[0], name)
    q.step(failed[0], name)
    q.complete(*done)
    q.fail(*failed[:2], then="fail")
    q.fail(*failed[2:], then="cancel")
    return {lease.job_id for lease in (*done, *failed)}


@probe("prune", "prune_keys")
def a_key_is_never_pruned_while_its_job_is_open(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.enqueue(idempotency_key="open")
        q.complete(q.new_lease(idempotency_key="done"))
        expect("pruned", q.run(verbs.prune("keys", older_than_seconds=0)), 1)
        expect("keys", q.value("select array_agg(key) from faultline.keys"), ["open"])
        lease = q.new_lease(idempotency_key="kept")
        q.complete(lease)
        q.run(verbs.prune("ledger", older_than_seconds=0))
        (again,) = q.run(verbs.enqueue_many([Submission("t", idempotency_key="kept")]))
        expect("a key whose job is pruned", (again.job_id, again.created), (lease.job_id, False))


@probe("prune")
def pruning_without_an_age_goes_by_the_settings(sessions: Sessions) -> None:
    q = sessions.open()
    _endings(q, "old")
    sessions.clock.advance(1000)
    settings = {"ledger": "keep_succeeded", "failed": "keep_failed", "journal": "keep_journal", "keys": "keep_keys"}
    for what, name in settings.items():
        expect(f"{what} pruned at first", q.run(verbs.prune(what)), 0)
        q.run(verbs.change_setting(f"{name}_seconds", 900))
        expect(f"{what} pruned", q.run(verbs.prune(what)), 3)
        q.run(verbs.change_setting(f"{name}_seconds", 2000))


@probe("prune")
def pruning_what_makes_no_sense_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        for what, age in (
            ("'everything'", "'60 s'"),
            ("'everything'", "null"),
            ("'ledger'", "'-1 s'"),
            ("'ledger'", "'1000000 years'"),
        ):
            with refused(q, "FL005", what=f"prune({what}, {age})"):
                q.execute(f"select faultline.prune({what}, {age})")


@probe("most", "check_most")
def nobody_looks_at_less_than_nothing(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute("select faultline.sample(0), faultline.roll_up(0), faultline.prune('ledger', max_rows => 0)")
        for call in (
            "due_schedules('{}', -1)",
            "outcomes(1, max_rows => -1)",
            "prune('ledger', max_rows => -1)",
            "reap(-1)",
            "reconcile(-1)",
            "roll_up(-1)",
            "sample(-1)",
        ):
            with refused(q, "FL005", "must be a whole number from 0, not -1", what=call):
                q.execute(f"select from faultline.{call}")


@probe("cancel", "reap", "fail", "lease_details")
def the_journal_tells_of_every_lease_that_it_saw_end(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    job_id = q.enqueue(max_attempts=5)
    q.renew(q.claim_one())
    sessions.clock.advance(40)
    q.reap()
    q.fail(q.claim_one())
    q.claim_one()
    q.run(verbs.cancel(job_id))
    told = epochs(q.job(job_id), q.journal(job_id))
    found = [(e.end.value, e.renewals, e.claimed_at is not None, e.lease_expires_at is not None) for e in told]
    expect("epochs", found, [("reaped", 1, True, True), ("failed", 0, True, True), ("cancelled", 0, True, True)])
