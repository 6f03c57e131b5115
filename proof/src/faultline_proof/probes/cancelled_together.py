"""Queued and running jobs that are cancelled together: which ones, how many at once, and beside other sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.states import JobState
from faultline.store.reads import cancellable
from faultline.store.reads.cancellable import UnendedFilter
from faultline_proof.probes.probe import expect, probe
from faultline_proof.sessions import numbered_id

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


@probe("cancel_jobs")
def jobs_are_cancelled_together_by_queue_task_group_and_state(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        wanted = q.enqueue(task="a", queue="x", group="g")
        others = [
            q.enqueue(task="b", queue="x", group="g"),
            q.enqueue(task="a", queue="y", group="g"),
            q.enqueue(task="a", queue="x", group="h"),
            q.enqueue(task="a", queue="x"),
        ]
        running = q.new_lease(task="a")
        failed = q.new_lease(task="a")
        q.fail(failed, then="fail")
        which = UnendedFilter("x", "a", "g")
        preview = q.run(cancellable.count(which))
        expect("preview", (preview.queued, preview.running, preview.behind), (1, 0, None))
        expect("cancelled", q.run(cancellable.cancel(which)), cancellable.Cancelled(1, None))
        expect("the job", q.state(wanted), "cancelled")
        expect("the others", {q.state(job_id) for job_id in others}, {"queued"})
        expect("queued ones only", q.run(cancellable.cancel(UnendedFilter("default", state=JobState.QUEUED))).jobs, 0)
        expect("of no queue", q.run(cancellable.cancel(UnendedFilter(task="a", only_queues=["w"]))).jobs, 0)
        expect("of one queue", q.run(cancellable.cancel(UnendedFilter(task="a", only_queues=["y", "w"]))).jobs, 1)
        preview = q.run(cancellable.count(UnendedFilter("default")))
        expect("preview with a running one", (preview.queued, preview.running), (0, 1))
        expect("running ones", q.run(cancellable.cancel(UnendedFilter(state=JobState.RUNNING))).jobs, 1)
        expect("states", (q.state(running.job_id), q.state(failed.job_id)), ("cancelled", "failed"))
        expect("the rest", q.run(cancellable.cancel(UnendedFilter("x"))).jobs, 3)
        expect("cancelled again", q.run(cancellable.cancel(UnendedFilter("x"))).jobs, 0)


@probe("cancel_jobs")
def what_is_cancelled_together_goes_in_batches_from_the_newest_on(sessions: Sessions) -> None:
    q = sessions.open()
    which = UnendedFilter("default")
    with q.unsaved():
        ids = [q.enqueue(id=numbered_id(number)) for number in range(1, 5)]
        until = q.run(cancellable.count(which)).until
        if until is None:
            raise AssertionError("nothing was counted")
        late = q.enqueue(id=numbered_id(9))
        expect("nothing asked for", q.run(cancellable.cancel(which, max_jobs=0)).jobs, 0)
        first = q.run(cancellable.cancel(which.behind(until), max_jobs=2))
        expect("the first batch", first, cancellable.Cancelled(2, ids[2]))
        expect("states", [q.state(i) for i in (*ids, late)], ["queued", "queued", "cancelled", "cancelled", "queued"])
        second = q.run(cancellable.cancel(which.behind(ids[2]), max_jobs=3))
        expect("the second batch", (second, q.state(late)), (cancellable.Cancelled(2, None), "queued"))


@probe("cancel_jobs")
def one_batch_of_cancelled_jobs_has_a_limit_and_so_has_what_it_looks_at(sessions: Sessions) -> None:
    q = sessions.open()
    with q.unsaved():
        q.execute("set local session_replication_role = replica")
        q.execute(
            "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
            " queue, task, args) select lpad(n::text, 32, '0')::uuid, now(), now(), 30, 0, 5, true,"
            " 'q', case when n > 5 then 'new' else 'old' end, '{}' from generate_series(1, 10005) n"
        )
        q.execute("set local session_replication_role = origin")
        which = UnendedFilter(task="old")
        counted, old = q.run(cancellable.count(which)), q.run(cancellable.cancel(which))
        expect("counted within the window", (counted.jobs, counted.behind), (0, UUID("6".zfill(32))))
        expect("within the window", old, cancellable.Cancelled(0, UUID("6".zfill(32))))
        expect(
            "behind the window", q.run(cancellable.cancel(which.behind(UUID("6".zfill(32))))), cancellable.Cancelled(5, None)
        )
        expect("one batch", q.run(cancellable.cancel(UnendedFilter("q"), max_jobs=1500)).jobs, 1000)


@probe("cancel_jobs", "lock")
def a_locked_job_is_passed_over_by_who_cancels_many(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    held, free = q.enqueue(), q.enqueue()
    other.begin()
    other.execute("select from faultline.open_jobs where id = %s for update", held)
    expect("beside a lock", q.run(cancellable.cancel(UnendedFilter("default"))).jobs, 1)
    other.rollback()
    expect("states", (q.state(held), q.state(free)), ("queued", "cancelled"))
