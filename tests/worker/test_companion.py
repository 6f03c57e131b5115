"""A worker whose event loop is blocked, or whose interpreter is held, and the process that looks after it."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faultline import Faultline
from faultline.core.errors import DatabaseUnavailable
from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.worker.base.counters import Tally
from faultline.worker.companion.database import Rescue
from faultline.worker.companion.memory import Shared
from faultline.worker.companion.process import Companion, Settings, is_stopped
from faultline.worker.lease.held_lease import HeldLease
from tests.waiting import auntil, free_port, until
from tests.worker import jobs
from tests.worker.full_disk import full_file_system
from tests.worker.test_processes import PATIENCE, children_of, runs, said, worker, workers
from tests.worker.working import logged, work

if TYPE_CHECKING:
    import io

    from tests.driver import Driver


def succeeded(queue: Driver, *jobs: object) -> bool:
    return all(queue.state(job_id) is JobState.SUCCEEDED for job_id in jobs)  # type: ignore[arg-type]


def companion_of(pid: int) -> int | None:
    found = [
        child
        for child in children_of(pid)
        if b"faultline.worker.companion.process" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return found[0] if found else None


@pytest.mark.long
def test_a_call_that_holds_the_interpreter_longer_than_its_lease_succeeds_in_one_attempt(dsn: str, queue: Driver) -> None:
    beside = queue.enqueue("nap", {"seconds": 6}, lease_seconds=8, priority=-1)
    seized = queue.enqueue("seize", {"seconds": 12}, lease_seconds=8)
    with worker(dsn, "--queue", "other"):
        until(lambda: workers(queue) == 1)  # somebody is there to take back what has run out
        with worker(dsn) as process:
            until(lambda: succeeded(queue, beside, seized))
            log = said(process)

    assert [queue.job(job_id).fencing_token for job_id in (beside, seized)] == [1, 1], log
    assert [queue.journal(job_id) for job_id in (beside, seized)] == [[], []]


@pytest.mark.long
def test_a_blocked_loop_gives_back_what_it_has_not_started(dsn: str, queue: Driver) -> None:
    blocking = queue.enqueue("block", {"seconds": 20}, priority=-1)
    rest = [place.job_id for place in queue.run(verbs.enqueue_many([Submission("note", f'{{"n": {n}}}') for n in range(5)]))]
    with worker(dsn) as first:
        until(lambda: runs(queue, blocking))
        blocked_by = str(queue.job(blocking).owner).partition("/")[0]
        with worker(dsn):
            until(lambda: succeeded(queue, *rest))
            still = queue.state(blocking)
            until(lambda: succeeded(queue, blocking))
            log = said(first)

    assert still is JobState.RUNNING, log
    assert queue.job(blocking).fencing_token == 1
    assert {str(queue.job(job_id).owner).partition("/")[0] for job_id in rest} - {blocked_by} != set()
    assert queue.value("select count(*) from faultline.journal") == 0
    assert '"event_loop_blocked"' in log
    assert '"tasks": "block"' in log


@pytest.mark.long
@pytest.mark.parametrize(("task", "words"), [("block", ["--loop-timeout", "3"]), ("block_within", [])])
def test_a_loop_that_is_blocked_for_too_long_has_its_process_ended_and_its_task_named(
    dsn: str, queue: Driver, task: str, words: list[str]
) -> None:
    job_id = queue.enqueue(task, {"seconds": 300})
    with worker(dsn, *words) as first:
        until(lambda: runs(queue, job_id))

        assert first.wait(PATIENCE) == -signal.SIGKILL

        log = said(first)
        with worker(dsn):
            until(lambda: succeeded(queue, job_id))
    assert '"event_loop_timeout"' in log
    assert f'"tasks": "{task}", "job_ids": "{job_id}"' in log
    assert queue.job(job_id).result == 2


@pytest.mark.long
@pytest.mark.parametrize("task", ["block", "grind"])
def test_sigterm_ends_a_worker_whose_loop_is_blocked(dsn: str, queue: Driver, task: str) -> None:
    queue.enqueue(task, {"seconds": 300})
    with worker(dsn, "--grace", "1") as process:
        until(lambda: "event_loop_blocked" in said(process))
        asked = time.monotonic()

        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert time.monotonic() - asked < 30
        assert f'"tasks": "{task}"' in said(process)


def test_a_companion_that_dies_is_started_again_and_none_outlives_its_worker(dsn: str, queue: Driver) -> None:
    with worker(dsn) as process:
        first = until(lambda: companion_of(process.pid))

        os.kill(first, signal.SIGKILL)
        second = until(lambda: (found := companion_of(process.pid)) != first and found)
        process.kill()

        until(lambda: not Path(f"/proc/{second}").exists() or is_stopped(second))


def asked(port: int, path: str) -> int | None:
    """The status of the answer; None: nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", path)
        return connection.getresponse().status
    return None


def test_health_says_whether_the_loop_ticks_also_while_it_does_not(dsn: str, queue: Driver) -> None:
    port = free_port()
    # The companion must not end the process before anybody could ask.
    with worker(dsn, "--health-port", str(port), "--loop-timeout", "6") as process:
        until(lambda: (asked(port, "/live"), asked(port, "/ready"), asked(port, "/")) == (200, 200, 404))
        queue.enqueue("block", {"seconds": 300})

        until(lambda: "event_loop_blocked" in said(process))
        blocked = asked(port, "/live")
        until(lambda: asked(port, "/live") is None)

    assert blocked == 200  # it may be silent for a while
    assert process.returncode == -signal.SIGKILL


@pytest.mark.long
def test_the_parent_of_several_processes_answers_for_all_of_them(dsn: str, queue: Driver) -> None:
    port = free_port()
    with worker(dsn, "--processes", "2", "--health-port", str(port)) as parent:
        until(lambda: asked(port, "/ready") == 200)
        assert workers(queue) == 2
        assert asked(port, "/live") == 200

        os.kill(children_of(parent.pid)[0], signal.SIGSTOP)
        until(lambda: asked(port, "/ready") == 503)


def test_several_processes_work_while_the_folder_for_temporary_files_is_full(
    dsn: str, queue: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, job_id = free_port(), queue.enqueue("note", {"n": 1})
    with full_file_system(tmp_path) as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        with worker(dsn, "--processes", "2", "--health-port", str(port)) as parent:
            monkeypatch.undo()
            until(lambda: asked(port, "/ready") == 200)
            until(lambda: succeeded(queue, job_id))

            assert "worker_died" not in said(parent)


#: What comes behind it may write no more than 16 KiB to a file. Python ignores the signal.
WITHOUT_ROOM = ["/bin/sh", "-c", 'ulimit -f 32; exec "$@"', "sh"]


def test_a_worker_whose_health_nobody_could_tell_does_not_start(dsn: str) -> None:
    command = [*WITHOUT_ROOM, sys.executable, "-m", "faultline", "worker", "tests.worker.jobs:app", "--health-port"]
    environ = {**os.environ, "FAULTLINE_DSN": dsn}
    done = subprocess.run(
        [*command, str(free_port())], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )

    assert done.returncode == 1
    assert "nobody could tell the health of this worker: no shared memory: [Errno 27]" in done.stderr
    assert "Traceback" not in done.stderr


def test_children_whose_health_nobody_could_tell_are_not_live(dsn: str) -> None:
    port = free_port()
    command = [*WITHOUT_ROOM, sys.executable, "-m", "faultline", "worker", "tests.worker.jobs:app", "--processes", "2"]
    environ = {**os.environ, "FAULTLINE_DSN": dsn}
    parent = subprocess.Popen([*command, "--health-port", str(port)], env=environ, stderr=subprocess.DEVNULL)
    try:
        until(lambda: asked(port, "/live") == 503)

        assert asked(port, "/ready") == 503
    finally:
        parent.terminate()
        parent.wait(PATIENCE)


def test_children_that_die_in_a_loop_are_not_live(dsn: str, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "dying.py").write_text(
        "import os, signal, sys\n"
        "from faultline import Faultline\n"
        "app = Faultline()\n"
        "if '--parent' in sys.argv:\n"
        "    os.kill(os.getpid(), signal.SIGBUS)\n"
    )
    command = [sys.executable, "-m", "faultline", "worker", "dying:app", "--processes", "2", "--health-port", str(port)]
    parent = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "FAULTLINE_DSN": dsn}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: asked(port, "/live") == 503)

        assert asked(port, "/ready") == 503
    finally:
        parent.terminate()
        parent.wait(PATIENCE)


def test_a_worker_without_room_for_its_memory_works_alone(dsn: str, queue: Driver, log: io.StringIO) -> None:
    job_id = queue.enqueue("note", {"n": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def story() -> None:
        await auntil(lambda: succeeded(queue, job_id))

    with Faultline(dsn) as app:
        app.task(name="note")(jobs.note.fn)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, before[1]))
        try:
            work(app, story)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    (failed,) = logged(log, "companion_failed")
    assert "no shared memory: [Errno 27] File too large" in failed["error"]


# In this process


def settings(**words: object) -> Settings:
    common = {"dsn": "", "worker": "w", "parent": os.getppid(), "memory": 0, "capacity": 10, "signals": None, "health": None}
    return Settings(**{**common, "grace_seconds": 0.0, "owns_process": False, "logs": True, **words})  # type: ignore[arg-type]


def held(queue: Driver, shared: Shared, number: int) -> list[HeldLease]:
    for _ in range(number):
        queue.enqueue(lease_seconds=30)
    leases = queue.run(verbs.claim("default", owner="w/7", max_jobs=number))
    holds = [HeldLease(lease, 0.0, Tally(time.monotonic).of("default")) for lease in leases]
    shared.enter(holds, 7)
    return holds


def test_only_what_was_not_begun_is_given_back(dsn: str, queue: Driver) -> None:
    shared = Shared.create(10)
    waiting, begun, ended = held(queue, shared, 3)
    shared.begin(begun, 1.0)
    shared.begin(ended, 1.0)
    shared.ended(ended)

    with contextlib.closing(Rescue(dsn, "w", shared, time.monotonic)) as rescue:
        rescue.release()

    states = [queue.state(hold.lease.job_id) for hold in (waiting, begun, ended)]
    assert states == [JobState.QUEUED, JobState.RUNNING, JobState.RUNNING]
    assert (shared.raised, shared.done) == (1, 1)


def test_what_a_claim_on_its_way_was_granted_is_given_back(dsn: str, queue: Driver) -> None:
    shared = Shared.create(10)
    shared.claim_sent(3, 7)
    job_id = queue.enqueue()
    queue.run(verbs.claim("default", owner="w/7", max_jobs=1))

    with contextlib.closing(Rescue(dsn, "w", shared, time.monotonic)) as rescue:
        rescue.release()

    assert queue.state(job_id) is JobState.QUEUED


def test_what_was_begun_is_renewed_and_the_worker_learns_when(dsn: str, queue: Driver) -> None:
    shared = Shared.create(10)
    waiting, begun = held(queue, shared, 2)
    shared.begin(begun, 1.0)

    before = time.monotonic()
    with contextlib.closing(Rescue(dsn, "w", shared, time.monotonic)) as rescue:
        rescue.renew()

    assert [queue.job(hold.lease.job_id).renewals for hold in (waiting, begun)] == [0, 1]
    assert before <= shared.renewed_at(begun) <= time.monotonic()
    assert shared.renewed_at(waiting) == -inf


def test_a_rescue_uses_the_dsn_that_it_was_given_last(dsn: str, queue: Driver) -> None:
    """As after a password was changed: before its first connection, and before the next."""
    shared = Shared.create(10)
    (begun,) = held(queue, shared, 1)
    shared.begin(begun, 1.0)

    with contextlib.closing(Rescue("host=/nowhere", "w", shared, time.monotonic)) as rescue:
        with pytest.raises(DatabaseUnavailable):
            rescue.renew()
        rescue.use_dsn(dsn)
        rescue.renew()

    assert queue.job(begun.lease.job_id).renewals == 1


def test_a_renewal_of_the_lease_that_stood_there_before_says_nothing_about_the_next(queue: Driver) -> None:
    shared = Shared.create(1)
    (first,) = held(queue, shared, 1)
    shared.renewed(first.slot, 1, 5.0)
    shared.leave([first])
    (second,) = held(queue, shared, 1)

    assert second.slot == 0
    assert shared.renewed_at(second) == -inf


def test_the_loop_may_be_silent_for_its_limit_and_no_longer_than_what_runs(queue: Driver) -> None:
    shared = Shared.create(10)
    shared.loop_ticked(100.0)
    shared.set_loop_timeout(60.0)
    allowed = [shared.blocking_allowed()]
    shared.timeout_of = lambda name: None if name == "untimed" else 10.0
    first, second = held(queue, shared, 2)
    shared.begin(first, 98.0)
    allowed.append(shared.blocking_allowed())
    shared.ended(first)
    allowed.append(shared.blocking_allowed())
    shared.leave([second])
    second.lease.task = "untimed"
    shared.enter([second], 7)
    shared.begin(first, 98.0)
    shared.begin(second, 98.0)
    allowed.append(shared.blocking_allowed())

    assert allowed == [60.0, 13.0, 60.0, 60.0]


def test_an_outage_is_told_of_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    class Away:
        def __init__(self, *_: object) -> None: ...

        def release(self) -> None:
            nonlocal asked
            asked += 1
            if asked <= 3:
                raise DatabaseUnavailable("the server is away")

    monkeypatch.setattr("faultline.worker.companion.database.Rescue", Away)
    now = 100.0
    shared = Shared.create(10)
    shared.set_loop_timeout(inf)
    caplog.set_level("INFO", "faultline")
    companion = Companion(settings(), shared, monotonic=lambda: now)

    def ask_again() -> bool:
        nonlocal now
        now += 0.5
        shared.watch_ticked(now)
        companion.look()
        return asked > 4

    until(ask_again)

    told = [record.message for record in caplog.records if record.message.startswith(("event_loop_", "companion_"))]
    assert told == ["event_loop_blocked", "companion_failed", "companion_resumed"]
