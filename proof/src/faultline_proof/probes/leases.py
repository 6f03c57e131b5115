"""What may be written under a lease, and what is refused when it is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from faultline.core.model import Failure, Lease, Settled
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused, the_one

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from faultline_proof.sessions import Session, Sessions

BATCH_VERBS: dict[str, Callable[..., Settled]] = {
    "complete": lambda q, *leases: q.complete(*leases),
    "renew": lambda q, *leases: q.renew(*leases),
    "fail": lambda q, *leases: q.fail(*leases),
    "release": lambda q, *leases: q.release(*leases),
    "mark_started": lambda q, *leases: q.mark_started(*leases),
}
SINGLE_VERBS: dict[str, Callable[[Session, Lease], Settled]] = {
    "step": lambda q, lease: q.step(lease),
    "progress": lambda q, lease: q.progress(lease),
}
VERBS = {**BATCH_VERBS, **SINGLE_VERBS}
WRITES = ("complete", "renew", "fail", "release", "mark_started", "step", "progress", "hold")


# Every way to lose a lease, and the reason that a later write must be refused with.


def _reaped(q: Session, lease: Lease) -> None:
    q.execute("update faultline.open_jobs set lease_expires_at = created_at where id = %s", lease.job_id)
    expect("jobs reaped", [job.job_id for job in q.reap()], [lease.job_id])


def _taken(q: Session, lease: Lease) -> None:
    _reaped(q, lease)
    q.claim_one(worker="another")


def _taken_by_the_same_worker(q: Session, lease: Lease) -> None:
    _reaped(q, lease)
    q.claim_one(worker=lease.owner.split("/")[0])


def _done_by_another(q: Session, lease: Lease) -> None:
    _reaped(q, lease)
    q.complete(q.claim_one(worker="another"))


def _released(q: Session, lease: Lease) -> None:
    q.release(lease)


def _cancelled(q: Session, lease: Lease) -> None:
    q.run(verbs.cancel(lease.job_id))


def _failed(q: Session, lease: Lease) -> None:
    q.fail(lease, then="fail")


LOSSES: dict[Callable[[Session, Lease], None], str] = {
    _reaped: "lease_lost",
    _released: "lease_lost",
    _taken: "token_mismatch",
    _taken_by_the_same_worker: "token_mismatch",
    _done_by_another: "token_mismatch",
    _cancelled: "not_running",
    _failed: "not_running",
}


def _all_of(q: Session, job_id: UUID) -> tuple[object, object]:
    return q.job(job_id), q.execute("select * from faultline.steps where job_id = %s", job_id)


@probe(*WRITES, "refuse", "judge", "check_leases", "views.sql")
def a_stale_write_changes_nothing_and_is_on_record(sessions: Sessions) -> None:
    q = sessions.open()
    for verb, call in VERBS.items():
        for lose, reason in LOSSES.items():
            with q.unsaved():
                stale = q.new_lease()
                lose(q, stale)
                before = _all_of(q, stale.job_id)
                how = f"{verb} after {lose.__name__.strip('_')}"
                expect(how, reasons(call(q, stale)), [reason])
                expect(f"the job after {how}", _all_of(q, stale.job_id), before)
                expect(f"on record after {how}", q.refusals(stale.job_id), [(verb, reason)])


@probe(*WRITES, "fence", "judge", "refuse", "record_refusal")
def a_forged_token_or_owner_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    for verb, call in VERBS.items():
        with q.unsaved():
            lease = q.new_lease()
            before = _all_of(q, lease.job_id)
            for forgery in (replace(lease, fencing_token=2), replace(lease, owner="w/forged")):
                expect(f"{verb} with a forgery", reasons(call(q, forgery)), ["token_mismatch"])
                expect(f"the job after {verb}", _all_of(q, lease.job_id), before)
    with q.unsaved():
        lease = q.new_lease()
        for forgery in (replace(lease, fencing_token=2), replace(lease, owner="w/forged")):
            with refused(q, "FL001", "token_mismatch"):
                q.fence(forgery)
            expect("a forged fence on record", reasons(q.run(verbs.record_refusal(forgery))), ["token_mismatch"])


@probe("fence", "judge")
def a_fence_without_a_token_or_an_owner_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        with refused(q, "FL001", "token_mismatch"):
            q.execute("select faultline.fence(%s, null, %s)", lease.job_id, lease.owner)
        with refused(q, "FL001", "token_mismatch"):
            q.execute("select faultline.fence(%s, 1, null)", lease.job_id)


@probe("refuse", "judge", *BATCH_VERBS)
def a_refusal_tells_the_stale_and_the_current_token(sessions: Sessions) -> None:
    q = sessions.open()
    for verb, call in VERBS.items():
        with q.unsaved():
            stale = q.new_lease()
            _taken(q, stale)
            refusal = the_one("refusals", call(q, stale).stale)
            expect(f"current token told by {verb}", (refusal.lease, refusal.current_token), (stale, 2))
            entry = q.journal(stale.job_id)[-1]
            expect("who was refused", (entry.fencing_token, entry.owner), (1, stale.owner))
            wanted = {"verb": verb, "reason": "token_mismatch", "stale_token": 1, "current_token": 2}
            expect("what is on record", entry.detail, wanted)


@probe("judge", "refuse")
def what_is_not_there_is_not_running(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        q.execute("select set_config('faultline.verb', 'prune', true)")
        q.execute("delete from faultline.open_jobs")
        expect("a job that is gone", reasons(q.renew(lease)), ["not_running"])


@probe("judge", "refuse")
def after_a_restore_the_ledger_is_right(sessions: Sessions) -> None:
    """The open row of a job that is done came back, and so did its lease."""
    q = sessions.open()
    lease = q.new_lease()
    sessions.hand.execute("create temp table kept as select * from faultline.open_jobs")
    q.complete(lease)
    sessions.hand.execute("insert into faultline.open_jobs select * from kept; drop table kept")
    holder = sessions.open()
    holder.begin()
    holder.execute("select from faultline.open_jobs for update")

    settled = sessions.at_once(q, lambda s: s.mark_started(lease))

    expect("a mark of what is done", (reasons(settled), settled.busy), (["not_running"], []))


@probe(*BATCH_VERBS, "refuse")
def leases_of_one_batch_are_told_apart(sessions: Sessions) -> None:
    q = sessions.open()
    for verb in ("renew", "mark_started", "complete", "fail", "release"):
        with q.unsaved():
            stale = q.new_lease()
            _reaped(q, stale)
            good = q.claim_one(worker="second")
            settled = BATCH_VERBS[verb](q, stale, good)
            expect(f"stale for {verb}", [refusal.lease for refusal in settled.stale], [stale])
            expect("on record", q.refusals(stale.job_id), [(verb, "token_mismatch")])
    with q.unsaved():
        lease = q.new_lease()
        expect("one lease twice", (q.renew(lease, lease), q.complete(lease, lease)), (Settled(), Settled()))
        expect("on record", q.journal(lease.job_id), [])


@probe("half", "check_leases")
def half_a_lease_is_bad_input(sessions: Sessions) -> None:
    q = sessions.open()
    halves = (
        "array[gen_random_uuid()], array[]::bigint[], array['w/1']",
        "array[gen_random_uuid()], array[1], array[]::text[]",
        "array[null]::uuid[], array[1], array['w/1']",
        "array[gen_random_uuid()], array[null]::bigint[], array['w/1']",
        "array[gen_random_uuid()], array[1], array[null]::text[]",
        "array[gen_random_uuid()], null, array['w/1']",
    )
    with q.unsaved():
        for verb in BATCH_VERBS:
            for half in halves:
                more = """, '[{"then": "retry"}]'""" if verb == "fail" else ""
                with refused(q, "FL005", "arrays of one length without nulls", what=f"{verb}({half})"):
                    q.execute(f"select faultline.{verb}({half}{more})")


# complete


@probe("complete")
def a_completed_job_stands_in_the_ledger_once(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease(args={"n": 1}, idempotency_key="k")
        expect("complete", q.complete(lease, result={"ok": True}), Settled())
        job = q.job(lease.job_id)
        expect("who did it", (job.state.value, job.fencing_token, job.owner), ("succeeded", 1, lease.owner))
        found = (job.args, job.result, job.idempotency_key, job.attempt)
        expect("what was done", found, ({"n": 1}, {"ok": True}, "k", 1))
        expect("open rows", q.value("select count(*) from faultline.open_jobs"), 0)
        expect("journal", q.journal(lease.job_id), [])


@probe("complete", "refuse")
def a_completion_sent_twice_is_no_refusal(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        q.complete(lease, result=1)
        expect("the second time", q.complete(lease, result=2), Settled())
        expect("result", q.job(lease.job_id).result, 1)
        expect("journal", q.journal(lease.job_id), [])
        forged = replace(lease, fencing_token=2)
        expect("with another token", reasons(q.complete(forged)), ["token_mismatch"])
        expect("with another owner", reasons(q.complete(replace(lease, owner="w/forged"))), ["token_mismatch"])
        expect("a renewal of what is done", q.renew(lease), Settled())
        expect("a mark of what is done", reasons(q.mark_started(lease)), ["not_running"])


@probe("complete")
def results_stay_with_their_jobs(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        leases = [q.new_lease() for _ in range(4)]
        q.release(leases[1])
        settled = q.run(verbs.complete(leases, [f'{{"n": {n}}}' for n in range(4)]))
        expect("stale", [refusal.lease for refusal in settled.stale], [leases[1]])
        found = [q.job(lease.job_id).result for lease in leases]
        expect("results", found, [{"n": 0}, None, {"n": 2}, {"n": 3}])


@probe("complete")
def results_that_do_not_fit_are_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        call = "select faultline.complete(array[%s]::uuid[], array[1], array[%s], %s::jsonb)"
        for results in ('{"total": 5}', "[]", "[1, 2]", "5"):
            with refused(q, "FL005", "one result for each lease", what=results):
                q.execute(call, lease.job_id, lease.owner, results)


@probe("complete")
def arguments_that_are_not_to_be_kept_are_forgotten(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease(args={"secret": 1}, keep_args=False)
        q.complete(lease)
        expect("arguments in the ledger", q.job(lease.job_id).args, None)


@probe("complete", "renew")
def a_late_write_is_good_until_the_job_was_reaped(sessions: Sessions) -> None:
    q = sessions.open()
    late, done = q.new_lease(lease_seconds=10), q.new_lease()
    sessions.clock.advance(3600)
    expect("a late renewal", q.renew(late), Settled())
    expect("a late completion", q.complete(done), Settled())
    expect("jobs reaped", q.reap(), [])


@probe("renew")
def a_renewal_counts_from_now_on(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease(lease_seconds=10)
    sessions.clock.advance(8)
    expect("renew", q.renew(lease), Settled())
    left = q.value("select extract(epoch from lease_expires_at - faultline.now())::float8 from faultline.open_jobs")
    expect("seconds left", left, 10.0)
    expect("renewals", q.job(lease.job_id).renewals, 1)


# fail


@probe("fail")
def a_failed_attempt_waits_and_is_told(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    with q.unsaved():
        lease = q.new_lease()
        q.fail(lease, delay=30, error="no route to host")
        job = q.job(lease.job_id)
        found = (job.state.value, job.attempt, job.owner, job.last_error)
        expect("the job", found, ("queued", 1, None, "no route to host"))
        expect("seconds to wait", _wait(q, lease.job_id), 30.0)
        entry = the_one("journal", q.journal(lease.job_id))
        expect("journal", (entry.event, entry.fencing_token, entry.owner), ("attempt_failed", 1, lease.owner))
        expect("error told", (entry.detail["attempt"], entry.detail["error"]), (1, "no route to host"))


@probe("fail")
def the_wait_doubles_up_to_an_hour(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    with q.unsaved():
        job_id = q.enqueue(max_attempts=20)
        waits = []
        for _ in range(13):
            q.fail(q.claim_one(), delay=None)
            waits.append(_wait(q, job_id))
            q.execute("update faultline.open_jobs set next_run_at = faultline.now()")
        expect("waits", waits, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600])


def _wait(q: Session, job_id: UUID) -> float:
    wait = "select extract(epoch from next_run_at - faultline.now())::float8 from faultline.open_jobs where id = %s"
    return float(q.value(wait, job_id))


@probe("fail")
def an_attempt_ends_as_it_says(sessions: Sessions) -> None:
    q = sessions.open()
    for then, attempts, state, event in (
        ("retry", 2, "queued", "attempt_failed"),
        ("retry", 1, "failed", "attempt_failed"),
        ("fail", 5, "failed", "attempt_failed"),
        ("cancel", 5, "cancelled", "cancelled"),
    ):
        with q.unsaved():
            lease = q.new_lease(max_attempts=attempts)
            q.fail(lease, then=then)
            expect(f"{then} in attempt 1 of {attempts}", q.state(lease.job_id), state)
            expect("journal", q.events(lease.job_id), [event])


@probe("fail")
def each_attempt_of_a_batch_ends_as_it_says(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    with q.unsaved():
        leases = [q.new_lease() for _ in range(3)]
        q.run(verbs.fail(leases, [Failure("a", "fail"), Failure("b", "retry", 5), Failure("c", "retry", 9)]))
        jobs = [q.job(lease.job_id) for lease in leases]
        found = [(job.state.value, job.last_error) for job in jobs]
        expect("endings", found, [("failed", "a"), ("queued", "b"), ("queued", "c")])
        expect("waits", [_wait(q, lease.job_id) for lease in leases[1:]], [5.0, 9.0])


@probe("fail")
def failures_that_make_no_sense_are_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        senseless: tuple[object, ...] = (
            None,
            {},
            [],
            [{"then": "retry"}] * 2,
            [{}],
            [{"then": "explode"}],
            [{"then": "retry", "delay_seconds": -1}],
            [{"then": "retry", "delay_seconds": 31536001}],
        )
        for failures in senseless:
            with refused(q, "FL005", "failures must be an array", what=repr(failures)):
                q.execute(
                    "select faultline.fail(array[%s]::uuid[], array[1], array[%s], %s)",
                    lease.job_id,
                    lease.owner,
                    None if failures is None else Jsonb(failures),
                )


@probe("fail")
def an_endless_error_is_cut(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        q.fail(lease, error="x" * 70_000)
        expect("length of the error", len(q.job(lease.job_id).last_error or ""), 65536)


# release


@probe("release")
def a_released_job_keeps_its_place_and_gets_its_attempt_back(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        before = q.job(lease.job_id).next_run_at
        q.release(lease)
        job = q.job(lease.job_id)
        found = (job.state.value, job.attempt, job.fencing_token, job.owner, job.next_run_at)
        expect("the job", found, ("queued", 0, 1, None, before))
        again = q.claim_one()
        expect("the next lease", (again.job_id, again.fencing_token, again.attempt), (lease.job_id, 2, 1))


@probe("release")
def a_snoozed_job_sleeps_as_long_as_it_asked(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    with q.unsaved():
        lease = q.new_lease()
        q.release(lease, delays=[60])
        expect("seconds to sleep", _wait(q, lease.job_id), 60.0)
        for delay in (-1, 31536001):
            again = q.new_lease()
            with refused(q, "FL005", "delay", what=str(delay)):
                q.release(again, delays=[delay])


@probe("release", "wake", "wake_for")
def released_jobs_wake_who_has_claimed_past_them(sessions: Sessions) -> None:
    q = sessions.open()
    first, second, snoozed = q.new_lease(priority=-1), q.new_lease(priority=-2), q.new_lease(priority=-9)
    q.enqueue(priority=-50)
    q.execute("listen faultline")
    q.release(first, second, snoozed, delays=[None, None, 60])
    wanted = q.value(
        "select json_build_object('queue', 'default', 'priority', -2, 'run_at', next_run_at, 'workers', null)::text"
        " from faultline.open_jobs where id = %s",
        first.job_id,
    )
    expect("notifications", q.notices(), [wanted])


# steps and progress


@probe("step", "recall")
def a_step_is_remembered_once_per_job(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        other = q.new_lease()
        q.step(other, "quote", "other")
        first = q.new_lease()
        expect("before it was done", q.run(verbs.recall(first, "quote")), (False, None))
        q.step(first, "quote", "first")
        q.step(first, "sent", None)
        q.release(first)
        second = q.claim_one()
        expect("the second attempt's", q.step(second, "quote", "second"), Settled())
        expect("what is remembered", q.run(verbs.recall(second, "quote")), (True, "first"))
        expect("a step without a result", q.run(verbs.recall(second, "sent")), (True, None))
        tokens = "select array_agg(fencing_token) from faultline.steps where job_id = %s and name = 'quote'"
        expect("tokens", q.value(tokens, first.job_id), [1])


@probe("progress")
def progress_is_shown_and_no_place_for_much(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        q.progress(lease, {"percent": 20})
        expect("progress", q.job(lease.job_id).progress, {"percent": 20})
        with refused(q, "FL005", "65536 bytes"):
            q.progress(lease, "x" * 70_000)
