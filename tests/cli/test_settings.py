"""Sizes and retention, for every program on a database: shown and changed by a command, and kept with who did it and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import make_conninfo

from faultline import BlockingJob, Faultline, Job, JobFailed, JobRejected
from faultline.store import verbs
from tests.cli.commands import faultline
from tests.worker.working import results

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def settings(dsn: str, *words: str) -> dict[str, int]:
    asked = faultline("settings", *words, "--json", "--dsn", dsn)
    assert asked.returncode == 0, asked.stderr
    found: dict[str, int] = json.loads(asked.stdout)
    return found


def told(queue: Driver) -> list[dict[str, Any]]:
    rows = queue.connection.execute("select detail from faultline.journal where event = 'setting_changed' order by id")
    return [detail for (detail,) in rows.fetchall()]


def test_settings_are_shown_as_they_are_from_the_start(dsn: str) -> None:
    assert settings(dsn) == {
        "args_bytes_max": 1048576,
        "result_bytes_max": 1048576,
        "keep_succeeded_seconds": 7 * 86400,
        "keep_failed_seconds": 30 * 86400,
        "keep_journal_seconds": 30 * 86400,
        "keep_keys_seconds": 30 * 86400,
        "keep_flows_seconds": 7 * 86400,
    }
    assert "keep_succeeded_seconds                7 d  How long" in faultline("settings", "--dsn", dsn).stdout


def test_a_change_is_kept_with_who_made_it_and_why(dsn: str, queue: Driver) -> None:
    changed = settings(dsn, "--keep-succeeded", "36h", "--args-bytes-max", "2000", "--reason", "the disk is small")
    settings(dsn, "--keep-succeeded", "36h")

    assert (changed["keep_succeeded_seconds"], changed["args_bytes_max"]) == (129600, 2000)
    lines = [(one["setting"], one["was"], one["value"], one["reason"]) for one in told(queue)]
    assert lines == [
        ("args_bytes_max", 1048576, 2000, "the disk is small"),
        ("keep_succeeded_seconds", 604800, 129600, "the disk is small"),
    ]
    assert all(one["by"].endswith(" (command line)") and one["login"] for one in told(queue))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--args-bytes-max", "10"), "--args-bytes-max is '10'; it must be a whole number from 1024 to 67108864"),
        (
            ("--result-bytes-max", "100000000"),
            "--result-bytes-max is '100000000'; it must be a whole number from 1024 to 67108864",
        ),
        (("--keep-keys", "200000d"), "--keep-keys is '200000d'; it must be a number of seconds from 0 to 3155760000"),
        (("--keep-failed", "soon"), "invalid duration soon"),
        (("--reason", "none"), "--reason is kept with a change, and nothing is changed here"),
    ],
)
def test_what_makes_no_sense_changes_nothing(dsn: str, words: tuple[str, ...], said: str) -> None:
    before = settings(dsn)

    asked = faultline("settings", "--keep-journal", "1d", *words, "--dsn", dsn) if "--reason" not in words else None
    asked = asked or faultline("settings", *words, "--dsn", dsn)

    assert asked.returncode in {1, 2}
    assert said in asked.stderr
    assert settings(dsn) == before


def test_an_operator_may_change_settings_and_a_viewer_may_look(dsn: str) -> None:
    operator, viewer = (make_conninfo(dsn, options=f"-c role=faultline_{role}") for role in ("operator", "viewer"))

    refused = faultline("settings", "--keep-keys", "1d", "--dsn", viewer)

    assert "; connect as a login that was granted faultline_operator" in refused.stderr
    assert settings(operator, "--keep-keys", "1d") == settings(viewer)


def test_what_is_older_than_the_settings_say_is_pruned(dsn: str, queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    queue.fail(queue.claim_one(), then="fail")
    clock.advance(3700)
    prune = verbs.prune("failed")
    young = queue.run(prune)

    settings(dsn, "--keep-failed", "1h")

    assert (young, queue.run(prune)) == (0, 1)
    assert queue.run(verbs.prune("journal")) == 0


def test_a_worker_refuses_results_that_are_larger_than_the_setting(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=1)
    async def long(length: int) -> str:
        return "ä" * length

    queue.run(verbs.change_setting("result_bytes_max", 1024))

    fits, too_large = results(app, [long.enqueue(511), long.enqueue(512)])

    assert fits == "ä" * 511
    assert isinstance(too_large, JobFailed)
    assert "result of long has 1026 bytes, more than the limit of 1024" in str(too_large)


def test_an_enqueue_refuses_arguments_that_are_larger_than_the_setting(app: Faultline, queue: Driver) -> None:
    @app.task
    async def take(text: str) -> None:
        pass

    queue.run(verbs.change_setting("args_bytes_max", 1024))

    take.enqueue("x" * 1000)
    with pytest.raises(JobRejected, match="more than the limit of 1024"):
        take.enqueue("x" * 1024)


def test_the_doctor_shows_what_is_kept_and_how_large_values_may_be(dsn: str) -> None:
    settings(dsn, "--keep-succeeded", "2w", "--result-bytes-max", "4096")

    found = {
        one["check"]: one["found"] for one in json.loads(faultline("doctor", "--json", "--dsn", dsn).stdout)["findings"]
    }

    assert found["kept"].startswith("succeeded jobs for 14 d, failed and cancelled ones for 30 d")
    assert found["sizes"] == "arguments of 1,048,576 bytes at most, results of 4,096"


LARGE = "ä" * 512


@pytest.mark.parametrize("kind", ["async", "blocking"])
@pytest.mark.parametrize("how", ["completed in its transaction", "of a step", "of a step in its transaction"])
def test_a_result_is_refused_by_its_size_wherever_it_is_given(app: Faultline, queue: Driver, kind: str, how: str) -> None:
    @app.task(name="blocking")
    def blocking(job: BlockingJob, size: int) -> None:
        if how == "of a step":
            job.step("s", lambda: LARGE[:size])
            return
        with job.transaction() as tx:
            tx.complete(LARGE[:size]) if how.startswith("completed") else job.step("s", lambda: LARGE[:size])

    @app.task(name="async")
    async def running(job: Job, size: int) -> None:
        if how == "of a step":
            await job.step("s", lambda: LARGE[:size])
            return
        async with job.transaction() as tx:
            if how.startswith("completed"):
                tx.complete(LARGE[:size])
            else:
                await job.step("s", lambda: LARGE[:size])

    queue.run(verbs.change_setting("result_bytes_max", 1024))
    task = app.tasks[kind]

    fits, too_large = results(app, [task.enqueue(size=511), task.enqueue(size=512)])

    assert not isinstance(fits, JobFailed)
    assert isinstance(too_large, JobFailed)
    assert "has 1026 bytes, more than the limit of 1024. Return a small JSON value" in str(too_large)
