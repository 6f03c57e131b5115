"""Budgets as tasks see them: `job.take` in plain tasks, in threads and in programs, with real workers."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, ConfigError, CostTooHigh, Faultline, Job, JobFailed, JobRejected, JobState, Rate, Retries
from faultline.core.errors import BudgetNotFound
from faultline.core.host import Host
from tests.flow.running import signals, waits
from tests.limits.test_workers import PATIENCE, all_done, worked
from tests.worker.test_lost_answers import CutOnce

if TYPE_CHECKING:
    from tests.driver import Driver


class Uses:
    """When how much was used. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began_at = time.monotonic()
        self.all: list[tuple[float, float]] = []

    def use(self, cost: float) -> None:
        with self._lock:
            self.all.append((time.monotonic(), cost))

    def most_above(self, rate: float, burst: float) -> float:
        """By how much the worst span of time had more than the budget allows."""
        return max(
            sum(cost for at, cost in self.all if first <= at <= last) - burst - rate * (last - first)
            for first, _ in self.all
            for last, _ in self.all
            if first <= last
        )


def tokens(app: Faultline) -> float:
    [found] = app.limits.budgets()
    return found.tokens


# Plain tasks


@pytest.mark.parametrize("blocking", [False, True])
def test_two_workers_never_use_more_than_the_budget_and_use_no_attempt(app: Faultline, blocking: bool) -> None:  # noqa: FBT001
    uses = Uses()
    app.budget("openai", Rate(100, per=1, burst=20))

    @app.task(name="ask.async", max_attempts=1)
    async def ask(job: Job, cost: int) -> int:
        await job.take("openai", cost=cost)
        uses.use(cost)
        return job.attempt

    @app.task(name="ask.blocking", max_attempts=1)
    def ask_in_a_thread(job: BlockingJob, cost: int) -> int:
        job.take("openai", cost=cost)
        uses.use(cost)
        return job.attempt

    task: Any = ask_in_a_thread if blocking else ask
    costs = [20 if n % 10 == 0 else 1 + n % 5 for n in range(40)]
    handles = app.enqueue_many(task.bind(cost) for cost in costs)

    worked(app, {"default": 5}, lambda: all_done(app, handles))

    assert sorted(cost for _, cost in uses.all) == sorted(costs)
    # A use follows its take by a moment that is not always as long.
    assert uses.most_above(100, 20) <= 15
    assert [handle.result() for handle in handles] == [1] * 40
    taken_in = uses.all[-1][0] - uses.all[0][0]
    assert taken_in >= (sum(costs) - 20 - costs[-1]) / 100 - 0.1


def test_a_job_that_waits_holds_no_slot(app: Faultline) -> None:
    app.budget("openai", Rate(1, per=3600, burst=10))

    @app.task(name="ask")
    async def ask(job: Job) -> None:
        await job.take("openai", cost=10)

    @app.task(name="other")
    async def other() -> str:
        return "done"

    first, second = ask.enqueue(), ask.enqueue()

    async def story() -> None:
        await first.aresult(PATIENCE)
        assert await (await other.aenqueue()).aresult(PATIENCE) == "done"

    worked(app, {"default": 1}, story, workers=1)

    record = second.job()
    assert (record.state, record.attempt) == (JobState.QUEUED, 0)
    assert record.next_run_at is not None
    assert (record.next_run_at - record.created_at).total_seconds() > 30_000


def test_a_cost_above_the_burst_fails_the_job_at_once_and_names_all_three(app: Faultline) -> None:
    app.budget("openai", Rate(100, per=60, burst=50))

    @app.task(name="ask", max_attempts=5)
    async def ask(job: Job) -> None:
        await job.take("openai", cost=51)

    handle = ask.enqueue()

    async def story() -> None:
        with pytest.raises(JobFailed, match=r"CostTooHigh: .* takes 51 from budget openai, .* 50, its burst"):
            await handle.aresult(PATIENCE)

    worked(app, {"default": 1}, story, workers=1)

    assert handle.job().attempt == 1


def test_a_lower_burst_set_by_a_person_is_what_counts(app: Faultline) -> None:
    app.budget("openai", Rate(100))
    app.declare()
    app.limits.set_budget("openai", Rate(100, burst=10), by="ada", reason="they asked for it")

    @app.task(name="ask")
    async def ask(job: Job) -> None:
        with pytest.raises(CostTooHigh, match="10, its burst"):
            await job.take("openai", cost=11)

    handle = ask.enqueue()
    worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    [found] = app.limits.budgets()
    assert (found.effective["burst"], found.declared["burst"], found.changed_by) == (10, 100, "ada")
    app.limits.reset_budget("openai", by="ada")
    assert app.limits.budgets()[0].effective["burst"] == 100


@pytest.mark.parametrize("cost", [0, -1, math.nan, math.inf, "800", None, True, 10**400])
def test_a_cost_that_is_no_amount_is_refused(app: Faultline, cost: Any) -> None:
    app.budget("openai", Rate(100))

    @app.task(name="ask")
    async def ask(job: Job) -> None:
        with pytest.raises(JobRejected, match="the cost of a take must be"):
            await job.take("openai", cost=cost)

    handle = ask.enqueue()
    worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    assert tokens(app) == 100


def test_an_unknown_budget_and_a_take_in_a_transaction_are_refused(app: Faultline) -> None:
    app.budget("openai", Rate(100))

    @app.task(name="ask")
    async def ask(job: Job) -> None:
        with pytest.raises(BudgetNotFound, match='there is no budget "antropic"'):
            await job.take("antropic", cost=1)
        with pytest.raises(JobRejected, match="name of a budget"):
            await job.take("", cost=1)
        async with job.transaction():
            with pytest.raises(ConfigError, match="before the transaction"):
                await job.take("openai", cost=1)

    handle = ask.enqueue()
    worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    assert tokens(app) == 100


def test_each_attempt_takes_and_what_was_taken_is_not_given_back(app: Faultline) -> None:
    app.budget("openai", Rate(1, per=3600, burst=10))

    @app.task(name="ask", max_attempts=3, backoff=lambda _: 0.0)
    async def ask(job: Job) -> None:
        await job.take("openai", cost=2)
        if job.attempt < 3:
            raise ValueError("the provider is down")

    handle = ask.enqueue()
    worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    assert round(tokens(app)) == 4


@pytest.mark.parametrize("point", ["before_take_budget_sent", "after_take_budget_committed"])
def test_a_take_whose_answer_is_lost_is_paid_once(dsn: str, queue: Driver, point: str) -> None:
    cutting = CutOnce(point)
    runs = []
    with Faultline(dsn, host=Host(faults=cutting)) as app:
        app.budget("openai", Rate(1, per=3600, burst=10))

        @app.task(name="ask")
        async def ask(job: Job) -> None:
            runs.append(job.fencing_token)
            await job.take("openai", cost=2)
            await job.take("openai", cost=2)

        handle = ask.enqueue()
        worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

        assert (cutting.cuts, len(runs), round(tokens(app))) == (1, 1, 6)
    assert queue.broken_invariants() == []
    queue.execute("update faultline.budgets set tokens = -1")
    assert queue.broken_invariants() == ["a_budget_is_not_overdrawn"]


def test_a_raised_rate_lets_waiting_jobs_run_at_once(app: Faultline) -> None:
    app.budget("openai", Rate(1, per=3600, burst=10))

    @app.task(name="ask")
    async def ask(job: Job) -> None:
        await job.take("openai", cost=10)

    handles = [ask.enqueue(), ask.enqueue()]

    async def story() -> None:
        for _ in range(200):
            if sorted(str(one.job().state) for one in handles) == ["queued", "succeeded"]:
                break
            await asyncio.sleep(0.02)
        await app.limits.aset_budget("openai", Rate(1000, burst=10), by="ada")
        await all_done(app, handles)

    worked(app, {"default": 2}, story, workers=1)


def test_takes_in_a_task_group_wait_as_well(app: Faultline) -> None:
    app.budget("openai", Rate(50, per=1, burst=10))
    runs = []

    @app.task(name="ask", max_attempts=1)
    async def ask(job: Job) -> int:
        runs.append(job.fencing_token)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(job.take("openai", cost=5))
        return job.attempt

    handles = [ask.enqueue() for _ in range(2)]
    worked(app, {"default": 1}, lambda: all_done(app, handles), workers=1)

    assert len(runs) > 2
    assert [handle.result() for handle in handles] == [1, 1]


# Steps and programs


def test_a_step_that_is_done_does_not_pay_again(app: Faultline) -> None:
    app.budget("openai", Rate(1, per=3600, burst=10))
    asked = []

    @app.task(name="ask", max_attempts=3, backoff=lambda _: 0.0)
    async def ask(job: Job) -> None:
        async def call() -> str:
            await job.take("openai", cost=3)
            asked.append(job.attempt)
            return "answer"

        await job.step("call", call)
        if job.attempt < 3:
            raise ValueError("later work failed")

    handle = ask.enqueue()
    worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    assert (asked, round(tokens(app))) == ([1], 7)


@pytest.mark.parametrize("blocking", [False, True])
def test_a_take_before_a_step_is_not_paid_again_by_each_replay(app: Faultline, blocking: bool) -> None:  # noqa: FBT001
    app.budget("openai", Rate(1, per=3600, burst=10))

    @app.step
    async def call(n: int) -> int:
        return n

    @app.step
    def call_in_a_thread(n: int) -> int:
        return n

    @app.task(name="program.async")
    async def program(job: Job) -> int:
        await job.take("openai", cost=2)
        done = await job.do(call, 1)
        for _ in range(3):
            await job.sleep(0.15)
        await job.take("openai", cost=3)
        return done + await job.do(call, 2)

    @app.task(name="program.blocking")
    def program_in_a_thread(job: BlockingJob) -> int:
        job.take("openai", cost=2)
        done = job.do(call_in_a_thread, 1)
        for _ in range(3):
            job.sleep(0.15)
        job.take("openai", cost=3)
        return done + job.do(call_in_a_thread, 2)

    handle = program_in_a_thread.enqueue() if blocking else program.enqueue()
    result = worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    assert (result, round(tokens(app))) == (3, 5)
    assert handle.job().fencing_token > 3


@pytest.mark.parametrize("blocking", [False, True])
def test_a_program_waits_for_a_budget_while_its_other_branches_end(app: Faultline, blocking: bool) -> None:  # noqa: FBT001
    """Each part is asked for once, though the program runs again and again until there was enough for all."""
    app.budget("openai", Rate(50, per=1, burst=10))
    asked: list[int] = []

    @app.step
    async def call(n: int) -> int:
        asked.append(n)
        await asyncio.sleep(0.05)
        return n

    @app.step
    def call_in_a_thread(n: int) -> int:
        asked.append(n)
        time.sleep(0.05)
        return n

    @app.task(name="program.async", max_attempts=1)
    async def program(job: Job) -> list[int]:
        async def part(n: int) -> int:
            await job.take("openai", cost=5)
            return await job.do(call, n)

        return await job.gather(*(job.branch(part, n) for n in range(8)))

    @app.task(name="program.blocking", max_attempts=1)
    def program_in_a_thread(job: BlockingJob) -> list[int]:
        def part(n: int) -> int:
            job.take("openai", cost=5)
            return job.do(call_in_a_thread, n)

        return job.gather(*(job.later.branch(part, n) for n in range(8)))

    handle = program_in_a_thread.enqueue() if blocking else program.enqueue()
    result = worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    assert result == list(range(8))
    assert sorted(asked) == list(range(8))
    assert handle.job().attempt == 1


def test_a_take_inside_a_step_is_paid_by_each_try(app: Faultline) -> None:
    app.budget("openai", Rate(1, per=3600, burst=10))
    tries = []

    @app.task(name="program")
    async def program(job: Job) -> int:
        @app.step(retries=Retries(2, first=0.01))
        async def call() -> int:
            await job.take("openai", cost=2)
            tries.append(job.fencing_token)
            if len(tries) < 3:
                raise ValueError("the provider is down")
            return len(tries)

        found = await job.do(call)
        await job.sleep(0.15)
        return found

    handle = program.enqueue()
    result = worked(app, {"default": 1}, lambda: handle.aresult(PATIENCE), workers=1)

    assert (result, round(tokens(app))) == (3, 4)


def test_a_signal_wakes_a_program_that_waits_for_a_budget(app: Faultline) -> None:
    app.budget("openai", Rate(1, per=3600, burst=10))
    app.declare()

    @app.task(name="use up")
    async def use_up(job: Job) -> None:
        await job.take("openai", cost=10)

    @app.task(name="program")
    async def program(job: Job) -> str:
        async def ask() -> str:
            await job.take("openai", cost=10)
            return "asked"

        return (await job.race(job.receive("stop", str), job.branch(ask))).value

    async def story() -> str:
        await (await use_up.aenqueue()).aresult(PATIENCE)
        handle = await program.aenqueue()
        await waits(app)(handle)
        await signals(app, "stop", "stopped")(handle)
        found: str = await handle.aresult(PATIENCE)
        return found

    assert worked(app, {"default": 1}, story, workers=1) == "stopped"


def test_a_failing_program_uses_up_its_attempts_though_it_waits_each_time(app: Faultline, queue: Driver) -> None:
    app.budget("openai", Rate(20, per=1, burst=2))

    @app.step
    async def note() -> None: ...

    @app.task(name="program", max_attempts=3, backoff=lambda _: 0.0)
    async def program(job: Job) -> None:
        await job.do(note)
        await job.take("openai", cost=2)
        raise ValueError("the provider is down")

    handles = [program.enqueue() for _ in range(3)]

    async def story() -> None:
        for handle in handles:
            with pytest.raises(JobFailed, match="the provider is down"):
                await handle.aresult(PATIENCE)

    worked(app, {"default": 3}, story, workers=1)

    assert [handle.job().attempt for handle in handles] == [3, 3, 3]
    assert queue.broken_invariants() == []
