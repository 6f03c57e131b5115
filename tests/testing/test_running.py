"""Jobs are run right here, by the real worker, until nothing is due; inline, an enqueue does that by itself."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline import BlockingJob, Cancel, ConfigError, Faultline, Job, JobFailed, JobState, Rate, Snooze
from faultline.store.reads import views
from faultline.testing import Drained, adrain, drain, frozen_time, inline

if TYPE_CHECKING:
    from faultline import Task
    from tests.driver import Driver


@pytest.fixture
def ran(app: Faultline) -> list[Any]:
    """What the tasks note. They run in this very process."""
    noted: list[Any] = []

    @app.task
    async def note(what: str) -> str:
        noted.append(what)
        return what

    @app.task(queue="other")
    def note_blocking(job: BlockingJob, what: str) -> str:
        noted.append(what)
        return f"{what}, attempt {job.attempt}"

    @app.task(max_attempts=2, backoff=lambda _: 60)
    async def stumble() -> None:
        noted.append("stumbled")
        raise LookupError("there is no such thing")

    return noted


def task(app: Faultline, name: str) -> Task[..., Any]:
    return app.tasks[name]


def test_what_is_due_is_run_in_the_order_of_the_queue(app: Faultline, ran: list[Any]) -> None:
    handles = [task(app, "note").enqueue(str(n)) for n in range(5)]

    drained = drain(app)

    assert drained == Drained(succeeded=5)
    assert ran == ["0", "1", "2", "3", "4"]
    assert [handle.job().result for handle in handles] == ran


def test_all_queues_are_drained_and_blocking_tasks_too(app: Faultline, ran: list[Any]) -> None:
    task(app, "note").options(queue="on the fly").enqueue("a")
    blocking = task(app, "note_blocking").enqueue("b")

    assert drain(app).succeeded == 2
    assert sorted(ran) == ["a", "b"]
    assert blocking.job().result == "b, attempt 1"


def test_a_named_queue_is_drained_alone(app: Faultline, ran: list[Any]) -> None:
    task(app, "note").enqueue("a")
    task(app, "note_blocking").enqueue("b")

    assert drain(app, "other").succeeded == 1
    assert ran == ["b"]


def test_jobs_that_jobs_enqueue_are_run_too(app: Faultline, ran: list[Any]) -> None:
    @app.task
    async def first() -> None:
        await task(app, "note_blocking").aenqueue("from an async task")
        await second.aenqueue()

    @app.task
    def second() -> None:
        task(app, "note").enqueue("from a blocking task")

    first.enqueue()

    assert drain(app) == Drained(succeeded=4)
    assert sorted(ran) == ["from a blocking task", "from an async task"]


def test_it_tells_how_the_attempts_ended(app: Faultline, ran: list[Any]) -> None:
    @app.task
    async def give_up() -> Cancel:
        return Cancel("no use")

    @app.task
    async def withdrawn(job: Job) -> None:
        await app.acancel(job.id)

    @app.task
    async def later() -> Snooze:
        return Snooze(60)

    task(app, "note").enqueue("a")
    task(app, "stumble").enqueue()
    task(app, "stumble").options(max_attempts=1).enqueue()
    give_up.enqueue()
    withdrawn.enqueue()
    later.enqueue()

    drained = drain(app)

    assert (drained.succeeded, drained.failed, drained.rescheduled, drained.cancelled) == (1, 1, 1, 2)
    assert [error.splitlines()[0] for error in drained.errors] == ["stumble: LookupError: there is no such thing"] * 2


def test_with_nothing_to_do_no_worker_is_started(app: Faultline, queue: Driver) -> None:
    queue.connection.execute(
        "create function nobody() returns trigger language plpgsql as $$ begin raise 'a worker'; end $$;"
        "create trigger nobody before insert on faultline.workers execute function nobody()"
    )

    assert drain(app) == Drained()


def test_a_delayed_job_waits_for_its_time(app: Faultline, ran: list[Any]) -> None:
    with frozen_time(app) as time:
        task(app, "note").options(delay=60).enqueue("a")
        early = drain(app)
        time.advance(60)

        assert (early, drain(app)) == (Drained(), Drained(succeeded=1))


def test_time_can_be_moved_on_until_no_job_waits(app: Faultline, ran: list[Any]) -> None:
    with frozen_time(app) as time:
        began = time.now
        task(app, "note").options(delay=3600).enqueue("an hour later")
        failing = task(app, "stumble").enqueue()

        drained = drain(app, advancing=time)

        assert ran == ["stumbled", "stumbled", "an hour later"]
        assert (drained.succeeded, drained.failed, drained.rescheduled) == (1, 1, 1)
        assert failing.job().state is JobState.FAILED
        assert (time.now - began).total_seconds() == 3600


def test_jobs_of_the_dead_are_taken_back_first(app: Faultline, queue: Driver, ran: list[Any]) -> None:
    with frozen_time(app) as time:
        task(app, "note").enqueue("a")
        task(app, "note").options(max_attempts=1).enqueue("its only attempt")
        queue.record_start(*queue.claim(worker="killed"))
        time.advance(31)

        drained = drain(app)

    assert (drained.succeeded, drained.failed) == (1, 1)
    assert ran == ["a"]


def test_jobs_that_wait_for_each_other_need_concurrency(app: Faultline) -> None:
    both = threading.Barrier(2)

    @app.task
    def meet() -> None:
        both.wait(20)

    app.enqueue_many([meet.bind(), meet.bind()])

    assert drain(app, concurrency=2).succeeded == 2


def test_what_never_ends_is_a_failed_test(app: Faultline) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    app.enqueue_many([hang.bind(), hang.options(queue="later").bind()])

    with pytest.raises(AssertionError, match=r"did not end within 0\.3 s; unfinished in queue default, later"):
        drain(app, timeout=0.3)


def test_no_worker_is_left_on_the_list(app: Faultline, ran: list[Any]) -> None:
    task(app, "note").enqueue("a")
    drain(app)

    assert app.database.run(views.workers()) == []


def test_in_an_event_loop_it_is_awaited(dsn: str) -> None:
    async def main() -> Drained:
        async with Faultline(dsn) as app:

            @app.task
            async def nothing() -> None: ...

            await nothing.aenqueue()
            with pytest.raises(ConfigError, match="write: await adrain"):
                drain(app)
            return await adrain(app)

    assert asyncio.run(main()) == Drained(succeeded=1)


def test_inline_an_enqueue_runs_the_job(app: Faultline, ran: list[Any]) -> None:
    with inline(app):
        handle = task(app, "note").enqueue("now")
        assert ran == ["now"]
        assert handle.job().result == "now"
        app.enqueue_many([task(app, "note_blocking").bind(what="b"), task(app, "note").bind(what="c")])
        assert sorted(ran) == ["b", "c", "now"]

    task(app, "note").enqueue("afterwards it only waits")
    assert len(ran) == 3


def test_inline_the_error_of_the_task_is_the_callers(app: Faultline, ran: list[Any]) -> None:
    @app.task(max_attempts=1)  # a second one could become due in the middle of what follows
    def blocking() -> None:
        raise KeyError("gone")

    @app.task
    async def odd() -> object:
        return object()

    with inline(app):
        with pytest.raises(LookupError, match="no such thing") as raised:
            task(app, "stumble").enqueue()
        with pytest.raises(KeyError, match="gone"):
            blocking.enqueue()
        with pytest.raises(JobFailed, match="odd: result of odd cannot be stored"):
            odd.enqueue()
        task(app, "note").enqueue("and on it goes")

    assert raised.traceback[-1].name == "stumble"
    assert ran[-1] == "and on it goes"


def test_inline_jobs_of_jobs_are_run_before_the_enqueue_returns(app: Faultline, ran: list[Any]) -> None:
    @app.task
    async def parent() -> None:
        await task(app, "note_blocking").aenqueue("async")
        task(app, "note").enqueue("blocking")
        ran.append("parent")

    with inline(app):
        parent.enqueue()

    assert ran[0] == "parent"
    assert sorted(ran[1:]) == ["async", "blocking"]


def test_inline_what_joins_a_transaction_or_is_not_due_waits(app: Faultline, dsn: str, ran: list[Any]) -> None:
    with inline(app):
        task(app, "note").options(delay=60).enqueue("later")
        with psycopg.connect(dsn) as connection:
            task(app, "note").using(connection).enqueue("once it is committed")
        assert ran == []

    drain(app)

    assert ran == ["once it is committed"]


@pytest.mark.parametrize("how", ["async", "blocking"])
def test_inline_works_in_an_event_loop(dsn: str, how: str) -> None:
    ran = []

    async def main() -> None:
        async with Faultline(dsn) as app:

            @app.task
            async def note(job: Job) -> None:
                ran.append(job.attempt)

            @app.task
            async def stumble() -> None:
                raise LookupError("there is no such thing")

            with inline(app):
                await enqueue(note, how)
                with pytest.raises(LookupError, match="no such thing"):
                    await enqueue(stumble, how)

    asyncio.run(main())

    assert ran == [1]


async def enqueue(task: Task[[], Any], how: str) -> None:
    if how == "async":
        await task.aenqueue()
    else:
        task.enqueue()


def test_it_is_imported_without_the_test_runner() -> None:
    program = "import sys, faultline.testing; sys.exit(any(name in sys.modules for name in ('pytest', 'typer')))"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_database_whose_name_does_not_say_test_is_left_alone(dsn: str) -> None:
    known = str(conninfo_to_dict(dsn)["dbname"])
    name = f"production_{secrets.token_hex(4)}"
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as owner:
        owner.execute(sql.SQL("alter database {} rename to {}").format(sql.Identifier(known), sql.Identifier(name)))
        try:
            with Faultline(make_conninfo(dsn, dbname=name)) as app:
                _judge_a_database_of_production(app)
        finally:
            owner.execute(sql.SQL("alter database {} rename to {}").format(sql.Identifier(name), sql.Identifier(known)))


def _judge_a_database_of_production(app: Faultline) -> None:
    handle = app.task(name="note")(lambda: None).enqueue()

    for refused in (lambda: drain(app), lambda: asyncio.run(adrain(app)), lambda: inline(app).__enter__()):
        with pytest.raises(ConfigError, match=r"nothing is run in production_\w+: .* neither test nor scratch"):
            refused()

    assert handle.job().state is JobState.QUEUED
    assert drain(app, test_database=True).succeeded == 1


def test_limits_hold_in_tests_too(app: Faultline) -> None:
    @app.task(queue=app.queue("slow", rate=Rate(1, per=3600)))
    async def ask(question: str) -> str:
        return question

    with inline(app):
        handles = [ask.enqueue("a"), ask.enqueue("b")]

    assert [handle.job().state for handle in handles] == [JobState.SUCCEEDED, JobState.QUEUED]


def test_schedules_do_not_tick_in_a_drain(app: Faultline) -> None:
    @app.schedule(every=60)
    @app.task
    async def report() -> None: ...

    with frozen_time(app) as time:
        drained = [drain(app)]
        time.advance(86_400)
        drained.append(drain(app))

    assert drained == [Drained(), Drained()]
