"""What screens read of flows: a tree, what waits, and how much of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from faultline.store import verbs
from faultline.store.reads import flows, views
from faultline.store.reads import suspended as suspended_jobs
from faultline.store.verbs import flow
from tests.flow.scenes import asked, begun, done, spawned, suspended

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.store.reads.flows import Flow
    from tests.driver import Clock, Driver


def read(queue: Driver, job_id: UUID, only_queues: list[str] | None = None) -> Flow:
    jobs, has_more = queue.run(flows.tree(job_id, only_queues=only_queues))
    below: list[Any] = [*flows.below(job_id, jobs, only_queues=only_queues)]
    (calls, more_calls), children, signals, parents = (queue.run(one) for one in below)
    record = queue.run(views.job(job_id))
    assert record is not None
    return flows.Flow(job_id, record.flow_id, jobs, calls, children, signals, parents, has_more or more_calls)


def test_a_tree_has_the_calls_of_each_job_and_the_children_of_each_call(queue: Driver) -> None:
    lease = begun(queue)
    done(queue, lease, "1", result={"text": "…"}, tries=3)
    call_id = spawned(queue, lease, "2", 3)
    suspended(queue, lease, "2", kind="children", name="part")
    first, second = queue.claim(2)
    queue.complete(first)
    queue.fail(second, then="fail", error="ValueError: no")

    found = read(queue, lease.job_id)

    assert [(call.number, call.kind, call.outcome, call.tries) for call in found.calls] == [
        ("1", "step", "done", 3),
        ("2", "children", None, 0),
    ]
    assert [(job.task, job.depth, job.call_id, job.index) for job in found.jobs] == [
        ("article", 0, None, None), ("part", 1, call_id, 0), ("part", 1, call_id, 1), ("part", 1, call_id, 2),
    ]  # fmt: skip
    assert [job.shown_state for job in found.jobs] == ["waiting", "succeeded", "failed", "queued"]
    (children,) = found.children
    assert (children.call_id, children.cells, children.ended) == (call_id, "sfq", 2)
    assert children.failed_ids == [second.job_id]
    assert found.flow_id == lease.job_id
    assert not found.is_cut
    child = read(queue, first.job_id)
    assert [(parent.job_id, parent.number, parent.index) for parent in child.parents] == [(lease.job_id, "2", 0)]


def test_numbers_are_ordered_as_numbers() -> None:
    ordered = sorted(["10", "2", "3.10", "3.9", "3"], key=flows.numbers)

    assert ordered == ["2", "3", "3.9", "3.10", "10"]


def test_the_children_of_a_large_group_are_cells_and_not_jobs(queue: Driver) -> None:
    lease = begun(queue)
    spawned(queue, lease, "1", 60)
    suspended(queue, lease, "1", kind="children", name="part")
    leases = queue.claim(12)
    queue.complete(*leases[:10])

    found = read(queue, lease.job_id)

    assert [job.task for job in found.jobs] == ["article"]
    assert found.children[0].cells == "s" * 10 + "rr" + "q" * 48
    assert (found.children[0].jobs, found.children[0].succeeded, found.children[0].running) == (60, 10, 2)


def test_jobs_of_other_queues_are_counted_and_not_shown(queue: Driver) -> None:
    lease = begun(queue)
    spawned(queue, lease, "1", 2, queue="secret")
    suspended(queue, lease, "1", kind="children", name="part")

    found = read(queue, lease.job_id, only_queues=["default"])

    assert [job.queue for job in found.jobs] == ["default"]
    assert (found.children[0].cells, found.children[0].elsewhere) == ("xx", 2)


def test_what_waits_is_listed_a_page_at_a_time_each_once(queue: Driver, clock: Clock) -> None:
    jobs = []
    for number in range(7):
        jobs.append(asked(queue, name="b" if number % 2 else "a"))
        clock.advance(1)

    seen: list[suspended_jobs.Waiting] = []
    behind = None
    for _ in range(10):
        page = queue.run(suspended_jobs.waiting(kind="signal", page_rows=3, behind=behind))
        seen += page.waiting
        behind = page.behind
        if behind is None:
            break

    assert [wait.job_id for wait in seen] == [*jobs[0::2], *jobs[1::2]]
    assert [wait.name for wait in seen] == ["a"] * 4 + ["b"] * 3
    named = queue.run(suspended_jobs.waiting(name="b", page_rows=50))
    assert [wait.job_id for wait in named.waiting] == jobs[1::2]
    everything = queue.run(suspended_jobs.waiting(page_rows=4))
    assert everything.behind is not None
    rest = queue.run(suspended_jobs.waiting(page_rows=4, behind=everything.behind))
    assert sorted(wait.job_id for page in (everything, rest) for wait in page.waiting) == sorted(jobs)
    assert queue.run(suspended_jobs.waiting(kind="sleep")).waiting == []
    assert queue.run(suspended_jobs.waiting(only_queues=["other"])).waiting == []


@pytest.mark.parametrize("kind", ["signal", None])
def test_what_stands_behind_many_that_do_not_match_is_listed_too(
    queue: Driver, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    for _ in range(6):
        asked(queue)
    queue.enqueue(queue="other")
    wanted = [suspended(queue, queue.claim_one(queue="other"), "1")]
    for _ in range(3):
        asked(queue)
    monkeypatch.setattr(suspended_jobs, "WINDOW", 2)

    seen: list[suspended_jobs.Waiting] = []
    behind, pages = None, 0
    while pages == 0 or behind is not None:
        page = queue.run(suspended_jobs.waiting(kind=kind, only_queues=["other"], page_rows=3, behind=behind))
        seen += page.waiting
        behind, pages = page.behind, pages + 1
        assert pages < 10

    assert [wait.job_id for wait in seen] == wanted
    assert pages == 6


def test_a_job_that_was_woken_or_cancelled_waits_no_more(queue: Driver) -> None:
    woken, cancelled, waits = asked(queue), asked(queue), asked(queue)
    queue.run(flow.signal(woken, "approval", {"ok": True}))
    queue.execute("select from faultline.resolve()")
    queue.run(verbs.cancel(cancelled))

    listed = queue.run(suspended_jobs.waiting(kind="signal"))

    assert [wait.job_id for wait in listed.waiting] == [waits]
    assert queue.run(suspended_jobs.totals()).waiting == {"signal": 1}


def test_totals_tell_how_late_the_oldest_nudge_is_and_what_is_left_to_sweep(queue: Driver) -> None:
    assert queue.run(suspended_jobs.totals()) == suspended_jobs.FlowTotals({}, 0.0, 0)
    lease = begun(queue)
    spawned(queue, lease, "1", 2)
    suspended(queue, lease, "1", kind="children", name="part")
    job_id = asked(queue)
    queue.run(flow.signal(job_id, "approval"))
    queue.run(verbs.cancel(lease.job_id))

    totals = queue.run(suspended_jobs.totals())

    assert totals.waiting == {"signal": 1}
    assert 0 < totals.oldest_nudge_seconds < 60
    assert totals.sweeps_left == 1
