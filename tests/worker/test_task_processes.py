"""A task that computes runs in a process of its own: it can be killed, and neither its worker nor its neighbours notice."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, ConfigError, Faultline, Processes
from faultline.worker.run.processes import task_process, task_processes
from tests.waiting import auntil, until
from tests.worker import computing
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver


@pytest.fixture
def app(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faultline]:
    monkeypatch.setenv("FAULTLINE_DSN", dsn)
    yield computing.app
    computing.app.close()


def lives(pid: int) -> bool:
    """Whether it runs: one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_task_gets_its_arguments_and_returns_its_result(app: Faultline, caplog: pytest.LogCaptureFixture) -> None:
    first, second = computing.add.enqueue(computing.Order(40), 2), computing.about.enqueue()

    summed, told = results(app, [first, second], task_processes=1)

    assert summed["sum"] == 42
    assert summed["pid"] != os.getpid()
    assert told["about"] == [str(second.id), "about", 1, "default", str(second.id), True]
    assert told["noted_in"] == told["pid"] == summed["pid"]
    (record,) = [record for record in caplog.records if record.name == "tests.computing"]
    assert (record.getMessage(), record.levelno) == ("computing this", logging.WARNING)


def test_types_and_retry_rules_hold_there_too(app: Faultline) -> None:
    order, days = computing.Order(1), frozenset({date(2026, 1, 1)})
    given, refused = computing.stamp.enqueue(order, days), computing.stamp.enqueue(order, frozenset())

    found, error = results(app, [given, refused], task_processes=1)

    assert found == (order, days)
    assert "ValueError: no days" in str(error)
    assert "Not retried: give_up_on of the task has ValueError." in str(error)
    assert app.job(refused.id).attempt == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", 'ValueError: no such order\n  File "'),
        ("retry", "not yet"),
        ("exit", "SystemExit: 3"),
        ("state", "ConfigError: job.state is the worker's"),
        ("worker", "ConfigError: a process of a task cannot run a worker"),
        ("file", "result of wrong cannot be stored"),
    ],
)
def test_what_a_task_raises_there_fails_its_attempt(app: Faultline, how: str, told: str) -> None:
    (error,) = results(app, [computing.wrong.enqueue(how)], task_processes=1)

    assert told in str(error)


def test_an_error_that_cannot_be_sent_is_told_as_text(app: Faultline) -> None:
    (error,) = results(app, [computing.unsendable.enqueue()], task_processes=1)

    assert "Unsendable: 1 and 2" in str(error)
    assert "computing.py" in str(error)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("SIGSEGV", "ProcessDied: the process of the task was killed by SIGSEGV"),
        ("SIGKILL", "ProcessDied: the process of the task was killed by SIGKILL; out of memory?"),
        ("exit", "ProcessDied: the process of the task ended with exit code 7"),
    ],
)
def test_a_process_that_dies_fails_one_attempt_and_the_worker_goes_on(app: Faultline, how: str, told: str) -> None:
    async def story() -> Any:
        died, added = await computing.die.aenqueue(how), await computing.add.aenqueue(computing.Order(1), 1)
        return await asyncio.gather(died.aresult(60), added.aresult(60), return_exceptions=True)

    error, summed = work(app, story, task_processes=1)

    assert told in str(error)
    assert summed["sum"] == 2


def test_rules_hold_for_an_error_that_cannot_be_sent(app: Faultline) -> None:
    handle = computing.refused.enqueue()

    (error,) = results(app, [handle], task_processes=1)

    assert "Unsendable: 1 and 2" in str(error)
    assert "Not retried: give_up_on of the task has Unsendable." in str(error)
    assert app.job(handle.id).attempt == 1


def test_a_log_record_that_cannot_be_sent_as_it_is_fails_no_job(app: Faultline, caplog: pytest.LogCaptureFixture) -> None:
    assert results(app, [computing.note_an_error.enqueue()], task_processes=1) == ["done"]

    (record,) = [record for record in caplog.records if record.name == "tests.computing"]
    assert record.getMessage() == "noted here"
    assert vars(record)["order"] == "Order(number=7)"
    assert vars(record)["error"] == "Unsendable('1 and 2')"
    assert vars(record)["items"] == [1, {"two": 2.0}]


def test_a_child_that_returns_to_the_task_answers_for_no_job(
    app: Faultline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, said, child = tmp_path / "go", tmp_path / "said", tmp_path / "child"

    async def story() -> list[Any]:
        forked = await (await computing.fork.aenqueue(str(file), str(child))).aresult(60)
        beside = await computing.wait_for.aenqueue(str(said))
        await auntil(lambda: said.exists() and said.read_text())
        file.touch()  # now the child returns, while another job runs
        await auntil(lambda: child.exists() and child.read_text() and not lives(int(child.read_text())))
        said.write_text("its own")
        return [forked, await beside.aresult(60)]

    assert work(app, story, task_processes=1) == ["from the parent", "its own"]
    assert "from the child" not in caplog.text


def test_a_process_that_dies_before_a_child_of_its_own_fails_its_attempt_at_once(app: Faultline, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    (error,) = results(app, [computing.die_beside_a_child.enqueue(str(file))], task_processes=1)

    assert "killed by SIGKILL" in str(error)
    until(lambda: not lives(int(file.read_text())))


def test_what_a_process_has_started_is_killed_with_it(app: Faultline, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    (error,) = results(app, [computing.call_a_program.enqueue(str(file))], task_processes=1)

    assert "TimedOut: timed out after 2 s; its process was killed" in str(error)
    until(lambda: not lives(int(file.read_text())))


def test_a_process_that_holds_its_interpreter_is_killed_when_its_time_is_up(app: Faultline, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def story() -> tuple[Any, list[float]]:
        held = await computing.hold_interpreter.aenqueue(str(file))
        await auntil(lambda: file.exists() and file.read_text())
        beside, gaps = time.monotonic(), []
        waiting = asyncio.create_task(held.aresult(60))
        while not waiting.done():
            await asyncio.sleep(0.01)
            beside, gap = time.monotonic(), time.monotonic() - beside
            gaps.append(gap)
        return waiting.exception(), gaps

    error, gaps = work(app, story, task_processes=1)

    assert "TimedOut: timed out after 0.5 s; its process was killed" in str(error)
    assert ", in hold_interpreter\n" in str(error)  # where it was
    assert "processes/main.py" not in str(error)
    assert max(gaps) < 10  # the loop went on
    until(lambda: not lives(int(file.read_text())))


def test_a_cancelled_job_ends_its_process(app: Faultline, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def story() -> None:
        handle = await computing.linger.aenqueue(str(file))
        await auntil(lambda: file.exists() and file.read_text())
        await app.acancel(handle.id)
        await auntil(lambda: not lives(int(file.read_text())))

    work(app, story, task_processes=1)


def test_a_worker_that_stops_kills_the_process_and_releases_the_job(app: Faultline, queue: Driver, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    handle = computing.linger.enqueue(str(file))

    async def story() -> None:
        await auntil(lambda: file.exists() and file.read_text())

    work(app, story, task_processes=1, grace_seconds=0.0)

    assert queue.state(handle.id) == "queued"
    until(lambda: not lives(int(file.read_text())))


def test_a_process_is_replaced_after_its_jobs_and_by_its_memory(app: Faultline) -> None:
    async def story() -> tuple[list[int], list[int]]:
        by_jobs = [await (await computing.twice.aenqueue()).aresult(60) for _ in range(4)]
        by_memory = [await (await computing.large.aenqueue()).aresult(60) for _ in range(2)]
        return by_jobs, by_memory

    by_jobs, by_memory = work(app, story, task_processes=1)

    assert by_jobs[0] == by_jobs[1] != by_jobs[2] == by_jobs[3]
    assert by_memory[0] != by_memory[1]
    until(lambda: not any(map(lives, by_jobs + by_memory)))


def test_so_many_run_at_once_and_no_more(app: Faultline) -> None:
    handles = app.enqueue_many(computing.add.bind(computing.Order(n), 1) for n in range(20))

    found = results(app, handles, task_processes=2)

    assert [one["sum"] for one in found] == [n + 1 for n in range(20)]
    assert len({one["pid"] for one in found}) <= 2


@pytest.mark.parametrize("kernel_kills", [True, False])
def test_processes_die_with_a_worker_that_is_killed(dsn: str, queue: Driver, tmp_path: Path, *, kernel_kills: bool) -> None:
    file = tmp_path / "pid"
    program = (
        "from faultline.worker.run.processes import task_process\n"
        f"task_process._KERNEL_KILLS = {kernel_kills}\n"
        "from tests.worker.computing import app\n"
        "app.run_worker({'default': 1})\n"
    )
    queue.enqueue("linger", {"file": str(file)})
    worker = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "FAULTLINE_DSN": dsn})
    try:
        pid = int(str(until(lambda: file.exists() and file.read_text(), 60)))
        assert lives(pid)
    finally:
        worker.kill()
        worker.wait()

    until(lambda: not lives(pid), 30)


def test_a_program_that_is_its_own_module_runs_its_tasks(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import os, sys\n"
        "from faultline import Faultline\n"
        "from faultline.testing import drain\n"
        "app = Faultline()\n"
        "@app.task(executor='process')\n"
        "def render(n: int) -> int:\n"
        "    return n + 1\n"
        "if __name__ == '__main__':\n"
        "    handle = render.enqueue(1)\n"
        "    drain(app)\n"
        "    print(handle.result())\n"
    )
    environ = {**os.environ, "FAULTLINE_DSN": dsn}
    for words in (["shop.py"], ["-m", "shop"]):
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert (ran.stdout, ran.returncode) == ("2\n", 0), ran.stderr


def test_what_cannot_run_in_a_process_is_refused_where_it_is_written(app: Faultline) -> None:
    other = Faultline("postgresql://127.0.0.1:1/nothing")

    async def on_loop() -> None: ...
    def with_job(job: BlockingJob) -> None: ...
    def nested() -> None: ...

    for fn, told in (
        (on_loop, "a plain function"),
        (with_job, "cannot be given the job"),
        (nested, "top level of a module"),
    ):
        with pytest.raises(ConfigError, match=told):
            other.task(executor="process")(fn)
    with pytest.raises(ConfigError, match='must be "process" or Processes'):
        other.task(executor="fork")(lives)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="max_jobs of Processes is 0"):
        Processes(max_jobs=0)


def test_a_function_of_another_module_may_be_registered(dsn: str) -> None:
    with Faultline(dsn) as other:
        task = other.task(executor="process")(lives)

        assert results(other, [task.enqueue(os.getpid())], task_processes=1) == [True]


def test_a_task_that_a_process_would_not_find_is_refused_when_the_worker_starts(dsn: str) -> None:
    with Faultline(dsn) as other:
        other.task(executor="process")(lives)
        other.middleware(computing.noted)

        with pytest.raises(ConfigError, match="would import lives from tests"):
            work(other, lambda: asyncio.sleep(0))


def test_a_machine_that_cannot_start_a_process_uses_up_no_attempt(
    app: Faultline, queue: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("faultline.worker.run.processes.task_process.subprocess.Popen", no_room)
    monkeypatch.setattr(task_processes, "_AGAIN_SECONDS", 60.0)
    handle = computing.twice.enqueue()

    async def story() -> None:
        await auntil(lambda: queue.value("select next_run_at > now() from faultline.open_jobs"))

    work(app, story, task_processes=1)

    assert queue.job(handle.id).attempt == 0


def test_a_worker_is_replaced_after_its_jobs(dsn: str, queue: Driver) -> None:
    for n in range(3):
        queue.enqueue("note", {"n": n})
    command = [sys.executable, "-m", "faultline", "worker", "tests.worker.jobs:app", "--queue", "default=1"]
    environ = {**os.environ, "FAULTLINE_DSN": dsn}

    by_jobs = subprocess.run(
        [*command, "--max-jobs", "2"], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    by_memory = subprocess.run(
        [*command, "--max-memory", "1"], env=environ, capture_output=True, text=True, timeout=120, check=False
    )

    assert (by_jobs.returncode, by_memory.returncode) == (75, 75)
    assert "jobs, and is to run 2" in by_jobs.stderr
    assert "and is to use 1 MiB at most" in by_memory.stderr
    assert queue.value("select count(*) from faultline.ledger") >= 2


def test_ctrl_c_is_for_the_worker_which_lets_its_jobs_finish(dsn: str, queue: Driver, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    job_id = queue.enqueue("wait_for", {"file": str(file)})
    command = [sys.executable, "-m", "faultline", "worker", "tests.worker.computing:app", "--grace", "60"]
    worker = subprocess.Popen(
        command, env={**os.environ, "FAULTLINE_DSN": dsn}, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        pid = int(str(until(lambda: file.exists() and file.read_text(), 60)))
    finally:
        os.killpg(worker.pid, signal.SIGINT)
    assert worker.stderr is not None
    until(lambda: "worker_stopping" in str(worker.stderr and worker.stderr.readline()))
    file.write_text("done")
    said = worker.communicate(timeout=60)[1]

    assert worker.returncode == 0, said
    assert queue.job(job_id).result == "done"
    until(lambda: not lives(pid))


def test_the_page_runs_as_printed(dsn: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/cpu-bound.md").read_text()
    (tmp_path / "shop.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    (command,) = re.findall(r"^faultline (worker .*)", page, re.MULTILINE)
    environ = {**os.environ, "FAULTLINE_DSN": dsn}
    words = [sys.executable, "-m", "faultline", *shlex.split(command), "--quiet"]
    worker = subprocess.Popen(words, cwd=tmp_path, env=environ)
    try:
        asked = "import shop; print(shop.render.enqueue(7).result(60)['page'], shop.convert.enqueue('a').result(60))"
        ran = subprocess.run(
            [sys.executable, "-c", asked], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        )
    finally:
        worker.terminate()
        worker.wait(60)

    assert ran.stdout == "7 A\n"


def test_a_job_that_was_given_to_a_frozen_process_runs_in_another_one(
    app: Faultline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hung without an end: its own time limit counts from when it began."""
    monkeypatch.setattr(task_process, "_BEGIN_SECONDS", 0.2)

    async def story() -> tuple[dict[str, Any], dict[str, Any]]:
        first = await (await computing.add.aenqueue(computing.Order(1), 1)).aresult(PATIENCE)
        os.kill(first["pid"], signal.SIGSTOP)
        second = await computing.add.aenqueue(computing.Order(2), 2)
        return first, await second.aresult(PATIENCE)

    first, second = work(app, story, task_processes=1)

    assert second["sum"] == 4
    assert second["pid"] != first["pid"]
    assert not lives(first["pid"])
