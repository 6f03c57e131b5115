"""Which queues have something to claim: the answer of one look is that of a claim for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.model import Bound, Submission
from faultline.store import verbs
from faultline.store.reads import views

if TYPE_CHECKING:
    from tests.driver import Clock, Driver, Sessions


def test_a_queue_is_due_when_a_claim_would_get_something(queue: Driver, clock: Clock) -> None:
    queue.enqueue(queue="now")
    queue.enqueue(queue="later", delay_seconds=60)
    queue.enqueue(queue="both", delay_seconds=60, priority=-5)
    queue.enqueue(queue="both", priority=3)
    queue.enqueue(queue="paused")
    queue.run(verbs.pause("paused"))
    queue.enqueue(queue="running")
    queue.claim_one(queue="running")
    names = ["now", "later", "both", "paused", "running", "empty"]

    assert queue.run(views.due(names)) == ["now", "both"]

    clock.advance(61)
    assert queue.run(views.due(names)) == ["now", "later", "both"]
    assert queue.run(views.due(["empty"])) == []


def test_a_look_steps_over_no_delayed_jobs(queue: Driver) -> None:
    queue.connection.execute(
        "select faultline.enqueue_many((select jsonb_agg(jsonb_build_object('task', 't', 'delay_seconds', 3600))"
        " from generate_series(1, 2000)))"
    )
    queue.connection.execute("vacuum analyze faultline.open_jobs")

    with queue.connection.transaction():
        assert queue.run(views.due(["default"])) == []
        rows = queue.value("select coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relname = 'open_jobs'")

    assert rows < 10


def test_a_bound_skips_what_lies_below_it_in_its_queue_at_its_priority_only(queue: Driver, clock: Clock) -> None:
    for name, priority in (("a", 0), ("b", 0), ("c", 3)):
        queue.enqueue(queue=name, priority=priority)
    clock.advance(10)
    bound = [Bound(0, queue.value("select faultline.now()"))]

    assert queue.run(views.due([*"abc"], {"a": bound, "c": bound})) == ["b", "c"]

    queue.enqueue(queue="a")
    assert queue.run(views.due([*"abc"], {"a": bound, "c": bound})) == ["a", "b", "c"]


def test_a_look_with_bounds_steps_over_no_job_that_was_done_while_somebody_held_an_old_snapshot(
    queue: Driver, sessions: Sessions
) -> None:
    holder = sessions.open()
    holder.begin("repeatable read")
    holder.do(lambda q: q.value("select count(*) from faultline.open_jobs"))
    queue.run(verbs.enqueue_many([Submission("t")] * 2000))
    last = None
    while leases := queue.claim(1000):
        queue.complete(*leases)
        last = leases[-1]
    assert last is not None
    bounds = {"default": [Bound(0, last.next_run_at, last.job_id)]}

    entries = (
        "select sum(pg_stat_get_xact_tuples_returned(indexrelid)) from pg_index"
        " where indrelid = 'faultline.open_jobs'::regclass"
    )

    with queue.connection.transaction():
        before = queue.value(entries)
        assert queue.run(views.due(["default"], bounds)) == []
        assert queue.value(entries) - before < 10
