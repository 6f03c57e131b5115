"""Submissions that meet: of the same keys and ids, a completion, a prune."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, refused
from faultline_proof.sessions import numbered_id

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


@probe("insert_or_find_jobs", "enqueue_many", "keys")
def who_loses_the_race_for_a_key_gets_the_winners_job_if_it_was_committed(sessions: Sessions) -> None:
    q, winner, loser = sessions.open(), sessions.open(), sessions.open()
    for end in ("commit", "rollback"):
        winner.begin()
        first = winner.enqueue(idempotency_key=end)
        second = loser.start(lambda s, end=end: s.enqueue(idempotency_key=end))  # type: ignore[misc]
        sessions.wait_until_blocked(loser, second)
        getattr(winner, end)()
        expect(f"the winner's job, after {end}", second.result() == first, end == "commit")
    expect("jobs", q.value("select count(*) from faultline.jobs"), 2)


@probe("insert_or_find_jobs", "enqueue_many", "keys")
def twenty_submitters_with_one_key_make_one_job(sessions: Sessions) -> None:
    q, submitters = sessions.open(), [sessions.open() for _ in range(20)]
    answers = [each.start(lambda s: s.enqueue(args={"n": 1}, idempotency_key="order:1")) for each in submitters]
    expect("answers", len({answer.result() for answer in answers}), 1)
    expect("jobs", q.value("select count(*) from faultline.jobs"), 1)


@probe("insert_or_find_jobs", "enqueue_many", "keys")
def submissions_with_the_same_keys_in_opposite_order_do_not_deadlock(sessions: Sessions) -> None:
    _opposite_orders(sessions, [Submission("t", idempotency_key=key) for key in "abc"])


@probe("insert_or_find_jobs", "enqueue_many")
def submissions_with_the_same_ids_in_opposite_order_do_not_deadlock(sessions: Sessions) -> None:
    _opposite_orders(sessions, [Submission("t", id=numbered_id(n)) for n in (1, 2, 3)])


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


@probe("insert_or_find_jobs", "delete_already_completed")
def a_submission_sent_again_while_its_job_completes_does_not_run_it_again(sessions: Sessions) -> None:
    q, worker, client = sessions.open(), sessions.open(), sessions.open()
    lease = q.new_lease(id=numbered_id(7), priority=0)
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
    q.fail(q.new_lease(id=numbered_id(1)), then="fail")
    gate.begin()
    gate.enqueue(id=numbered_id(2))
    jobs = [Submission("t", id=numbered_id(n)) for n in (1, 2)]
    answer = client.start(lambda s: s.run(verbs.enqueue_many(jobs)))
    sessions.wait_until_blocked(client, answer)
    expect("pruned", q.run(verbs.prune("failed", older_than_seconds=0)), 1)
    gate.commit()
    with refused(q, "40001", "pruned at this moment"):
        answer.result()


@probe("insert_or_find_jobs")
def an_id_is_refused_where_a_finished_job_could_not_be_seen(sessions: Sessions) -> None:
    q, client = sessions.open(), sessions.open()
    lease = q.new_lease(id=numbered_id(7))
    for level in ("repeatable read", "serializable"):
        client.begin(level)
        client.execute("select from faultline.settings")
        if level == "repeatable read":
            q.complete(lease)
        with refused(client, "FL005", "only in READ COMMITTED"):
            client.enqueue(id=lease.job_id)
        client.enqueue()
        client.rollback()
