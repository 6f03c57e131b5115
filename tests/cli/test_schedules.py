"""Commands about schedules: set, list, show, pause, run, backfill, remove."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from faultline import operate
from faultline.store.reads import views
from tests.cli.commands import faultline
from tests.cli.test_doctor import of_level, visit
from tests.web.schedule_scenes import declared, hours, line, made, ticked

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def test_a_schedule_is_set_listed_and_shown_with_its_next_ticks(queue: Driver, dsn: str) -> None:
    words = ("schedules", "set", "digest", "send", '{"to": "ada"}', "--cron", "0 9 * * mon-fri", "--tz", "Europe/Berlin")

    first = faultline(*words, "--queue", "mail", "--reason", "asked", "--dsn", dsn)
    again = faultline(*words, "--queue", "mail", "--dsn", dsn)
    ticked(queue)
    listed = faultline("schedules", "--dsn", dsn).stdout.splitlines()
    told = json.loads(faultline("schedules", "--json", "--dsn", dsn).stdout)
    coming = faultline("schedules", "next", "digest", "--count", "3", "--dsn", dsn).stdout.splitlines()

    assert (first.stdout, first.stderr) == ("digest: 0 9 * * mon-fri (Europe/Berlin), queue mail\n", "")
    assert again.stdout == "digest was so already; nothing was changed\n"
    assert listed[1].split()[:2] == ["digest", "active"]
    assert (told["state"], told["queue"], told["job"]["args"]) == ("active", "mail", {"to": "ada"})
    assert (told["changed_by"], told["reason"]) == (operate.this_user(), "asked")
    assert len(coming) == 3
    assert all(" 09:00:00 CE" in at for at in coming)


def test_what_looks_like_a_mistake_is_noted_and_the_queue_of_the_task_is_found(queue: Driver, dsn: str) -> None:
    queue.heartbeat("w")
    queue.execute("update faultline.workers set queues = '{mail}', tasks = '{send}', heartbeat_at = now() + '1 hour'")

    found = faultline("schedules", "set", "digest", "send", "--every", "5m", "--dsn", dsn)
    unknown = faultline("schedules", "set", "digest", "sent", "--every", "5m", "--dsn", dsn)

    assert (found.stdout, found.stderr) == ("digest: every 300 s, queue mail\n", "")
    assert "note: no living worker knows the task sent" in unknown.stderr


def test_a_job_that_goes_to_default_only_because_no_queue_was_named_is_noted(queue: Driver, dsn: str) -> None:
    queue.heartbeat("w")
    queue.execute(
        "update faultline.workers set queues = '{default,mail}', tasks = '{send}', heartbeat_at = now() + '1 hour'"
    )

    guessed = faultline("schedules", "set", "digest", "send", "--every", "5m", "--dsn", dsn)
    chosen = faultline("schedules", "set", "letter", "send", "--every", "5m", "--queue", "default", "--dsn", dsn)

    assert guessed.stdout == "digest: every 300 s, queue default\n"
    assert "no queue was named" in guessed.stderr
    assert "also serve mail" in guessed.stderr
    assert chosen.stderr == ""


def test_the_job_of_a_schedule_has_the_options_that_are_named(queue: Driver, dsn: str) -> None:
    words = ("--queue", "mail", "--group", "tenant-7", "--priority", "-5", "--max-attempts", "2", "--expires", "10m")
    once = ("--unique-key", "doc:7", "--catch-up-within", "1h")

    done = faultline("schedules", "set", "digest", "send", "--every", "5m", *words, *once, "--dsn", dsn)

    assert done.returncode == 0, done.stderr
    found = line(queue, "digest")
    assert found.job["unique"]["key"] == "doc:7"
    assert {name: found.job[name] for name in ("queue", "group", "priority", "max_attempts", "expires_seconds")} == {
        "queue": "mail",
        "group": "tenant-7",
        "priority": -5,
        "max_attempts": 2,
        "expires_seconds": 600.0,
    }
    assert found.catch_up_seconds == 3600


def test_a_schedule_of_the_code_keeps_its_queue_says_what_it_lost_and_is_reset(queue: Driver, dsn: str) -> None:
    before = declared(queue, queue="reports", group="all")

    changed = faultline("schedules", "set", "report", "t", "--every", "5m", "--dsn", dsn)
    back = [faultline("schedules", "reset", "report", "--reason", "enough", "--dsn", dsn) for _ in range(2)]

    assert changed.stdout == "report: every 300 s, queue reports\n"
    assert "note: its job had group before" in changed.stderr
    assert "note: report is in the code of workers" in changed.stderr
    assert [done.stdout for done in back] == [
        "report: 0 9 * * * (UTC), queue reports, as in the code\n",
        "nothing was set for report; it stays as the code says\n",
    ]
    after = line(queue)
    assert (after.job, after.rule_text, after.overridden, after.reason) == (before.job, before.rule_text, False, "enough")


@pytest.mark.parametrize(
    ("cron", "noted"), [("0 9 1-7 * mon", True), ("0 9 * * mon#1", False), ("0 9 */2 * mon", False), ("0 9 13 * *", False)]
)
def test_a_line_that_ticks_on_either_day_is_noted(dsn: str, cron: str, noted: bool) -> None:  # noqa: FBT001
    done = faultline("schedules", "set", "digest", "send", "--cron", cron, "--dsn", dsn)

    assert done.returncode == 0
    assert ("it ticks on either" in done.stderr) is noted


def test_a_schedule_is_paused_resumed_and_run_with_who_and_why(queue: Driver, dsn: str) -> None:
    made(queue)

    paused = faultline("schedules", "pause", "report", "--reason", "the bank\nis closed", "--dsn", dsn)
    listed = faultline("schedules", "--dsn", dsn, COLUMNS="400").stdout.splitlines()
    none = faultline("schedules", "next", "report", "--dsn", dsn)
    resumed = [faultline("schedules", "resume", "report", "--dsn", dsn).stdout for _ in range(2)]
    run = faultline("schedules", "run-now", "report", "--reason", "the auditor asks", "--dsn", dsn)

    assert paused.stdout.startswith("report paused since ")
    assert len(listed) == 2
    assert f"by {operate.this_user()}: the bank is closed" in listed[1]
    assert none.stdout == "no tick is to come: report is paused\n"
    assert resumed == ["report resumed\n", "report was not paused\n"]
    job = queue.run(views.job(run.stdout.strip()))
    assert job is not None
    assert job.task == "t"


def test_past_ticks_are_shown_with_their_jobs_and_backfilled_once(queue: Driver, dsn: str, clock: Clock) -> None:
    made(queue)
    hours(queue, clock, 2)
    clock.advance(3 * 3600)
    ticked(queue)
    now = line(queue).clock
    words = (
        "schedules",
        "backfill",
        "report",
        "--from",
        (now - timedelta(days=1)).isoformat(),
        "--to",
        now.isoformat(),
        "--dsn",
        dsn,
    )

    shown = faultline("schedules", "show", "report", "--dsn", dsn).stdout
    told = json.loads(faultline("schedules", "show", "report", "--json", "--dsn", dsn).stdout)
    filled, again = faultline(*words, "--reason", "why"), faultline(*words)

    assert "2 ticks" in shown
    assert "missed" in shown
    assert [tick["outcome"] for tick in told["ticks"]].count("fired") == 3
    assert len(told["upcoming"]) == 5
    assert filled.stdout.endswith("enqueued\n")
    assert again.stdout == "nothing to do: there are no ticks in that time, or each has its job\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("set", "x", "t", "--cron", "0 99 * * *"), 1, "position 3"),
        (("set", "x", "t"), 1, "needs one rule"),
        (("set", "x", "t", "--every", "soon"), 2, "invalid duration soon"),
        (("set", "x", "t", "--at", "tomorrow"), 2, "invalid time tomorrow"),
        (("set", "x", "t", "--every", "5m", "--overlap", "maybe"), 1, "overlap must be"),
        (("show", "x"), 1, 'no schedule named "x"; `faultline schedules` lists them'),
        (("next", "x"), 1, 'no schedule named "x"'),
        (("pause", "x"), 1, 'no schedule named "x"'),
        (("reset", "x"), 1, 'no schedule named "x" is in the code of a worker'),
        (("run-now", "x"), 1, 'no schedule named "x"'),
        (("remove", "x"), 1, 'no schedule named "x"'),
        (("backfill", "x", "--from", "2026-01-02", "--to", "2026-01-01"), 2, "swap them"),
        (("backfill", "x", "--from", "2026-01-01", "--to", "2026-01-02"), 1, 'no schedule named "x"'),
    ],
)
def test_what_cannot_be_done_says_why_and_does_nothing(dsn: str, words: tuple[str, ...], code: int, said: str) -> None:
    asked = faultline("schedules", *words, "--dsn", dsn)

    assert (asked.returncode, asked.stdout) == (code, "")
    assert said in asked.stderr


def test_a_schedule_is_removed_and_one_in_the_code_of_a_living_worker_is_not(queue: Driver, dsn: str) -> None:
    made(queue)

    removed = faultline("schedules", "remove", "report", "--reason", "has left", "--dsn", dsn)

    assert removed.stdout == "report removed\n"
    assert faultline("schedules", "--dsn", dsn).stdout.startswith("No schedules")


def test_schedules_that_stand_still_are_told_with_what_to_do(queue: Driver, dsn: str, clock: Clock) -> None:
    assert of_level(visit(dsn), "ok")["schedules"] == "none"
    for name in ("held", "late", "bad"):
        made(queue, name)
    queue.run(operate.pause_schedule("held", reason="the bank is closed"))
    clock.advance(2 * 86_400)
    queue.execute(
        "select faultline.schedule_failed(name, revision, 'no such zone') from faultline.schedules where name = 'bad'"
    )

    told = [finding for finding in visit(dsn)["findings"] if finding["check"] == "schedules"]

    assert [(one["level"], one["found"].partition(" ")[0]) for one in told] == [
        ("warning", "late:"),
        ("warning", "bad:"),
        ("note", "held"),
    ]
    assert told[0]["found"].startswith("late: its tick has been due for ")
    assert "no such zone" in told[1]["found"]
    assert told[2]["todo"] == "to resume it: faultline schedules resume held"
