"""What a task does to its process, and what the process sends, harms neither the next job nor the worker."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.worker import poisoning
from tests.worker.working import results, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline import Faultline

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def app(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faultline]:
    monkeypatch.setenv("FAULTLINE_DSN", dsn)
    yield poisoning.app
    poisoning.app.close()


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "ValueError"])
def test_a_value_that_raises_where_it_is_read_fails_its_own_job_only(app: Faultline, kind: str) -> None:
    bombs = [poisoning.bomb.enqueue(kind) for _ in range(4)]
    errors = [poisoning.bomb_error.enqueue(kind) for _ in range(4)]

    *failed, found = results(app, [*bombs, *errors, poisoning.state.enqueue()], queues={"default": 4}, task_processes=1)

    assert found["pid"]
    assert all("result of bomb cannot be stored" in str(error) for error in failed[:4])
    assert all(f"BombError: {kind}" in str(error) for error in failed[4:])


@pytest.mark.parametrize("how", ["argument", "attribute", "key", "SystemExit", "ValueError"])
def test_an_exception_that_cannot_be_taken_apart_fails_its_job_with_its_text(app: Faultline, how: str) -> None:
    async def story() -> list[Any]:
        before = await (await poisoning.wait.aenqueue(0)).aresult(60)
        failed = (await poisoning.raise_unusual.aenqueue(how)).aresult(60)
        error = (await asyncio.gather(failed, return_exceptions=True))[0]
        return [before, error, await (await poisoning.wait.aenqueue(0)).aresult(60)]

    before, error, after = work(app, story, task_processes=1)

    assert "ProcessDied" not in str(error)
    assert "in raise_unusual" in str(error)
    assert before == after


@pytest.mark.parametrize(("text", "times"), [("я", 450_000), ('"', 450_000)])
def test_a_job_begins_anew_with_arguments_as_large_as_allowed(app: Faultline, text: str, times: int) -> None:
    assert results(app, [poisoning.begin_anew.enqueue(text, times)], task_processes=1) == [text]


def test_a_job_does_not_begin_anew_with_larger_arguments(app: Faultline) -> None:
    (error,) = results(app, [poisoning.begin_anew.enqueue("x", 50_000_000)], task_processes=1)

    assert "the arguments of ContinueAsNew(...) have 50000" in str(error)
    assert "more than the limit of 1048576" in str(error)


def test_a_job_may_replace_the_functions_of_json(app: Faultline) -> None:
    async def story() -> list[int]:
        return [await (await task.aenqueue()).aresult(60) for task in (poisoning.replace_json, poisoning.replace_json)]

    first, second = work(app, story, task_processes=1)

    assert first == second


def test_a_log_record_that_raises_where_it_is_read_is_logged(app: Faultline, caplog: pytest.LogCaptureFixture) -> None:
    assert results(app, [poisoning.bomb_log.enqueue("SystemExit")], task_processes=1) == ["done"]

    (record,) = [record for record in caplog.records if record.name == "tests.poisoning"]
    assert "Bomb object" in vars(record)["bomb"]


def test_the_class_of_an_exception_runs_nothing_in_the_worker(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> Any:
        process_has_started = await (await poisoning.wait.aenqueue(0)).aresult(60)
        monkeypatch.setenv("NEW_ERROR_EXITS", "1")
        handle = await poisoning.new_error.aenqueue()
        return process_has_started, await asyncio.gather(handle.aresult(60), return_exceptions=True)

    _, (error,) = work(app, story, task_processes=1)

    assert "NewError: no such order" in str(error)


@pytest.mark.parametrize("how", ["return", "raise", "log"])
def test_a_huge_value_never_reaches_the_worker(app: Faultline, how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> tuple[Any, int]:
        await (await poisoning.wait.aenqueue(0)).aresult(60)
        before = _peak_bytes(reset=True)
        handle = await poisoning.huge.aenqueue(150, how)
        answers: Any = await asyncio.gather(handle.aresult(90), return_exceptions=True)
        return answers[0], _peak_bytes() - before

    with caplog.at_level(logging.WARNING):
        found, grown = work(app, story, task_processes=1)

    assert grown < 60 * 1024 * 1024
    if how == "return":
        assert "result of huge has 157286402 bytes, more than the limit of" in str(found)
    elif how == "raise":
        assert "RuntimeError: xxx" in str(found)
    else:
        assert found == "done"
        (record,) = [record for record in caplog.records if record.name == "tests.poisoning"]
        assert record.getMessage().startswith("xxx")


def _peak_bytes(*, reset: bool = False) -> int:
    """The most memory that this process has used since it was reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_a_message_beyond_the_limit_is_not_read(app: Faultline) -> None:
    (error,) = results(app, [poisoning.send_raw.enqueue(500)], task_processes=1)

    assert "ProcessDied: the process of the task sent a message of 524288000 bytes" in str(error)


@pytest.mark.parametrize("text", ["nonsense", "[]", "7", '["ended", []]', '["log", 7]', '["unheard", 1]', "[" * 100_000])
def test_a_message_that_makes_no_sense_ends_the_process_and_fails_the_attempt(app: Faultline, text: str) -> None:
    failed, found = results(app, [poisoning.send_nonsense.enqueue(text), poisoning.wait.enqueue(0)], task_processes=1)

    assert "ProcessDied: the worker cannot read what the process of the task sent" in str(failed)
    assert found


@pytest.mark.parametrize("how", sorted(poisoning._POISONS))  # noqa: SLF001 - of these tests
def test_what_a_job_leaves_behind_in_its_process_does_not_fail_the_next_one(app: Faultline, how: str) -> None:
    async def story() -> Any:
        # Both at once: what is left behind must not find the process idle.
        poisoned, following = await poisoning.poison.aenqueue(how), await poisoning.wait.aenqueue(1.0)
        await poisoned.aresult(60)
        return await following.aresult(60)

    assert work(app, story, task_processes=1)


def test_what_a_job_changes_is_reset_for_the_next_one(app: Faultline) -> None:
    async def story() -> Any:
        before = await (await poisoning.state.aenqueue()).aresult(60)
        await (await poisoning.poison.aenqueue("changes")).aresult(60)
        return before, await (await poisoning.state.aenqueue()).aresult(60)

    before, after = work(app, story, task_processes=1)

    assert after == before


@pytest.mark.parametrize("how", ["thread", "daemon", "child", "orphan", "orphan of a session", "timer"])
def test_a_process_with_something_that_goes_on_is_replaced(
    app: Faultline, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> Any:
        poisoned, following = await poisoning.poison.aenqueue(how), await poisoning.wait.aenqueue(0)
        return await poisoned.aresult(60), await following.aresult(60)

    first, second = work(app, story, task_processes=1)

    assert first != second


def test_a_job_pays_itself_for_what_it_dropped(app: Faultline, tmp_path: Path) -> None:
    async def story() -> Any:
        leaves = await poisoning.leave_a_finalizer.aenqueue(kept=False)
        frees = await poisoning.free.options(max_attempts=1).aenqueue(str(tmp_path / "starts"))
        return await asyncio.gather(leaves.aresult(60), frees.aresult(60), return_exceptions=True)

    left, freed = work(app, story, task_processes=1)

    assert "ended with exit code 9" in str(left)
    assert isinstance(freed, int)


def test_a_process_that_died_of_an_earlier_job_costs_the_next_one_no_attempt(
    app: Faultline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> Any:
        first = await (await poisoning.leave_a_finalizer.aenqueue(kept=True)).aresult(60)
        handle = await poisoning.free.aenqueue(str(tmp_path / "starts"))
        return first, await handle.aresult(60), handle.id

    first, second, job_id = work(app, story, task_processes=1)

    assert (tmp_path / "starts").read_text().split() == [str(first), str(second)]
    assert app.job(job_id).attempt == 1
    (fields,) = [vars(one)["faultline_fields"] for one in caplog.records if one.getMessage() == "task_process_replaced"]
    assert fields["job_id"] == job_id
    assert "ended with exit code 9" in fields["reason"]


def test_a_death_in_a_new_process_is_charged_to_its_job(app: Faultline, tmp_path: Path) -> None:
    async def story() -> Any:
        used = await (await poisoning.wait.aenqueue(0)).aresult(60)
        handle = await poisoning.exit_each_time.aenqueue(str(tmp_path / "starts"))
        await asyncio.gather(handle.aresult(60), return_exceptions=True)
        return used, handle.id

    used, job_id = work(app, story, task_processes=1)

    # The first attempt runs again, because the process was not its own; the last attempt does not.
    starts = (tmp_path / "starts").read_text().split()
    assert (starts[0], len(set(starts))) == (str(used), 3)
    assert app.job(job_id).attempt == 2


def test_a_last_attempt_is_started_once_whatever_its_process_died_of(app: Faultline, tmp_path: Path) -> None:
    async def story() -> Any:
        await (await poisoning.wait.aenqueue(0)).aresult(60)
        handle = await poisoning.exit_each_time.options(max_attempts=1).aenqueue(str(tmp_path / "starts"))
        return (await asyncio.gather(handle.aresult(60), return_exceptions=True))[0]

    error = work(app, story, task_processes=1)

    assert len((tmp_path / "starts").read_text().split()) == 1
    assert "ended with exit code 9; jobs that it had run before: 1" in str(error)


def test_a_job_whose_process_dies_after_its_time_was_up_has_timed_out(app: Faultline) -> None:
    _, error = results(app, [poisoning.wait.enqueue(0), poisoning.die_when_asked.enqueue()], task_processes=1)

    assert "TimedOut: timed out after 0.5 s" in str(error)


@pytest.mark.parametrize(
    ("where", "name", "how"),
    [
        ("pickle", "loads", "nothing"),
        ("pickle", "loads", "raises"),
        ("pickle", "loads", "hangs"),
        ("socket:socket", "sendall", "nothing"),
        ("socket:socket", "recv", "nothing"),
        ("socket:socket", "fileno", "hangs"),
    ],
)
def test_a_job_may_replace_the_functions_with_which_its_process_talks_to_the_worker(
    app: Faultline, where: str, name: str, how: str
) -> None:
    async def story() -> Any:
        first = await (await poisoning.replace.aenqueue(where, name, how)).aresult(20)
        small, large = await poisoning.wait.aenqueue(0), await poisoning.wait.aenqueue(0, "x" * 50_000)
        return first, await small.aresult(20), await large.aresult(20)

    first, small, large = work(app, story, task_processes=1)

    assert first == small == large
