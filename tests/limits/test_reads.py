"""What limits do now, as people read it: true, and cheap in a full database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.core.model import JobState
from faultline.store import verbs
from faultline.store.database import run_on
from faultline.store.reads import doctor_queries, groups, listing, overview, views

if TYPE_CHECKING:
    from tests.driver import Driver


def limit(queue: Driver, name: str, group: str, **fields: Any) -> None:
    queue.connection.execute("select faultline.set_limit(%s, %s, %s::jsonb)", [name, group, json.dumps(fields)])


def enqueue(queue: Driver, name: str, group: str | None, jobs: int = 1, **more: Any) -> None:
    document = json.dumps([{"task": "t", "queue": name, "group": group, **more} for _ in range(jobs)])
    queue.connection.execute("select * from faultline.enqueue_many(%s::json)", [document])


def claim(queue: Driver, name: str, jobs: int) -> list[Any]:
    found = queue.connection.execute("select * from faultline.claim(%s, 'w/1', %s)", [name, jobs])
    return found.fetchall()


def test_the_use_of_a_queue_is_counted_on_the_jobs_that_hold_permits(queue: Driver) -> None:
    limit(queue, "mail", "", concurrency=3, rate=10, per=1, burst=20)
    enqueue(queue, "mail", "a", 4)
    enqueue(queue, "mail", "b", 2)
    enqueue(queue, "plain", None)
    claim(queue, "mail", 10)

    [use] = run_on(queue.connection, groups.in_use())

    assert (use.queue, use.holding, use.waiting, use.groups_waiting, use.at_least) == ("mail", 3, 3, 2, False)
    assert use.limit == {"concurrency": 3, "rate": 10, "per": 1, "burst": 20}
    assert use.full
    assert use.tokens is not None
    assert 17 <= use.tokens <= 20
    assert run_on(queue.connection, groups.in_use("plain")) == []


def test_counts_stop_at_their_bounds_and_say_so(queue: Driver) -> None:
    limit(queue, "mail", "", concurrency=1)
    enqueue(queue, "mail", "a", 30)

    [use] = run_on(queue.connection, groups.in_use("mail", jobs_max=20))

    assert (use.waiting, use.at_least) == (20, True)


def test_jobs_without_a_group_and_those_from_before_the_limit_are_counted(queue: Driver) -> None:
    enqueue(queue, "mail", "a", 3)
    enqueue(queue, "mail", None, 2)
    limit(queue, "mail", "*", concurrency=1)
    enqueue(queue, "mail", "b", 4)
    queue.enqueue(queue="mail", delay_seconds=3600)

    [use] = run_on(queue.connection, groups.in_use())

    assert (use.waiting, use.ungrouped, use.passes_groups) == (7, 2, True)
    limit(queue, "mail", "*", concurrency=None, weight=2)
    [use] = run_on(queue.connection, groups.in_use())
    assert not use.passes_groups


def test_groups_come_by_their_wait_and_those_that_only_hold_come_last(queue: Driver) -> None:
    limit(queue, "mail", "*", concurrency=1, rate=1, per=3600, burst=1)
    limit(queue, "mail", "big", weight=5)
    for name in ("holds", "big", "late"):
        enqueue(queue, "mail", name)
    claim(queue, "mail", 10)
    enqueue(queue, "mail", "big", 3)
    enqueue(queue, "mail", "late")
    enqueue(queue, "mail", "new", 2)
    claim(queue, "mail", 1)

    page = run_on(queue.connection, groups.groups("mail"))

    assert [(line.group, line.holding, line.waiting) for line in page.groups] == [
        ("big", 1, 3),
        ("late", 1, 1),
        ("new", 1, 1),
        ("holds", 1, 0),
    ]
    assert page.groups[0].limit == {"concurrency": 1, "rate": 1, "per": 3600, "burst": 1, "weight": 5}
    assert page.groups[0].oldest_seconds is not None
    assert page.groups[-1].oldest_at is None
    assert (page.behind, page.more_groups) == (None, False)


def test_pages_of_groups_show_each_once(queue: Driver) -> None:
    limit(queue, "mail", "*", concurrency=1)
    for number in range(7):
        enqueue(queue, "mail", f"tenant-{number}")

    shown, behind = [], None
    while True:
        page = run_on(queue.connection, groups.groups("mail", page_rows=3, behind=behind))
        shown += [line.group for line in page.groups]
        behind = page.behind
        if behind is None:
            break

    assert shown == [f"tenant-{number}" for number in range(7)]


def test_more_groups_than_a_window_are_compared_window_by_window(queue: Driver) -> None:
    limit(queue, "mail", "*", concurrency=1)
    document = json.dumps([{"task": "t", "queue": "mail", "group": f"g{n:05}"} for n in range(groups.WINDOW + 3)])
    queue.connection.execute("select * from faultline.enqueue_many(%s::json)", [document])

    first = run_on(queue.connection, groups.groups("mail", page_rows=groups.WINDOW))
    assert first.more_groups
    second = run_on(queue.connection, groups.groups("mail", behind=first.behind))

    assert len(first.groups) == groups.WINDOW
    assert [line.group for line in second.groups] == [f"g{groups.WINDOW + n:05}" for n in range(3)]
    assert second.behind is None


def test_a_job_says_what_it_waits_for(queue: Driver) -> None:
    limit(queue, "mail", "", concurrency=2)
    limit(queue, "mail", "*", concurrency=1)
    enqueue(queue, "mail", "a", 2)
    [held] = claim(queue, "mail", 10)
    waits = queue.connection.execute("select id from faultline.open_jobs where in_group").fetchone()
    assert waits is not None

    holder = run_on(queue.connection, groups.permit(held[0]))
    waiter = run_on(queue.connection, groups.permit(waits[0]))

    assert holder is not None
    assert waiter is not None
    assert (holder.of_queue, holder.of_group) == (True, True)
    assert (waiter.of_queue, waiter.of_group, waiter.queue_holding, waiter.group_holding) == (False, False, 1, 1)


def test_a_job_that_waits_in_its_group_is_due_and_not_later(queue: Driver) -> None:
    limit(queue, "mail", "*", concurrency=1)
    enqueue(queue, "mail", "a", 3)
    enqueue(queue, "mail", None)
    enqueue(queue, "mail", "a", delay_seconds=3600)
    queue.connection.execute("set session_replication_role = replica")
    queue.connection.execute("update faultline.open_jobs set group_at = group_at - interval '1 minute' where in_group")
    queue.connection.execute("update faultline.open_jobs set created_at = created_at - interval '1 hour'")
    queue.run(verbs.sample())

    [line] = queue.run(overview.queues())
    [waiting] = queue.run(doctor_queries.waiting())

    assert (line.due, line.delayed, line.estimated) == (4, 1, [])
    assert line.oldest_due_seconds is not None
    assert 59 <= line.oldest_due_seconds <= 70
    assert 59 <= waiting.oldest_seconds <= 70


def test_an_estimate_counts_jobs_in_groups_as_due(queue: Driver) -> None:
    limit(queue, "mail", "*", concurrency=1)
    enqueue(queue, "mail", "a", 900)
    queue.connection.execute("select faultline.sample(exact_max => 100)")

    [line] = queue.run(overview.queues())

    assert "due" in line.estimated
    assert (line.due, line.delayed) == (900, 0)


def test_lists_show_when_a_job_in_a_group_is_due(queue: Driver) -> None:
    limit(queue, "mail", "*", concurrency=1)
    enqueue(queue, "mail", "a", 5)
    enqueue(queue, "mail", "b")
    wanted = listing.Wanted(state=JobState.QUEUED, queue="mail")

    shown, behind = [], None
    while True:
        page = queue.run(listing.jobs(wanted, page_jobs=2, behind=behind))
        shown += page.jobs
        behind = page.behind
        if behind is None:
            break
    record = queue.run(views.job(shown[0].id))

    assert len({job.id for job in shown}) == 6
    assert all(job.next_run_at is not None and job.next_run_at.year < 9999 for job in shown)
    assert all(job.in_group for job in shown)
    assert [job.group for job in queue.run(listing.jobs(listing.Wanted(group="b"), page_jobs=9)).jobs] == ["b"]
    assert record is not None
    assert (record.group, record.in_group, record.next_run_at) == (shown[0].group, True, shown[0].next_run_at)
