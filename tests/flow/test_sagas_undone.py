"""Everything final that leaves a saga's body undoes it; what a next attempt may repair does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from faultline import (
    Cancel,
    ChildFailed,
    Fail,
    Faultline,
    IllegalTransition,
    Job,
    JobState,
    Retry,
    SignalTimeout,
)
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, ended, job_of
from tests.flow.test_sagas import Trip

FLIGHT = ["flight", ("cancel flight", "F7", 7)]


@KINDS
def test_a_child_that_fails_undoes_the_saga(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @app.task(max_attempts=1)
    def pay(n: int) -> int:
        raise ValueError(f"declined {n}")

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.call(pay, n)

    handle = book.enqueue(7)
    error = str(ended(app, handle))

    assert "the saga failed: " in error
    assert "declined 7" in error
    assert "undone by: cancel_flight" in error
    assert trip.ran == FLIGHT
    assert job_of(app, handle)["state"] == JobState.FAILED
    assert calls(app, handle)["1"]["ended_at"] <= calls(app, handle)["1.1"]["begun_at"]


@KINDS
def test_a_signal_that_does_not_come_in_time_undoes_the_saga(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.receive("approval", bool, timeout=0.05)

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran == FLIGHT


@KINDS
def test_a_signal_that_does_not_fit_undoes_the_saga(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.receive("approval", int)

    handle = book.enqueue(7)
    handle.signal("approval", "yes")

    assert "undone by: cancel_flight" in str(ended(app, handle))
    assert trip.ran == FLIGHT


@KINDS
@pytest.mark.parametrize("attempts", [1, 2])
def test_an_error_of_the_body_undoes_the_saga_once_the_attempts_are_used_up(
    app: Faultline, kind: str, attempts: int
) -> None:
    trip = Trip(app)
    raised: list[int] = []

    @task_of(app, kind, max_attempts=attempts, backoff=lambda _: 0)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            # Only as often as it has attempts: that the saga has failed is decided by then.
            if len(raised) < attempts:
                raised.append(1)
                raise KeyError("a mistake")
            await saga.do(trip.hotel, n, undo=trip.cancel_hotel)

    handle = book.enqueue(7)
    error = str(ended(app, handle))

    assert "the saga failed: KeyError: 'a mistake'; undone by: cancel_flight" in error
    assert trip.ran == FLIGHT
    assert len(raised) == attempts
    assert job_of(app, handle)["state"] == JobState.FAILED


@KINDS
def test_what_the_task_gives_up_on_undoes_the_saga_at_once(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind, give_up_on=(ValueError,))
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            raise ValueError("not a customer")

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran == FLIGHT


@KINDS
@pytest.mark.parametrize("how", ["raise", "return"])
@pytest.mark.parametrize("outcome", [Fail("too expensive"), Cancel("too expensive")], ids=["fail", "cancel"])
def test_an_outcome_that_ends_the_job_undoes_the_saga_and_the_job_ends_by_it(
    app: Faultline, kind: str, how: str, outcome: Fail | Cancel
) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> Any:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            if how == "raise":
                raise outcome
            return outcome

    handle = book.enqueue(7)
    error = str(ended(app, handle))

    assert "too expensive; undone by: cancel_flight" in error
    assert trip.ran == FLIGHT
    assert job_of(app, handle)["state"] == (JobState.FAILED if isinstance(outcome, Fail) else JobState.CANCELLED)


@KINDS
def test_an_outcome_that_asks_for_another_attempt_undoes_nothing(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    asked: list[int] = []

    @task_of(app, kind)
    async def book(job: Job, n: int) -> str:
        async with job.saga() as saga:
            flight = await saga.do(trip.flight, n, undo=trip.cancel_flight)
            if not asked:
                asked.append(1)
                raise Retry(0)
            return flight

    assert ended(app, book.enqueue(7)) == "F7"
    assert trip.ran == ["flight"]


@KINDS
def test_an_attempt_that_takes_too_long_undoes_the_saga_if_it_was_the_last(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    slow = [1]

    @app.step
    async def think() -> None:
        if slow:
            slow.clear()
            await asyncio.sleep(20)

    @app.task(max_attempts=1, timeout=0.3)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.do(think)

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran == FLIGHT


@KINDS
def test_a_program_cannot_go_on_after_an_error_that_left_its_saga(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def book(job: Job, n: int) -> str:
        try:
            async with job.saga() as saga:
                await saga.do(trip.flight, n, undo=trip.cancel_flight)
                raise KeyError("a mistake")  # noqa: TRY301 - the user's program
        except KeyError:
            await job.do(trip.hotel, n)
        return "went on"

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran == FLIGHT


@KINDS
def test_a_failure_undoes_the_sagas_around_it_too_the_inner_one_first(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as outer:
            await outer.do(trip.flight, n, undo=trip.cancel_flight)
            async with job.saga() as inner:
                await inner.do(trip.hotel, n, undo=trip.cancel_hotel)

    error = str(ended(app, book.enqueue(7)))

    assert "the saga failed: step hotel failed: RuntimeError: no rooms; undone by: cancel_hotel, cancel_flight" in error
    assert trip.ran == ["flight", "hotel", ("cancel hotel", None, 7), ("cancel flight", "F7", 7)]


@KINDS
def test_a_failure_in_one_branch_undoes_the_sagas_of_the_others(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async def fly() -> None:
            async with job.saga() as saga:
                await saga.do(trip.flight, n, undo=trip.cancel_flight)
                await job.receive("go", bool)

        async def stay() -> None:
            await job.sleep(0.05)
            async with job.saga() as saga:
                await saga.do(trip.hotel, n, undo=trip.cancel_hotel)

        later = getattr(job, "later", job)
        await job.gather(later.branch(fly), later.branch(stay))

    error = str(ended(app, book.enqueue(7)))

    assert "the saga failed: step hotel failed" in error
    assert sorted(map(str, trip.ran)) == sorted(
        map(str, ["flight", "hotel", ("cancel hotel", None, 7), ("cancel flight", "F7", 7)])
    )


@KINDS
@pytest.mark.parametrize("beside", ["gather", "race"])
def test_what_a_branch_that_waits_has_begun_is_undone_before_the_saga_around_it(
    app: Faultline, kind: str, beside: str
) -> None:
    trip = Trip(app)
    trip.full = False

    @app.task(max_attempts=1)
    def pay() -> None:
        raise ValueError("declined")

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async def fails() -> None:
            await job.call(pay)

        async def waits() -> None:
            async with job.saga() as inner:
                await inner.do(trip.hotel, n, undo=trip.cancel_hotel)
                await job.receive("go", bool)

        make: Any = getattr(job, "later", job)
        async with job.saga() as outer:
            await outer.do(trip.flight, n, undo=trip.cancel_flight)
            if beside == "race":
                await job.race(make.branch(fails), make.branch(waits), make.sleep(3600))
            else:
                await job.gather(make.branch(waits), make.branch(fails))

    handle = book.enqueue(7)
    error = str(ended(app, handle))

    assert "declined" in error
    if beside == "gather":
        assert trip.ran == ["flight", "hotel", ("cancel hotel", "H7", 7), ("cancel flight", "F7", 7)]
    else:
        # It is no saga that has failed there, so the child wins by its error, and the other branch loses.
        assert trip.ran == ["flight", "hotel", ("cancel flight", "F7", 7)]


@KINDS
@pytest.mark.parametrize("beside", ["gather", "race"])
def test_of_sagas_beside_each_other_both_are_undone_before_the_one_around_them(
    app: Faultline, kind: str, beside: str
) -> None:
    ran: list[Any] = []

    @app.step
    def reserve(n: int) -> int:
        return n

    @app.step
    def release(reserved: int | None, n: int) -> None:
        ran.append(n)

    @app.task(max_attempts=1)
    def pay() -> None:
        raise ValueError("declined")

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job) -> None:
        async def one(n: int) -> None:
            async with job.saga() as inner:
                await inner.do(reserve, n, undo=release)
                if n == 1:
                    await job.call(pay)
                await job.receive("go", bool)

        make: Any = getattr(job, "later", job)
        calls = [make.branch(one, 1), make.branch(one, 2)]
        async with job.saga() as outer:
            await outer.do(reserve, 0, undo=release)
            await (job.race(*calls) if beside == "race" else job.gather(*calls))

    handle = book.enqueue()
    error = str(ended(app, handle))

    assert sorted(ran[:2]) == [1, 2]
    assert ran[2:] == [0]
    assert "undone by: release, release, release" in error


@KINDS
def test_a_saga_that_was_left_stays_although_what_follows_fails(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
        raise KeyError("a mistake")

    assert "a mistake" in str(ended(app, book.enqueue(7)))
    assert trip.ran == ["flight"]


@KINDS
def test_steps_that_the_branches_of_a_saga_have_begun_are_undone_by_a_later_run_too(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    trip.full = False

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:

            async def fly() -> None:
                await saga.do(trip.flight, n, undo=trip.cancel_flight)
                await job.receive("go", bool, timeout=0.1)

            async def stay() -> None:
                await saga.do(trip.hotel, n, undo=trip.cancel_hotel)
                await job.receive("never", bool)

            later = getattr(job, "later", job)
            await job.gather(later.branch(fly), later.branch(stay))

    assert "undone by: cancel_hotel, cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran[2:] == [("cancel hotel", "H7", 7), ("cancel flight", "F7", 7)]


@KINDS
def test_a_job_whose_saga_was_undone_is_not_retried(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    paid: list[int] = []

    @app.task(max_attempts=1)
    def pay(n: int) -> int:
        paid.append(n)
        raise ValueError("declined")

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.call(pay, n)

    handle = book.enqueue(7)
    assert "undone by: cancel_flight" in str(ended(app, handle))

    with pytest.raises(IllegalTransition, match="the saga of call 1 was undone"):
        app.retry(handle.id)
    assert trip.ran == FLIGHT
    assert paid == [7]


@KINDS
def test_an_undo_has_attempts_of_its_own(app: Faultline, kind: str) -> None:
    tries: list[int] = []

    @app.step
    def flight() -> str:
        return "F7"

    @app.step
    def cancel_flight(flight: str | None) -> None:
        tries.append(1)
        if len(tries) < 2:
            raise OSError("no connection")

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def book(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(flight, undo=cancel_flight)
            raise KeyError("a mistake")

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue()))
    assert len(tries) == 2


# Children as parts of a saga


@KINDS
def test_a_child_of_a_saga_is_undone_with_its_result(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    ran: list[Any] = []

    @app.task
    def pay(n: int) -> str:
        return f"P{n}"

    @app.step
    def refund(paid: str | None, n: int) -> None:
        ran.append((paid, n))

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            assert await saga.call(pay, n, undo=refund) == "P7"
            await saga.do(trip.hotel, n, undo=trip.cancel_hotel)

    assert "undone by: cancel_hotel, refund" in str(ended(app, book.enqueue(7)))
    assert ran == [("P7", 7)]


@KINDS
def test_a_child_of_a_saga_that_failed_is_undone_without_a_result(app: Faultline, kind: str) -> None:
    ran: list[Any] = []

    @app.task(max_attempts=1)
    def pay(n: int) -> str:
        raise ValueError("declined")

    @app.step
    def refund(paid: str | None, n: int) -> None:
        ran.append((paid, n))

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.call(pay, n, undo=refund)

    assert "undone by: refund" in str(ended(app, book.enqueue(7)))
    assert ran == [(None, 7)]


@KINDS
def test_a_child_that_is_still_open_has_ended_before_it_is_undone(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    ran: list[Any] = []
    parents: list[Any] = []

    @app.task
    async def pay(job: Job, n: int) -> str:
        parents.append(job.id)
        await job.receive("paid", bool)
        return f"P{n}"

    @app.step
    def refund(paid: str | None, n: int) -> None:
        ran.append((paid, n, app.job(parents[0]).state))

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:

            async def first() -> None:
                await saga.call(pay, n, undo=refund)

            async def second() -> None:
                await job.sleep(0.3)
                await saga.do(trip.hotel, n, undo=trip.cancel_hotel)

            later = getattr(job, "later", job)
            await job.gather(later.branch(first), later.branch(second))

    assert "undone by: cancel_hotel, refund" in str(ended(app, book.enqueue(7)))
    assert ran == [(None, 7, JobState.CANCELLED)]


def test_what_the_program_may_catch_inside_its_saga_does_not_undo_it(app: Faultline) -> None:
    trip = Trip(app)

    @app.task(max_attempts=1)
    def pay(n: int) -> str:
        raise ValueError("declined")

    @app.task
    async def book(job: Job, n: int) -> list[str]:
        async with job.saga() as saga:
            flight = await saga.do(trip.flight, n, undo=trip.cancel_flight)
            paid = "paid"
            try:
                await job.call(pay, n)
            except ChildFailed:
                paid = "not paid"
            try:
                await job.receive("approval", timeout=0.05)
            except SignalTimeout:
                paid += ", not approved"
        return [flight, paid]

    assert ended(app, book.enqueue(7)) == ["F7", "not paid, not approved"]
    assert trip.ran == ["flight"]


@KINDS
def test_a_retry_of_a_job_whose_undo_failed_undoes_the_rest_and_calls_no_child_again(app: Faultline, kind: str) -> None:
    paid: list[int] = []
    down = [1]

    @app.task(max_attempts=1)
    def pay(n: int) -> int:
        paid.append(n)
        raise ValueError("declined")

    @app.step
    def flight() -> str:
        return "F7"

    @app.step
    def cancel_flight(flight: str | None) -> None:
        if down:
            raise OSError("no connection")

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(flight, undo=cancel_flight)
            await job.call(pay, 7)

    handle = book.enqueue()
    assert "not undone: step undo cancel_flight failed" in str(ended(app, handle))

    down.clear()
    app.retry(handle.id)

    assert "undone by: cancel_flight" in str(ended(app, handle))
    assert paid == [7]


@KINDS
def test_a_declared_error_that_leaves_the_saga_undoes_it(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    class SoldOut(Exception):
        pass

    @app.step(raises=(SoldOut,))
    def pay() -> str:
        raise SoldOut("nothing left")

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await saga.do(pay)

    handle = book.enqueue(7)

    assert "undone by: cancel_flight" in str(ended(app, handle))
    assert trip.ran == FLIGHT
    assert job_of(app, handle)["attempt"] == 1
