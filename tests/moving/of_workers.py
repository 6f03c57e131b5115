"""Checks: schedules, limits, queues, workers and tests."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from faultline import JobFailed
from faultline.testing import drain, frozen_time
from tests.moving.page import Scene, checks
from tests.waiting import auntil
from tests.worker.working import results, work

if TYPE_CHECKING:
    from collections.abc import Iterator


@checks("Beat")
@checks("Cron", "rq")
@checks("Schedules", "dramatiq")
@checks("Periodic tasks", "procrastinate")
def _(scene: Scene) -> None:
    scene.run()

    async def story() -> None:
        await auntil(lambda: len(scene.app.schedules.list()) == 2)

    work(scene.app, story)
    weekdays = scene.app.schedules.next("report", 10)
    assert {tick.astimezone(UTC).hour for tick in weekdays} <= {7, 8}
    assert {tick.weekday() for tick in weekdays} == {0, 1, 2, 3, 4}
    first, second = scene.app.schedules.next("sync-eu", 2)
    assert (second - first).total_seconds() == 300
    scene.app.schedules.run_now("sync-eu")
    drain(scene.app)
    (job,) = scene.app.jobs(task="sync")
    assert scene.app.job(job.id).args == {"region": "eu"}
    assert job.state == "succeeded"


@checks("Cron jobs", "arq")
def _(scene: Scene) -> None:
    scene.run()
    scene.app.declare()

    ticks = scene.app.schedules.next("report", 8)
    assert {tick.weekday() for tick in ticks} == {0, 4}
    assert {tick.astimezone(ZoneInfo("Europe/Berlin")).hour for tick in ticks} == {9, 12}


@checks("Rate limits", "celery", "dramatiq")
def _(scene: Scene) -> None:
    sent: list[str] = []

    class Provider:
        def send(self, to: str) -> None:
            sent.append(to)

    send = scene.run(provider=Provider())["send"]
    scene.app.declare()
    with frozen_time(scene.app) as time:
        handles = [send.enqueue(tenant, f"{tenant}@example.org") for tenant in (1, 2, 3)]
        drain(scene.app)
        assert len(sent) == 1  # 100 a minute, and no two together
        began = time.now
        drain(scene.app, advancing=time)
        assert len(sent) == 3
        assert 1.1 <= (time.now - began).total_seconds() <= 2
    assert {handle.job().group for handle in handles} == {"tenant-1", "tenant-2", "tenant-3"}


@checks("Unique tasks")
def _(scene: Scene) -> None:
    page = scene.run()

    assert page["first"].id == page["second"].id
    assert (page["first"].created, page["second"].created) == (True, False)
    assert drain(scene.app).succeeded == 1
    assert page["index"].enqueue(7, "changed again").created


@checks("Unique jobs", "arq", "rq")
@checks("Queueing locks", "procrastinate")
def _(scene: Scene) -> None:
    page = scene.run()

    assert page["first"].id == page["second"].id
    assert (page["first"].created, page["second"].created) == (True, False)
    assert drain(scene.app).succeeded == 1
    assert page["index"].enqueue(7).created


@checks("Locks", "procrastinate")
def _(scene: Scene) -> None:
    class Booked(list[tuple[int, int]]):
        refused = False

        def append(self, entry: tuple[int, int]) -> None:
            if not self.refused:
                self.refused = True
                raise ValueError("not yet")
            super().append(entry)

    booked = Booked()
    with frozen_time(scene.app) as time:
        page = scene.run(booked=booked)
        scene.app.declare()

        drain(scene.app)
        assert booked == [(8, 5)]  # the first of account 7 waits for its retry, and holds up the second
        drain(scene.app, advancing=time)
        assert booked == [(8, 5), (7, 100), (7, -30)]
    assert page["first"].job().attempt == 2


@checks("Queues", "arq")
def _(scene: Scene) -> None:
    assert [handle.job().queue for handle in scene.run()["handles"]] == ["slow", "fast"]
    assert drain(scene.app).succeeded == 2


@checks("Routes and priorities")
@checks("Queues and priorities", "rq", "dramatiq", "procrastinate")
def _(scene: Scene) -> None:
    began: list[str] = []

    @scene.app.on_start
    def note(job: object) -> None:
        began.append(getattr(job, "task", ""))

    scene.run()
    assert {job.queue for job in scene.app.jobs()} == {"mail"}
    assert drain(scene.app).succeeded == 2
    assert [task.removeprefix("mail.") for task in began] == ["password", "news"]


@contextmanager
def served(scene: Scene) -> Iterator[int]:
    """The program is shop.py, and the page's own command runs a worker of it. Yields the pid of the worker."""
    (program,) = scene.page.programs(scene.title)
    (command,) = (text for _, text in scene.page.blocks(scene.title) if text.startswith("faultline worker"))
    head = "from faultline import Faultline, Processes\n\napp = Faultline()\n"
    (scene.folder / "shop.py").write_text(head + program)
    environ = {**os.environ, "FAULTLINE_DSN": scene.app.dsn}
    _, *words = shlex.split(command)
    worker = subprocess.Popen([sys.executable, "-m", "faultline", *words, "--quiet"], cwd=scene.folder, env=environ)
    try:
        yield worker.pid
    finally:
        worker.terminate()
        worker.wait(60)


@checks("Pools and prefetch")
def _(scene: Scene) -> None:
    with served(scene) as pid:
        handles = [scene.app.enqueue("render", {"page": n}, queue="cpu") for n in range(101)]
        pids = [handle.result(60) for handle in handles]

    assert pid not in pids
    assert max(map(pids.count, pids)) <= 100


@checks("Start a worker", "arq", "rq", "dramatiq", "procrastinate")
def _(scene: Scene) -> None:
    with served(scene):
        assert scene.app.enqueue("send", {"to": "ada"}, queue="mail").result(60) == "sent to ada"


@checks("Timeouts", "rq")
def _(scene: Scene) -> None:
    with served(scene):
        quick, endless = (scene.app.enqueue("render", {"page": n}, queue="cpu") for n in (0, 1))
        assert quick.result(60) == 0
        with pytest.raises(JobFailed, match="2 s"):
            endless.result(60)


@checks("Signals and base classes")
@checks("Hooks", "arq")
@checks("Callbacks", "rq")
@checks("Middleware", "dramatiq", "procrastinate")
def _(scene: Scene) -> None:
    alerts: list[str] = []
    counted: list[str] = []
    scene.run(alert=alerts.append, count=counted.append)

    @scene.app.task(max_attempts=1)
    def divide(a: int, b: int) -> int:
        return a // b

    results(scene.app, [divide.enqueue(1, 1), divide.enqueue(1, 0)])
    assert counted == ["divide", "divide"]
    assert len(alerts) == 1
    assert alerts[0].startswith("divide has failed: ")


@checks("One connection per process")
@checks("Startup and shutdown", "arq")
def _(scene: Scene) -> None:
    made: list[Client] = []

    class Client:
        closed = False

        def __init__(self) -> None:
            made.append(self)

        def get(self, url: str) -> int:
            assert not self.closed
            return 200 + len(url)

        def close(self) -> None:
            self.closed = True

    fetch = scene.run(Client=Client)["fetch"]
    assert results(scene.app, [fetch.enqueue("a"), fetch.enqueue("bc")]) == [201, 202]
    assert [client.closed for client in made] == [True]


@checks("Eager mode")
@checks("Tests", "arq", "rq", "dramatiq", "procrastinate")
def _(scene: Scene) -> None:
    scene.run()["test_ada_is_greeted"]()

    (job,) = scene.app.jobs()
    assert (job.state, job.task) == ("succeeded", "greet")
