"""Worker processes on queues with limits: killed, deployed with other limits, refused by the database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Faultline, JobHandle, Limit
from faultline.core.model import Submission
from faultline.store.verbs import limit
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


@contextlib.contextmanager
def worker(dsn: str, declares: int = 1) -> Iterator[subprocess.Popen[Any]]:
    command = [sys.executable, "-m", "faultline", "worker", "tests.limits.programs:app", "--queue", "mail=5"]
    environ = {**os.environ, "FAULTLINE_DSN": dsn, "FAULTLINE_TEST_LIMIT": str(declares)}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def effective(app: Faultline, group: str = "") -> Any:
    return next((one.effective.get("concurrency") for one in app.limits.read("mail") if one.group == group), None)


def test_the_permit_of_a_killed_worker_is_free_when_its_lease_has_ended(app: Faultline, dsn: str) -> None:
    first, second = app.enqueue_many([Submission("mail.hang", '{"tenant":"a"}', "mail", group="a") for _ in range(2)])
    with worker(dsn) as process:
        until(lambda: first.job().state == "running" or second.job().state == "running", PATIENCE)
        assert {first.job().state, second.job().state} == {"running", "queued"}
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    app.database.run(limit.set_limit("mail", "", {"concurrency": 1}))
    with worker(dsn) as process:
        # The second hangs in its first epoch, too: it has its permit because that of the first came back.
        until(lambda: "succeeded" in {first.job().state, second.job().state}, PATIENCE)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with worker(dsn):
        assert sorted([first.result(PATIENCE), second.result(PATIENCE)]) == [2, 2]


def test_a_build_that_starts_later_declares_its_limits_and_what_people_set_wins(app: Faultline, dsn: str) -> None:
    with worker(dsn, declares=3):
        until(lambda: effective(app) == 3, PATIENCE)
        with worker(dsn, declares=7):
            until(lambda: effective(app) == 7, PATIENCE)
            app.limits.set("mail", concurrency=2, by="ann", reason="the provider is slow")
    with worker(dsn, declares=9):
        until(lambda: next(one.declared for one in app.limits.read("mail")) == {"concurrency": 9}, PATIENCE)
        [whole, each] = app.limits.read("mail")
        assert (whole.effective, whole.override, whole.changed_by) == ({"concurrency": 2}, {"concurrency": 2}, "ann")
        assert (each.group, each.effective) == ("*", {"concurrency": 1})

        assert app.limits.reset("mail", by="ann")
        assert effective(app) == 9
        assert not app.limits.reset("mail", by="ann")
        assert not app.limits.reset("mial", by="ann")


def test_nothing_is_claimed_before_the_limits_are_declared(app: Faultline, dsn: str, monkeypatch: Any) -> None:
    """The database refuses the declaration for a while: a limit that does not exist yet must not be exceeded."""
    app.queue("mail", concurrency=1)
    running: list[int] = []
    declared: list[bool] = []

    @app.task(queue="mail")
    async def send(n: int) -> None:
        running.append(n)
        assert declared

    @app.task
    async def other(n: int) -> int:
        return n

    handles: list[JobHandle[Any]] = [send.enqueue(1), other.enqueue(2)]

    async def story() -> None:
        worker = app.worker({"mail": 5, "default": 5})
        run_all = worker._database.run_all  # noqa: SLF001

        async def refused(statements: Any) -> Any:
            if statements[0].name == "declare_queue" and len(declared) < 1:
                await handles[1].aresult(PATIENCE)  # other queues go on
                assert running == []
                declared.append(True)
                raise psycopg.errors.DeadlockDetected("deadlock detected")
            return await run_all(statements)

        monkeypatch.setattr(worker._database, "run_all", refused)  # noqa: SLF001
        monkeypatch.setattr(worker._declaring, "begin", lambda: asyncio.sleep(0))  # noqa: SLF001 - it would wait for itself
        async with asyncio.timeout(PATIENCE), worker:
            await handles[0].aresult(PATIENCE)
        await app.async_database.close()

    asyncio.run(story())

    assert running == [1]


def test_declaring_again_writes_nothing(app: Faultline) -> None:
    app.queue("mail", concurrency=1, each_group=Limit(weight=2))
    app.queue("plain")

    assert app.declare() == 1
    assert app.declare() == 0
    assert [one.queue for one in app.limits.read()] == ["mail", "mail"]


def test_a_declaration_that_is_gone_from_the_code_is_gone(app: Faultline, dsn: str) -> None:
    app.queue("mail", concurrency=1, groups={"a": Limit(concurrency=1)})
    app.declare()
    with Faultline(dsn) as later:
        later.queue("mail", concurrency=2)
        later.declare()

        assert {one.group: one.effective for one in later.limits.read("mail") if one.effective} == {"": {"concurrency": 2}}


@pytest.mark.parametrize("group", ["", "*", "tenant-7"])
def test_a_limit_of_zero_or_below_is_refused_by_the_database_too(app: Faultline, group: str) -> None:
    for fields in ({"concurrency": 0}, {"concurrency": -1}, {"rate": 0}, {"rate": -1}, {"burst": 0.5}, {"concurrency": 1.5}):
        with pytest.raises(ValueError, match=r"concurrency|rate|burst"):
            app.database.run(limit.set_limit("mail", group, fields))
    assert app.limits.read("mail") == []


@pytest.mark.parametrize("key", ["x" * 10_000, "*", "a\nb", ""])
def test_a_group_that_cannot_be_one_is_refused_by_the_database_too(app: Faultline, key: str) -> None:
    with pytest.raises(ValueError, match="group"):
        app.enqueue_many([Submission("t", queue="mail", group=key)])
