"""Operators undo what the sagas of a job have begun: of one that has ended, and of one that they cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, IllegalTransition, Job, JobCancelled, JobState, Snooze, StepFailed
from faultline.store import verbs
from faultline.testing import drain
from tests.app.kinds import KINDS, task_of
from tests.flow.running import children_of, ended, job_of, journal, waits
from tests.flow.test_sagas import Trip
from tests.flow.test_sagas_undone import FLIGHT
from tests.waiting import auntil
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    from faultline import JobHandle
    from tests.driver import Driver


def _cancels(app: Faultline, **words: Any) -> Any:
    async def cancel(handle: JobHandle[Any]) -> None:
        await app.acancel(handle.id, "withdrawn", **words)

    return cancel


@KINDS
def test_a_cancelled_job_undoes_its_sagas_if_that_is_asked_for(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.receive("go", bool)
            await saga.do(trip.hotel, n, undo=trip.cancel_hotel)

    handle = book.enqueue(7)
    error = ended(app, handle, waits(app), _cancels(app, undo=True))

    assert isinstance(error, JobCancelled)
    assert "cancelled: withdrawn; undone by: cancel_flight" in str(error)
    assert trip.ran == FLIGHT
    assert job_of(app, handle)["state"] == JobState.CANCELLED


@KINDS
def test_a_job_that_was_cancelled_is_undone_by_an_operator_once(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.receive("go", bool)

    handle = book.enqueue(7)
    assert "withdrawn" in str(ended(app, handle, waits(app), _cancels(app)))
    assert trip.ran == ["flight"]

    assert handle.undo(reason="they wait for it", by="ada") == JobState.QUEUED
    first = str(ended(app, handle))
    with pytest.raises(IllegalTransition, match="has nothing to undo"):
        handle.undo()

    assert "cancelled: withdrawn; undone by: cancel_flight" in first
    assert trip.ran == FLIGHT
    assert job_of(app, handle)["state"] == JobState.CANCELLED
    assert (
        journal(app, handle, "undo_begun")[0] | {"was": "cancelled", "by": "ada", "reason": "they wait for it"}
        == (journal(app, handle, "undo_begun")[0])
    )


@KINDS
def test_a_job_whose_worker_was_lost_in_its_last_attempt_is_undone_by_an_operator(
    app: Faultline, queue: Driver, kind: str
) -> None:
    trip = Trip(app)
    lost: list[Any] = []

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            if not lost:
                lost.append(job.id)
                raise Snooze(3600)
            await saga.do(trip.hotel, n, undo=trip.cancel_hotel)

    handle = book.enqueue(7)
    work(app, lambda: auntil(lambda: lost and job_of(app, handle)["state"] == "queued", PATIENCE))
    queue.execute("update faultline.open_jobs set next_run_at = now() where id = %s", handle.id)
    queue.claim_one()
    queue.execute(
        "update faultline.open_jobs set started = true, lease_expires_at = now() - interval '1 hour' where id = %s",
        handle.id,
    )
    queue.run(verbs.reap())
    assert job_of(app, handle)["state"] == JobState.FAILED

    handle.undo()

    assert "undone by: cancel_flight" in str(ended(app, handle))
    assert trip.ran == FLIGHT


def test_what_has_nothing_to_undo_is_refused(app: Faultline) -> None:
    trip = Trip(app)

    @app.task(max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
        await job.sleep(0.05)
        raise KeyError("a mistake")

    handle = book.enqueue(7)
    with pytest.raises(IllegalTransition, match="only a failed or cancelled job can be undone"):
        handle.undo()
    ended(app, handle)

    with pytest.raises(IllegalTransition, match="has nothing to undo"):
        handle.undo()
    assert trip.ran == ["flight"]


def test_the_children_of_a_job_that_is_undone_are_undone_too(app: Faultline) -> None:
    trip = Trip(app)

    @app.task
    async def child(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.receive("go", bool)

    @app.task
    async def parent(job: Job, n: int) -> None:
        await job.call(child, n)

    handle = parent.enqueue(7)

    async def child_waits(_: JobHandle[Any]) -> None:
        await auntil(lambda: trip.ran, PATIENCE)
        [one] = children_of(app, handle)
        await waits(app)(app.handle(one))

    async def child_ends(_: JobHandle[Any]) -> None:
        [one] = children_of(app, handle)
        with pytest.raises(JobCancelled, match="undone by: cancel_flight"):
            await app.handle(one).aresult(PATIENCE)

    ended(app, handle, child_waits, _cancels(app, undo=True), child_ends)

    assert trip.ran == FLIGHT


@pytest.mark.parametrize("levels", [1, 2])
def test_children_that_were_cancelled_when_their_parent_had_ended_are_undone_with_it(app: Faultline, levels: int) -> None:
    trip = Trip(app)

    @app.task
    async def child(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.receive("go", bool)

    @app.task
    async def between(job: Job, n: int) -> None:
        await job.call(child, n)

    @app.task
    async def parent(job: Job, n: int) -> None:
        trip.full = False
        async with job.saga() as saga:
            await saga.do(trip.hotel, n, undo=trip.cancel_hotel)
            await job.call(child if levels == 1 else between, n)

    handle = parent.enqueue(7)
    drain(app)
    app.cancel(handle.id, "withdrawn")
    drain(app)
    assert {job.state for job in app.jobs()} == {JobState.CANCELLED}
    assert trip.ran == ["hotel", "flight"]

    handle.undo()
    drain(app)

    assert sorted(map(str, trip.ran[2:])) == [str(("cancel flight", "F7", 7)), str(("cancel hotel", "H7", 7))]
    assert {job.state for job in app.jobs()} == {JobState.CANCELLED}


def test_a_worker_that_runs_a_job_can_write_nothing_once_it_is_undone(app: Faultline) -> None:
    trip = Trip(app)
    runs: list[int] = []

    @app.task
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            runs.append(1)
            if len(runs) == 1:
                await app.acancel(job.id, "withdrawn", undo=True)
            await saga.do(trip.hotel, n, undo=trip.cancel_hotel)

    assert "undone by: cancel_flight" in str(ended(app, book.enqueue(7)))
    assert trip.ran == FLIGHT


@KINDS
def test_a_retry_into_a_saga_that_was_left_opens_it_again(app: Faultline, kind: str) -> None:
    """The program caught the error of a part, left the saga, and failed by it. It comes by this way again."""
    trip = Trip(app)
    paid: list[str] = []

    @app.step(retries=0)
    def pay() -> None:
        paid.append("tried")
        if len(paid) == 1:
            raise ConnectionError("the bank is away")

    @app.step(retries=0)
    def confirm() -> None:
        raise ValueError("no such account")

    @app.step
    def note() -> None: ...

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            failure = None
            try:
                await saga.do(pay)
            except StepFailed as error:
                failure = error
            if failure is None:
                await saga.do(confirm)
        await job.do(note)
        if failure is not None:
            raise failure

    handle = book.enqueue(7)
    ended(app, handle)
    assert trip.ran == ["flight"]
    handle.retry()
    error = ended(app, handle)

    assert "undone by: cancel_flight" in str(error)
    assert trip.ran == FLIGHT
