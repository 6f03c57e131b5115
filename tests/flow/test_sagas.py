"""A saga is undone by errors of its own steps, once, and by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline import Faultline, Job, JobFailed, JobState
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, deploys, ended, job_of, journals, signals, waits

if TYPE_CHECKING:
    from faultline import Step


class Trip:
    """Steps of a trip, and what was run of them."""

    def __init__(self, app: Faultline) -> None:
        self.ran: list[Any] = []
        self.full = True
        ran = self.ran

        @app.step
        def flight(trip: int) -> str:
            ran.append("flight")
            return f"F{trip}"

        @app.step
        def cancel_flight(flight: str | None, trip: int) -> None:
            ran.append(("cancel flight", flight, trip))

        @app.step
        def hotel(trip: int) -> str:
            ran.append("hotel")
            if self.full:
                raise RuntimeError("no rooms")
            return f"H{trip}"

        @app.step
        def cancel_hotel(hotel: str | None, trip: int) -> None:
            ran.append(("cancel hotel", hotel, trip))

        self.flight: Step[[int], str] = flight
        self.hotel: Step[[int], str] = hotel
        self.cancel_flight: Step[..., None] = cancel_flight
        self.cancel_hotel: Step[..., None] = cancel_hotel


@KINDS
def test_finding_05_a_begun_step_is_undone_too_and_the_job_has_failed_for_good(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> list[str]:
        async with job.saga() as saga:
            flight = await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.sleep(0.01)
            hotel = await saga.do(trip.hotel, n, undo=trip.cancel_hotel)
            return [flight, hotel]

    handle = book.enqueue(7)
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert "the saga failed: step hotel failed: RuntimeError: no rooms; undone by: cancel_hotel, cancel_flight" in str(error)
    assert trip.ran == ["flight", "hotel", ("cancel hotel", None, 7), ("cancel flight", "F7", 7)]
    assert job_of(app, handle)["attempt"] == 1
    assert calls(app, handle)["1"]["outcome"] == "failed"


@KINDS
def test_finding_05_a_saga_is_not_undone_by_a_deployment(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    trip.full = False

    @task_of(app, kind)
    async def book(job: Job, n: int) -> list[str]:
        async with job.saga() as saga:
            flight = await saga.do(trip.flight, n, undo=trip.cancel_flight)
            await job.receive("go", bool)
            return [flight, await saga.do(trip.hotel, n, undo=trip.cancel_hotel)]

    @task_of(app, kind, name="changed")
    async def changed(job: Job, n: int) -> list[str]:
        async with job.saga() as saga:
            return [await saga.do(trip.hotel, n, undo=trip.cancel_hotel)]

    handle, original = book.enqueue(7), book.fn

    result = ended(
        app, handle, waits(app), deploys(app, book.name, changed.fn), signals(app, "go", True),
        journals(app, "program_changed"), deploys(app, book.name, original),
    )  # fmt: skip

    assert result == ["F7", "H7"]
    assert trip.ran == ["flight", "hotel"]


@KINDS
def test_an_error_between_the_steps_fails_the_attempt_and_undoes_nothing(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    trip.full = False
    failed: list[int] = []

    @task_of(app, kind, backoff=lambda _: 0)
    async def book(job: Job, n: int) -> str:
        async with job.saga() as saga:
            flight = await saga.do(trip.flight, n, undo=trip.cancel_flight)
            if not failed:
                failed.append(1)
                raise KeyError("a mistake")
            return flight

    assert ended(app, book.enqueue(7)) == "F7"
    assert trip.ran == ["flight"]


@KINDS
def test_a_program_may_undo_a_saga_on_purpose(app: Faultline, kind: str) -> None:
    trip = Trip(app)

    @task_of(app, kind)
    async def book(job: Job, n: int) -> None:
        async with job.saga() as saga:
            await saga.do(trip.flight, n, undo=trip.cancel_flight)
            saga.fail("too expensive")

    handle = book.enqueue(7)

    assert "the saga failed: too expensive" in str(ended(app, handle))
    assert trip.ran == ["flight", ("cancel flight", "F7", 7)]
    assert job_of(app, handle)["state"] == JobState.FAILED


@KINDS
def test_a_database_that_fails_between_the_steps_undoes_nothing(app: Faultline, kind: str) -> None:
    trip = Trip(app)
    trip.full = False
    failed: list[int] = []

    @task_of(app, kind, max_attempts=1)
    async def book(job: Job, n: int) -> list[str]:
        async with job.saga() as saga:
            flight = await saga.do(trip.flight, n, undo=trip.cancel_flight)
            if not failed:
                failed.append(1)
                async with job.transaction() as tx:
                    await tx.execute("select pg_terminate_backend(pg_backend_pid())")
            return [flight, await saga.do(trip.hotel, n, undo=trip.cancel_hotel)]

    handle = book.enqueue(7)

    assert ended(app, handle) == ["F7", "H7"]
    assert trip.ran == ["flight", "hotel"]
    assert job_of(app, handle)["fencing_token"] == 2


def test_a_database_that_fails_a_step_undoes_nothing_and_the_step_runs_again(app: Faultline) -> None:
    trip = Trip(app)
    jobs: list[Job] = []

    @app.step
    async def pay(trip_number: int) -> str:
        trip.ran.append("pay")
        async with jobs[-1].transaction() as tx:
            if len(jobs) == 1:
                await tx.execute("select pg_terminate_backend(pg_backend_pid())")
        return f"P{trip_number}"

    @app.task(max_attempts=1)
    async def book(job: Job, n: int) -> list[str]:
        jobs.append(job)
        async with job.saga() as saga:
            flight = await saga.do(trip.flight, n, undo=trip.cancel_flight)
            return [flight, await saga.do(pay, n, undo=trip.cancel_hotel)]

    assert ended(app, book.enqueue(7)) == ["F7", "P7"]
    assert trip.ran == ["flight", "pay", "pay"]
