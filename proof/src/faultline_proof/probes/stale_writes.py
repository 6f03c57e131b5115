"""What is refused when a lease is lost, verb by verb."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faultline.core.model import Unwritten
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused, the_one
from faultline_proof.probes.writes import BATCH_VERBS, LOSSES, VERBS, WRITES, reaped, taken

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.sessions import Session, Sessions


def _all_of(q: Session, job_id: UUID) -> tuple[object, object]:
    return q.job(job_id), q.execute("select * from faultline.steps where job_id = %s", job_id)


@probe(*WRITES, "refuse", "lease_status", "check_leases", "views.sql")
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


@probe(*WRITES, "fence", "lease_status", "refuse", "record_refusal")
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


@probe("fence", "lease_status")
def a_fence_without_a_token_or_an_owner_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        with refused(q, "FL001", "token_mismatch"):
            q.execute("select faultline.fence(%s, null, %s)", lease.job_id, lease.owner)
        with refused(q, "FL001", "token_mismatch"):
            q.execute("select faultline.fence(%s, 1, null)", lease.job_id)


@probe("refuse", "lease_status", *BATCH_VERBS)
def a_refusal_tells_the_stale_and_the_current_token(sessions: Sessions) -> None:
    q = sessions.open()
    for verb, call in VERBS.items():
        with q.unsaved():
            stale = q.new_lease()
            taken(q, stale)
            refusal = the_one("refusals", call(q, stale).stale)
            expect(f"current token told by {verb}", (refusal.lease, refusal.current_token), (stale, 2))
            entry = q.journal(stale.job_id)[-1]
            expect("who was refused", (entry.fencing_token, entry.owner), (1, stale.owner))
            wanted = {"verb": verb, "reason": "token_mismatch", "stale_token": 1, "current_token": 2}
            expect("what is on record", entry.detail, wanted)


@probe("lease_status", "refuse")
def what_is_not_there_is_not_running(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        lease = q.new_lease()
        q.execute("select set_config('faultline.verb', 'prune', true)")
        q.execute("delete from faultline.open_jobs")
        expect("a job that is gone", reasons(q.renew(lease)), ["not_running"])


@probe("lease_status", "refuse")
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

    unwritten = sessions.at_once(q, lambda s: s.record_start(lease))

    expect("a mark of what is done", (reasons(unwritten), unwritten.busy), (["not_running"], []))


@probe(*BATCH_VERBS, "refuse")
def leases_of_one_batch_are_told_apart(sessions: Sessions) -> None:
    q = sessions.open()
    for verb in ("renew", "record_start", "complete", "fail", "release"):
        with q.unsaved():
            stale = q.new_lease()
            reaped(q, stale)
            good = q.claim_one(worker="second")
            unwritten = BATCH_VERBS[verb](q, stale, good)
            expect(f"stale for {verb}", [refusal.lease for refusal in unwritten.stale], [stale])
            expect("on record", q.refusals(stale.job_id), [(verb, "token_mismatch")])
    with q.unsaved():
        lease = q.new_lease()
        expect("one lease twice", (q.renew(lease, lease), q.complete(lease, lease)), (Unwritten(), Unwritten()))
        expect("on record", q.journal(lease.job_id), [])
    for verb in ("renew", "record_start", "complete"):
        # As after a failover that took tokens back: the worker holds a grant of the lost history and one of this one.
        with q.unsaved():
            good = q.new_lease()
            forgotten = replace(good, owner="w/before")
            unwritten = BATCH_VERBS[verb](q, forgotten, good)
            expect(f"of two owners, stale for {verb}", [refusal.lease for refusal in unwritten.stale], [forgotten])


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
                with refused(q, "FL005", "arrays of the same length without nulls", what=f"{verb}({half})"):
                    q.execute(f"select faultline.{verb}({half}{more})")
