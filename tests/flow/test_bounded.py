"""How many calls and children of one flow are open at once, and that branches are compared."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import psycopg
import pytest

from faultline import BlockingJob, ChildFailed, ConfigError, Faultline, Job, JobFailed
from faultline.testing import drain, frozen_time
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, children_of, ended, journal, signals


class Gauge:
    """How many were there at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("concurrency", [1, 3, None])
def test_so_many_steps_of_a_gather_run_at_once(app: Faultline, concurrency: int | None) -> None:
    gauge = Gauge()

    @app.step
    async def fetch(n: int) -> int:
        with gauge:
            await asyncio.sleep(0.001)
        return n

    @app.task
    async def program(job: Job) -> list[int]:
        return list(await job.gather(*(job.do(fetch, n) for n in range(12)), concurrency=concurrency))

    assert ended(app, program.enqueue()) == list(range(12))
    assert gauge.most == (concurrency or 12)


def test_so_many_steps_of_a_blocking_gather_run_at_once(app: Faultline) -> None:
    gauge = Gauge()
    met = threading.Barrier(2)

    @app.step
    def fetch(n: int) -> int:
        with gauge:
            met.wait(30)
        return n

    @app.task
    def program(job: BlockingJob) -> list[int]:
        return list(job.gather(*(job.later.do(fetch, n) for n in range(8)), concurrency=2))

    assert ended(app, program.enqueue()) == list(range(8))
    assert gauge.most == 2


def test_a_branch_that_waits_keeps_its_turn_over_all_runs(app: Faultline) -> None:
    ran: list[str] = []

    @app.step
    async def begin(name: str) -> None:
        ran.append(name)

    @app.task
    async def program(job: Job) -> list[str]:
        async def one(name: str) -> str:
            await job.do(begin, name)
            return await job.receive(f"go {name}", str)

        return list(await job.gather(*(job.branch(one, name) for name in "abcd"), concurrency=2))

    handle = program.enqueue()
    seen = []
    drain(app)
    seen.append("".join(ran))
    for name in "bdac":
        handle.signal(f"go {name}", name.upper())
        drain(app)
        seen.append("".join(sorted(ran)))

    assert handle.result(timeout=5) == ["A", "B", "C", "D"]
    # d's signal comes before its turn.
    assert seen == ["ab", "abc", "abc", "abcd", "abcd"]


def test_a_gather_goes_on_with_the_next_when_one_of_its_waits_is_over(app: Faultline) -> None:
    @app.task
    async def program(job: Job) -> list[int]:
        return list(await job.gather(*(job.receive(f"s{n}", int) for n in range(4)), concurrency=2))

    handle = program.enqueue()
    drain(app)
    assert list(calls(app, handle)) == ["1", "2"]
    handle.signal("s1", 1)
    drain(app)

    assert list(calls(app, handle)) == ["1", "2", "3"]
    assert ended(app, handle, *(signals(app, f"s{n}", n) for n in (3, 0, 2))) == [0, 1, 2, 3]


def open_children(app: Faultline) -> int:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        query = "select count(*) from faultline.open_jobs where queue = 'children' and state in ('queued', 'running')"
        row = connection.execute(query).fetchone()
    return row[0] if row else 0


@KINDS
@pytest.mark.parametrize(("concurrency", "items"), [(1, 4), (4, 11), (5, 11), (20, 11)])
def test_so_many_children_of_a_map_are_open_at_once(app: Faultline, kind: str, concurrency: int, items: int) -> None:
    @app.task(queue="children")
    async def child(n: int) -> int:
        return n * 10

    @task_of(app, kind)
    async def program(job: Job) -> list[int]:
        return await job.map(child, list(range(items)), concurrency=concurrency)

    handle = program.enqueue()
    most = []
    while handle.job().state != "succeeded":
        drain(app, "default")
        most.append(open_children(app))
        drain(app, "children")

    assert handle.result(timeout=5) == [n * 10 for n in range(items)]
    assert max(most) == min(concurrency if concurrency != 5 else 4, items)
    assert len(children_of(app, handle)) == items


@pytest.mark.parametrize("how", ["raise", "keep", "fast"])
def test_a_bounded_map_fails_as_its_policy_says_and_a_retry_goes_on(app: Faultline, how: Any) -> None:
    broken = [True]
    ran: list[int] = []

    @app.task(queue="children", max_attempts=1)
    async def child(n: int) -> int:
        ran.append(n)
        if n == 2 and broken:
            raise ValueError(f"bad {n}")
        return n

    @app.task
    async def program(job: Job) -> list[int | None]:
        return await job.map(child, list(range(8)), on_failure=how, concurrency=4)

    handle = program.enqueue()
    drain(app)
    drain(app)
    if how == "keep":
        assert handle.result(timeout=5) == [0, 1, None, 3, 4, 5, 6, 7]
        return
    with pytest.raises(JobFailed, match=r"1 of 8 jobs of child have not succeeded\. number 2: failed: ValueError: bad 2"):
        handle.result(timeout=5)
    assert 7 not in ran
    broken.clear()
    app.retry(handle.id)
    drain(app)
    drain(app)

    assert handle.result(timeout=5) == list(range(8))


def test_a_failure_of_a_bounded_map_may_be_caught(app: Faultline) -> None:
    @app.task(queue="children", max_attempts=1)
    async def child(n: int) -> int:
        raise ValueError(f"bad {n}")

    @app.task
    async def program(job: Job) -> list[int]:
        try:
            await job.map(child, [0, 1, 2], on_failure="fast", concurrency=2)
        except ChildFailed as error:
            await job.sleep(60)
            return sorted(error.errors)
        return []

    with frozen_time(app) as time:
        handle = program.enqueue()
        drain(app, advancing=time)

        assert handle.result(timeout=5) == [0]


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
def test_a_bound_that_makes_no_sense_is_refused(app: Faultline, concurrency: Any) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task(max_attempts=1)
    async def program(job: Job) -> list[str]:
        told = []
        makes: list[Any] = [
            lambda: job.gather(concurrency=concurrency),
            lambda: job.map(child, [1], concurrency=concurrency),
        ]
        for make in makes:
            try:
                make()
            except ConfigError as error:
                told.append(str(error))
        return told

    told = ended(app, program.enqueue())
    assert [one.partition(":")[0] for one in told] == ["job.gather", "job.map"]


# Branches are compared


def asks(app: Faultline, users: list[str], deleted: list[str]) -> Any:
    @app.step
    async def delete(user: str) -> str:
        deleted.append(user)
        return f"deleted {user}"

    @app.task(name="cleanup")
    async def cleanup(job: Job) -> list[str]:
        async def ask(user: str) -> str:
            return await job.do(delete, user) if await job.receive("allow", bool) else f"kept {user}"

        async def ask_both(first: str, second: str) -> list[str]:
            return list(await job.gather(job.branch(ask, first), job.branch(ask, second)))

        if len(users) == 2:
            return list(await job.gather(*(job.branch(ask, user) for user in users)))
        both: Any = await job.gather(job.branch(ask_both, users[0], users[1]), job.branch(ask, users[2]))
        return [str(one) for one in both]

    return cleanup


@pytest.mark.parametrize("nested", [False, True])
def test_branches_in_another_order_are_a_changed_program_so_no_answer_changes_places(
    app: Faultline, *, nested: bool
) -> None:
    users, deleted = (["ada", "bob", "cy"] if nested else ["ada", "bob"]), list[str]()
    handle = asks(app, users, deleted).enqueue()
    drain(app)
    handle.signal("allow", True, for_call="1.1.1" if nested else "1.1")
    handle.signal("allow", False, for_call="1.2.1" if nested else "2.1")

    users[:2] = ["bob", "ada"]  # another process with another hash seed
    told = drain(app).changed

    assert deleted == []
    assert len(told) == 1
    assert "the program has changed: branch 1 ('" in told[0]
    assert "had other arguments when this job ran it" in told[0]
    assert journal(app, handle, "program_changed")


@pytest.mark.parametrize("how", ["beside the job", "by name", "partial"])
def test_arguments_of_a_branch_are_compared_beside_others_that_cannot_be(app: Faultline, how: str) -> None:
    users = ["ada", "bob"]

    async def allowed(this: Job, user: str) -> bool:
        return await this.receive("allow", bool)

    @app.task
    async def program(job: Job) -> list[bool]:
        def ask(user: str) -> Any:
            if how == "partial":
                return job.branch(partial(allowed, job, user))
            return job.branch(allowed, job, user) if how == "beside the job" else job.branch(allowed, this=job, user=user)

        return list(await job.gather(*map(ask, users)))

    handle = program.enqueue()
    drain(app)
    handle.signal("allow", True)

    users.reverse()
    (told,) = drain(app).changed

    assert "branch 1 ('allowed') had other arguments when this job ran it" in told


@pytest.mark.parametrize("first", ["a saga without undos", "a sleep that is over"])
def test_arguments_of_a_branch_are_compared_although_its_first_call_is_not_recorded(app: Faultline, first: str) -> None:
    users = ["ada", "bob"]

    @app.task
    async def program(job: Job) -> list[bool]:
        async def allowed(user: str) -> bool:
            if first == "a sleep that is over":
                await job.sleep(0)
                return await job.receive("allow", bool)
            async with job.saga():
                return await job.receive("allow", bool)

        return list(await job.gather(*(job.branch(allowed, user) for user in users)))

    handle = program.enqueue()
    drain(app)
    handle.signal("allow", True)

    users.reverse()
    (told,) = drain(app).changed

    assert "branch 1 ('allowed') had other arguments when this job ran it" in told


def test_a_branch_of_another_function_is_a_changed_program(app: Faultline) -> None:
    which = ["a"]

    @app.task
    async def program(job: Job) -> list[int]:
        async def a() -> int:
            return await job.receive("go", int)

        async def b() -> int:
            return await job.receive("go", int)

        return list(await job.gather(job.branch(a if which == ["a"] else b)))

    handle = program.enqueue()
    drain(app)
    which[:] = ["b"]
    handle.signal("go", 1)

    (told,) = drain(app).changed

    assert "branch 1 was 'a' when this job ran it, and is 'b' now" in told


def test_a_branch_costs_no_statement(app: Faultline) -> None:
    """What it was made of rides with its calls."""

    @app.step
    async def one(n: int) -> int:
        return n

    @app.task
    async def program(job: Job, *, branches: bool) -> list[int]:
        async def part(n: int) -> int:
            return await job.do(one, n)

        return list(await job.gather(*(job.branch(part, n) if branches else job.do(one, n) for n in range(5))))

    handles = [program.enqueue(branches=branches) for branches in (False, True)]
    drain(app)

    assert [len(calls(app, handle)) for handle in handles] == [5, 5]
    assert "/part:" in calls(app, handles[1])["1.1"]["digest"]


def test_arguments_that_cannot_be_stored_are_not_compared(app: Faultline) -> None:
    @app.task
    async def program(job: Job) -> list[int]:
        async def part(this: Any, what: object) -> int:
            return await job.receive("go", int)

        return list(await job.gather(job.branch(part, job, object())))

    assert ended(app, program.enqueue(), signals(app, "go", 1)) == [1]
