"""A worker that stops while the database answers late, or not at all: it gives back what it holds, or says what is left."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job
from faultline.core.errors import ConfigError, SchemaBehind
from faultline.core.model import JobState
from faultline_proof.proxy import Moment, Proxy
from tests.waiting import auntil, until
from tests.worker.test_processes import said, worker
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    from tests.driver import Driver


def events_of(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [record.faultline_fields for record in caplog.records if record.message == name]  # type: ignore[attr-defined]


@pytest.mark.parametrize("slots", [1, 5])
def test_what_a_claim_was_granted_whose_answer_is_late_is_given_back_by_a_worker_that_stops(
    dsn: str, queue: Driver, slots: int
) -> None:
    with Proxy(dsn, lambda *_, **__: None) as proxy, Faultline(proxy.dsn) as app:

        @app.task
        async def note() -> None: ...

        async def story() -> None:
            # The claim that meets it is the one that gets the job.
            cut = proxy.cut(r"faultline\.claim\(", Moment.AFTER_COMMITTED, silently=True)
            async with asyncio.timeout(PATIENCE):
                await asyncio.to_thread(cut.happened.wait)

        job_id = queue.enqueue("note", queue="late", lease_seconds=600)
        work(app, story, {"late": slots})

    assert (queue.state(job_id), queue.job(job_id).attempt) == (JobState.QUEUED, 0)
    assert queue.journal(job_id) == []


def test_jobs_that_are_stopped_when_the_grace_time_is_over_are_named(
    app: Faultline, caplog: pytest.LogCaptureFixture
) -> None:
    running = asyncio.Event()

    @app.task
    async def endless() -> None:
        running.set()
        await asyncio.Event().wait()

    handle = endless.enqueue()
    with caplog.at_level("INFO", "faultline"):
        work(app, running.wait, grace_seconds=0.05)

    (stopped,) = events_of(caplog, "attempt_stopped")
    assert (stopped["job_id"], stopped["task"]) == (handle.id, "endless")
    assert [fields["reason"] for fields in events_of(caplog, "worker_exit")] == ["success"]
    assert len(events_of(caplog, "worker_stopping")) == 1


def test_what_a_task_raises_after_it_completed_its_job_is_told(
    app: Faultline, queue: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def forgetful(job: Job) -> None:
        async with job.transaction() as tx:
            tx.complete("done")
        raise ValueError("no notification")

    handle = forgetful.enqueue()

    async def story() -> None:
        async with asyncio.timeout(PATIENCE):
            await auntil(lambda: events_of(caplog, "failed_after_completion"))

    work(app, story)

    (told,) = events_of(caplog, "failed_after_completion")
    assert (told["job_id"], told["task"]) == (handle.id, "forgetful")
    assert told["error"].startswith("ValueError: no notification\n")
    assert queue.state(handle.id) == JobState.SUCCEEDED


@pytest.mark.long
def test_a_worker_that_cannot_give_its_jobs_back_names_them_and_does_not_call_it_a_success(
    dsn: str, queue: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    running = asyncio.Event()
    with Proxy(dsn, lambda *_, **__: None) as proxy, Faultline(proxy.dsn) as app:

        @app.task
        async def endless() -> None:
            running.set()
            await asyncio.Event().wait()

        async def main() -> Any:
            stopping = app.worker({"default": 5}, grace_seconds=0.05)
            async with asyncio.timeout(2 * PATIENCE), stopping:
                await running.wait()
                # From here on nobody is reached.
                proxy.close()
            return stopping

        job_id = queue.enqueue("endless", lease_seconds=600)
        with caplog.at_level("INFO", "faultline"):
            stopped = asyncio.run(main())

    (unwritten,) = events_of(caplog, "ending_not_written")
    assert (unwritten["job_id"], unwritten["task"]) == (job_id, "endless")
    assert events_of(caplog, "worker_gave_up")[0]["jobs"] == 1
    assert [fields["reason"] for fields in events_of(caplog, "worker_exit")] == ["gave_up"]
    assert stopped.gave_up


@pytest.mark.long
def test_the_exit_code_of_a_worker_that_could_not_give_its_jobs_back_is_not_0(dsn: str, queue: Driver) -> None:
    job_id = queue.enqueue("nap", {"seconds": 600}, lease_seconds=600)
    with Proxy(dsn, lambda *_, **__: None) as proxy, worker(proxy.dsn, "--grace", "0.1") as process:
        # Granted is not enough: the worker must have heard of it.
        until(lambda: "the nap has begun" in said(process))
        proxy.close()

        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE) == 1
        assert f'"event": "ending_not_written", "job_id": "{job_id}", "task": "nap"' in said(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_task_that_handles_signals_leaves_them_to_the_worker(dsn: str, queue: Driver, number: signal.Signals) -> None:
    handles = queue.enqueue("handle_signals")
    job_id = queue.enqueue("nap", {"seconds": 600})
    with worker(dsn, "--grace", "0.1") as process:
        until(lambda: queue.state(handles) is JobState.SUCCEEDED and "the nap has begun" in said(process))
        until(lambda: f'"signal": "{number.name}"' in said(process))

        process.send_signal(number)

        assert process.wait(PATIENCE) == 0
        assert '"event": "signals_taken_back"' in said(process)
    assert (queue.state(job_id), queue.job(job_id).attempt) == (JobState.QUEUED, 0)


def test_a_worker_is_entered_once(app: Faultline) -> None:
    async def main() -> list[str]:
        first, other = app.worker({"default": 1}), app.worker({"default": 1})
        async with first:
            with pytest.raises(ConfigError, match="already") as inside:
                await first.run()
        with pytest.raises(ConfigError, match="already") as after:
            await first.run()
        entered = await asyncio.gather(other.__aenter__(), other.__aenter__(), return_exceptions=True)
        await other.__aexit__(None, None, None)
        return [str(inside.value), str(after.value), *(str(error) for error in entered if error is not other)]

    errors = asyncio.run(main())
    assert len(errors) == 3
    assert all("app.worker(" in error for error in errors)


def test_a_worker_that_did_not_reach_its_database_may_be_entered_again(app: Faultline, queue: Driver) -> None:
    late = app.worker({"default": 1})
    queue.connection.execute("alter function faultline.protocol rename to away")

    async def main() -> None:
        with pytest.raises(SchemaBehind):
            await late.run()
        queue.connection.execute("alter function faultline.away rename to protocol")
        async with late:
            pass

    asyncio.run(main())


def test_tasks_that_keep_every_thread_of_the_event_loop_do_not_keep_a_worker_from_ending(
    app: Faultline, queue: Driver
) -> None:
    may_end = threading.Event()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        kept = loop.run_in_executor(None, may_end.wait, 2 * PATIENCE)
        try:
            async with asyncio.timeout(PATIENCE), app.worker({"default": 1}):
                pass
        finally:
            may_end.set()
            await kept

    asyncio.run(story())

    assert queue.value("select count(*) from faultline.workers") == 0


def test_a_program_that_is_cancelled_while_its_worker_ends_leaves_no_job_running(app: Faultline, queue: Driver) -> None:
    """Whatever the worker waits for at that moment: here for its claims to stop."""
    running, left = asyncio.Event(), asyncio.Event()

    @app.task(lease=600)
    async def endless() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async def program(stopping: asyncio.Event, may_stop: asyncio.Event) -> None:
        async with app.worker({"default": 1}, grace_seconds=600) as worker:
            stop_services = worker._services.stop  # noqa: SLF001 - the worker is held up here

            async def slowly() -> None:
                stopping.set()
                await may_stop.wait()
                await stop_services()

            worker._services.stop = slowly  # type: ignore[method-assign]  # noqa: SLF001
            await running.wait()

    async def story() -> None:
        stopping, may_stop = asyncio.Event(), asyncio.Event()
        ending = asyncio.create_task(program(stopping, may_stop))
        async with asyncio.timeout(PATIENCE):
            await stopping.wait()
            ending.cancel()
            await asyncio.sleep(0)
            may_stop.set()
            with pytest.raises(asyncio.CancelledError):
                await ending
        assert left.is_set()

    handle = endless.enqueue()
    asyncio.run(story())

    assert queue.state(handle.id) is JobState.QUEUED


def test_all_tasks_of_a_program_can_be_cancelled_while_its_worker_ends_without_a_database(app: Faultline) -> None:
    """As `asyncio.run` does at the second Ctrl-C. Nothing may go on, and nothing may be started again."""

    @app.task(lease=600)
    async def slow_to_leave() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)

    async def away(*_: object) -> None:
        await asyncio.Event().wait()

    async def program(leaving: asyncio.Event) -> None:
        async with app.worker({"default": 5}, grace_seconds=600) as worker:
            while len(worker._executor._running) < 2:  # noqa: SLF001
                await asyncio.sleep(0.01)
            worker._completer._database.run = away  # type: ignore[assignment,method-assign]  # noqa: SLF001
            leaving.set()
            raise asyncio.CancelledError

    async def story() -> None:
        leaving = asyncio.Event()
        ending = asyncio.create_task(program(leaving))
        async with asyncio.timeout(PATIENCE):
            await leaving.wait()
            await asyncio.sleep(0.1)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert ending in others
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    slow_to_leave.enqueue()
    slow_to_leave.enqueue()
    asyncio.run(story())


def test_all_tasks_of_a_program_can_be_cancelled_while_its_worker_closes(
    app: Faultline, caplog: pytest.LogCaptureFixture
) -> None:
    """What was closed already is closed again, and the worker says once that it has ended."""

    async def program(closing: asyncio.Event) -> None:
        async with app.worker({"default": 1}) as worker:
            close = worker._databases.close  # noqa: SLF001 - the worker is held up here

            async def slowly() -> None:
                closing.set()
                await asyncio.sleep(0.2)
                await close()

            worker._databases.close = slowly  # type: ignore[method-assign]  # noqa: SLF001

    async def story() -> None:
        closing = asyncio.Event()
        ending = asyncio.create_task(program(closing))
        async with asyncio.timeout(PATIENCE):
            await closing.wait()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with caplog.at_level("INFO", "faultline"):
        asyncio.run(story())

    assert [fields["reason"] for fields in events_of(caplog, "worker_exit")] == ["success"]
