"""What may be written under a lease: completions, renewals, failures, releases, steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faultline.core.model import Failure, Unwritten
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused, the_one

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.sessions import Session, Sessions


# complete


@probe("complete")
def a_completed_job_stands_in_the_ledger_once(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease(args={"n": 1}, idempotency_key="k")
        expect("complete", q.complete(lease, result={"ok": True}), Unwritten())
        job = q.job(lease.job_id)
        expect("who did it", (job.state.value, job.fencing_token, job.owner), ("succeeded", 1, lease.owner))
        found = (job.args, job.result, job.idempotency_key, job.attempt)
        expect("what was done", found, ({"n": 1}, {"ok": True}, "k", 1))
        expect("open rows", q.value("select count(*) from faultline.open_jobs"), 0)
        expect("rows in the ledger", q.value("select count(*) from faultline.ledger"), 1)
        expect("journal", q.journal(lease.job_id), [])


@probe("complete", "refuse")
def a_completion_sent_twice_is_no_refusal(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        q.complete(lease, result=1)
        expect("the second time", q.complete(lease, result=2), Unwritten())
        expect("result", q.job(lease.job_id).result, 1)
        expect("journal", q.journal(lease.job_id), [])
        forged = replace(lease, fencing_token=2)
        expect("with another token", reasons(q.complete(forged)), ["token_mismatch"])
        expect("with another owner", reasons(q.complete(replace(lease, owner="w/forged"))), ["token_mismatch"])
        expect("a renewal of what is done", q.renew(lease), Unwritten())
        expect("by another owner", reasons(q.renew(replace(lease, owner="w/forged"))), ["token_mismatch"])
        expect("a mark of what is done", reasons(q.record_start(lease)), ["not_running"])


@probe("complete")
def results_stay_with_their_jobs(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        leases = [q.new_lease() for _ in range(4)]
        q.release(leases[1])
        unwritten = q.run(verbs.complete(leases, [f'{{"n": {n}}}' for n in range(4)]))
        expect("stale", [refusal.lease for refusal in unwritten.stale], [leases[1]])
        found = [q.job(lease.job_id).result for lease in leases]
        expect("results", found, [{"n": 0}, None, {"n": 2}, {"n": 3}])


@probe("complete")
def results_that_do_not_fit_are_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        call = "select faultline.complete(array[%s]::uuid[], array[1], array[%s], %s::jsonb)"
        for results in ('{"total": 5}', "[]", "[1, 2]", "5"):
            with refused(q, "FL005", "one result per lease", what=results):
                q.execute(call, lease.job_id, lease.owner, results)


@probe("complete")
def arguments_that_are_not_to_be_kept_are_forgotten(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease(args={"secret": 1}, keep_args=False)
        expect("arguments for the worker", lease.args, {"secret": 1})
        q.complete(lease)
        expect("arguments in the ledger", q.job(lease.job_id).args, None)


@probe("complete")
def large_arguments_go_to_the_ledger_as_they_were_stored(sessions: Sessions) -> None:
    """Compressed stays compressed; what was not is not tried again, which would cost more than all the rest."""
    q = sessions.open()
    for storage in ("extended", "external"):
        with q.unsaved():
            q.execute(f"alter table faultline.open_jobs alter args set storage {storage}")
            lease = q.new_lease(args={"text": "again and " * 10_000})
            stored = q.value("select pg_column_size(args) from faultline.open_jobs")
            q.complete(lease)
            expect(f"bytes of {storage}", q.value("select pg_column_size(args) from faultline.ledger"), stored)
            expect("compressed", stored < 10_000, storage == "extended")  # noqa: PLR2004 - bytes


@probe("complete", "renew")
def a_late_write_is_good_until_the_job_was_reaped(sessions: Sessions) -> None:
    q = sessions.open()
    late, done = q.new_lease(lease_seconds=10), q.new_lease()
    sessions.clock.advance(3600)
    expect("a late renewal", q.renew(late), Unwritten())
    expect("a late completion", q.complete(done), Unwritten())
    expect("jobs reaped", q.reap(), [])


@probe("renew")
def a_renewal_counts_from_now_on(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    lease = q.new_lease(lease_seconds=10)
    sessions.clock.advance(8)
    expect("renew", q.renew(lease), Unwritten())
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


@probe("fail", "backoff")
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


_FAIL = "select faultline.fail(array[%s]::uuid[], array[1], array[%s], %s::jsonb)"


@probe("fail", "check_failures")
def failures_that_make_no_sense_are_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        for failures in (
            None,
            "null",
            "{}",
            "[]",
            '[{"then": "retry"}, {"then": "retry"}]',
            "[{}]",
            '[{"then": "explode"}]',
            '[{"then": "retry", "delay_seconds": -1}]',
            '[{"then": "retry", "delay_seconds": 31536001}]',
            '[{"then": "retry", "delay_seconds": "soon"}]',
            '[{"then": "fail", "calls": 7}]',
            "[1]",
        ):
            with refused(q, "FL005", "failures must be an array", what=repr(failures)):
                q.execute(_FAIL, lease.job_id, lease.owner, failures)
        expect("refused", q.execute(_FAIL, lease.job_id, lease.owner, '[{"then": "fail", "calls": null}]'), [])


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


@probe("release")
def snoozing_never_uses_up_attempts_nor_resets_the_token(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.enqueue(max_attempts=1)
        tokens = []
        for _ in range(10):
            lease = q.claim_one()
            tokens.append((lease.fencing_token, lease.attempt))
            q.release(lease, delays=[0])
        expect("tokens and attempts", tokens, [(n, 1) for n in range(1, 11)])


@probe("release", "wake", "wake_for")
def released_jobs_wake_who_has_claimed_past_them(sessions: Sessions) -> None:
    q = sessions.open()
    first, second, snoozed = q.new_lease(priority=-1), q.new_lease(priority=-2), q.new_lease(priority=-9)
    q.enqueue(priority=-50)
    q.execute("listen faultline")
    q.release(first, second, snoozed, delays=[None, None, 60])
    wanted = q.value(
        "select json_strip_nulls(json_build_object('queue', 'default', 'priority', -2, 'run_at', next_run_at))::text"
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
        expect("the second attempt's", q.step(second, "quote", "second"), Unwritten())
        expect("what is remembered", q.run(verbs.recall(second, "quote")), (True, "first"))
        expect("a step without a result", q.run(verbs.recall(second, "sent")), (True, None))
        tokens = "select array_agg(fencing_token) from faultline.steps where job_id = %s and name = 'quote'"
        expect("tokens", q.value(tokens, first.job_id), [1])


@probe("progress")
def progress_is_shown_and_no_place_for_much(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        q.progress(lease, {"percent": 10})
        q.progress(lease, {"percent": 20})
        expect("progress", q.job(lease.job_id).progress, {"percent": 20})
        with refused(q, "FL005", "65536 bytes"):
            q.progress(lease, "x" * 70_000)
