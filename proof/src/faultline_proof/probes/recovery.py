"""Recover: what it voids, the floor it chooses, and who meets it on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import Submission, Unwritten
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, reasons, refused
from faultline_proof.sessions import numbered_id

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


@probe("recover")
def recover_voids_every_lease_and_grants_only_tokens_above_the_floor(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        ids = [q.enqueue(), q.enqueue(), q.enqueue()]
        held = q.claim_one()
        q.fail(q.claim_one(), then="fail")
        q.record_start(held)
        expect("answer", q.run(verbs.recover(500)), (500, 1, 1))
        expect("the mark of the start", q.value("select bool_or(started) from faultline.open_jobs"), False)
        expect("states", [q.state(job_id) for job_id in ids], ["queued", "failed", "queued"])
        expect("journal", [q.events(job_id) for job_id in ids], [["recovered"], ["attempt_failed"], []])
        expect("an old lease", reasons(q.complete(held)), ["token_mismatch"])
        q.run(verbs.retry(ids[1]))
        again = q.claim()
        found = {lease.job_id: (lease.fencing_token, lease.attempt) for lease in again}
        expect("the next leases", found, dict.fromkeys(ids, (501, 1)))
        q.release(*again)
        expect("with a lower floor", q.run(verbs.recover(400)), (500, 0, 0))
        expect("and after it", [lease.fencing_token for lease in q.claim(3)], [502] * 3)
        expect("invariants broken", q.broken_invariants(), [])


@probe("recover")
def recover_records_who_did_it_and_why(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.enqueue()
        q.claim_one()
        q.run(verbs.recover(500, by="ann", reason="a restored backup"))
        signed = "select detail ->> 'by', detail ->> 'login' = session_user, detail ->> 'reason' from faultline.journal"
        expect("with the job", q.execute(f"{signed} where event = 'recovered'"), [("ann", True, "a restored backup")])
        floor = f'{signed} where detail @> \'{{"setting": "token_floor", "value": 500}}\''
        expect("with the floor", q.execute(floor), [("ann", True, "a restored backup")])


@probe("recover")
def recover_counts_the_journal_on_from_its_end(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.run(verbs.cancel(q.enqueue()))
        last = q.value("select max(id) from faultline.journal")
        q.execute("alter sequence faultline.journal_id_seq restart with 1")
        q.run(verbs.recover())
        q.run(verbs.cancel(q.enqueue()))
        expect("the next numbers", q.value("select max(id) from faultline.journal"), last + 2)


@probe("recover")
def recover_never_lowers_a_token_and_voids_every_lease(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        waiting = q.enqueue()
        q.run(verbs.recover(1000))
        lease = q.claim_one()
        expect("answer", q.run(verbs.recover(5)), (1000, 0, 1))
        expect("the token", (q.job(waiting).fencing_token, q.state(waiting)), (1001, "queued"))
        expect("the old lease", reasons(q.complete(lease)), ["lease_lost"])
        now = q.value("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
        floor, _, _ = q.run(verbs.recover())
        expect("without a floor: the time", now <= floor <= now + 60_000_000, True)
        expect("and once more: the time again", floor < q.run(verbs.recover())[0] <= now + 60_000_000, True)
        q.run(verbs.recover(5 * now))
        first, _, _ = q.run(verbs.recover())
        expect("above a floor that is ahead: a multiple of the time", 8 * now <= first <= 8 * now + 480_000_000, True)
        expect("and again", first < q.run(verbs.recover())[0] <= first + 480_000_000, True)


@probe("recover")
def two_recovers_of_the_same_state_choose_different_floors(sessions: Sessions) -> None:
    """As when one backup is restored, recovered, worked with and lost, and then restored and recovered again."""
    q = sessions.open()
    for ahead in (0, 1, 10**12, 3 * 10**17, 4 * 10**18):
        with q.unsaved():
            q.enqueue()
            q.run(verbs.recover(ahead or None))
            floors = []
            for recovers in (2, 1):  # the history that is lost has recovered once more
                with q.unsaved():
                    floors.append([q.run(verbs.recover())[0] for _ in range(recovers)][-1])
                    expect("the next token", q.claim_one().fencing_token, floors[-1] + 1)
            lost, kept = floors
            expect(f"above {lost}, and {ahead}: {kept}", kept > lost + 1 > ahead, True)


@probe("recover")
def a_floor_that_leaves_no_room_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.enqueue()
        for floor in (-1, 2**63 - 1):
            with refused(q, "FL005", "floor", what=str(floor)):
                q.run(verbs.recover(floor))


@probe("recover")
def recover_waits_for_a_fenced_transaction_and_does_not_deadlock_with_it(sessions: Sessions) -> None:
    q, worker, operator = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease()
    worker.begin()
    worker.fence(lease)
    answer = operator.start(lambda s: s.run(verbs.recover()))
    sessions.wait_until_blocked(operator, answer)
    expect("complete", worker.complete(lease), Unwritten())
    worker.commit()
    expect("what recover changed", answer.result()[1:], (0, 0))
    expect("the job", q.state(lease.job_id), "succeeded")


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
    q.enqueue()
    operator.begin()
    operator.run(verbs.recover(500))
    answer = worker.start(lambda s: s.claim_one())
    sessions.wait_until_blocked(worker, answer)
    operator.commit()
    expect("the token", answer.result().fencing_token, 501)


@probe("claim", "recover")
def a_claim_with_an_old_snapshot_grants_no_token_below_the_floor(sessions: Sessions) -> None:
    q, worker = sessions.open(), sessions.open()
    q.enqueue()
    worker.begin("repeatable read")
    worker.execute("select count(*) from faultline.jobs")
    q.run(verbs.recover(500))
    with refused(q, "FL005", "only"):
        worker.claim_one()
    worker.rollback()
    expect("the token", q.claim_one().fencing_token, 501)


@probe("claim", "recover")
def an_id_that_is_enqueued_again_beside_recover_never_sees_an_old_token(sessions: Sessions) -> None:
    """A lossy failover forgot the job; its client sends it again while the operator recovers."""
    q, operator, client = sessions.open(), sessions.open(), sessions.open()
    operator.begin()
    operator.run(verbs.recover(500))
    again = client.start(lambda s: s.enqueue(id=numbered_id(7)))
    sessions.wait_until_blocked(client, again)
    operator.commit()
    again.result()
    expect("the token", q.claim_one().fencing_token, 501)


@probe("claim", "prune")
def an_id_that_is_enqueued_again_beside_its_prune_never_sees_an_old_token(sessions: Sessions) -> None:
    q, upkeep, client = sessions.open(), sessions.open(), sessions.open()
    for what, token in (("failed", 6), ("ledger", 8)):
        lease = q.new_lease(id=numbered_id(7))
        for _ in range(4 if what == "failed" else 0):
            q.release(lease)
            lease = q.claim_one()
        q.fail(lease, then="fail") if what == "failed" else q.complete(lease)
        sessions.clock.advance(1000)
        upkeep.begin()
        upkeep.run(verbs.prune(what, older_than_seconds=60))
        again = client.start(lambda s: s.run(verbs.enqueue_many([Submission("t", id=numbered_id(7))])))
        if what == "failed":
            sessions.wait_until_blocked(client, again)
        else:
            expect("new, while it is still in the ledger", again.result()[0].created, False)
        upkeep.commit()
        again.result()
        q.enqueue(id=numbered_id(7))
        last = q.claim_one()
        expect("the token", last.fencing_token, token)
        q.complete(last)
        sessions.clock.advance(1000)
        q.run(verbs.prune("ledger", older_than_seconds=60))
    expect("invariants broken", q.broken_invariants(), [])
