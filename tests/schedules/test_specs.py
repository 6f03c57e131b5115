"""What a schedule may say: each tick makes a job of its own, and what could not tick is refused where it is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID  # noqa: TC003 - read when the task is declared

import pytest

from faultline import Faultline, Unique
from faultline.core.errors import ConfigError, JobRejected
from faultline.core.schedules import Rule
from faultline.store.verbs import schedules as verbs

if TYPE_CHECKING:
    from tests.driver import Driver

FIRST, LAST = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 7, tzinfo=UTC)
SPEC: dict[str, Any] = {"every": 60, "job": {"task": "t"}}


def made(app: Faultline, queue: Driver) -> list[tuple[str, str, str]]:
    """The arguments, groups and keys of a week's backfill."""
    queue.run(verbs.declare_schedules("w", app.schedule_declarations()))
    assert app.schedules.backfill("report", FIRST, LAST) == 7
    return queue.execute("select args ->> 'day', group_key, unique_key from faultline.open_jobs order by 1")


def week(text: str) -> list[str]:
    return [text.replace("DAY", (FIRST + timedelta(days=n)).isoformat()) for n in range(7)]


def test_a_unique_key_and_a_group_of_the_tick_are_those_of_each_tick(app: Faultline, queue: Driver) -> None:
    @app.schedule("0 0 * * *", tick_arg="day", args=(7,), name="report")
    @app.task(unique=Unique(key="report:{shop}:{day}"), group="day-{day}-{size}")
    def report(shop: int, day: datetime, size: str = "xl") -> None: ...

    found = made(app, queue)

    assert found == list(zip(week("DAY"), week("day-DAY-xl"), week("report:7:DAY"), strict=True))
    # A job that the program itself enqueues for one of these days is the same.
    assert not report.enqueue(7, FIRST).created


def test_a_schedule_made_at_run_time_has_the_keys_of_its_ticks_too(app: Faultline, queue: Driver) -> None:
    @app.task(unique=Unique(key="report:{day}"), group="day-{day}")
    def report(day: datetime) -> None: ...

    app.schedules.set("report", report.bind(day=LAST), cron="0 0 * * *", tick_arg="day")
    found = made(app, queue)

    assert [key for _, _, key in found] == week("report:DAY")
    # A group that somebody has named is no template.
    named = report.options(group="all").bind(day=LAST)
    app.schedules.set("report", named, cron="0 0 * * *", tick_arg="day")
    app.schedules.run_now("report")
    assert queue.value("select group_key from faultline.open_jobs order by created_at desc, id desc limit 1") == "all"


def test_a_task_may_take_its_tick_as_text(app: Faultline, queue: Driver) -> None:
    @app.schedule("0 0 * * *", tick_arg="day", name="report")
    @app.task(group="day-{day}")
    def report(day: str) -> None: ...

    assert [group for _, group, _ in made(app, queue)] == week("day-DAY")


def test_a_tick_for_a_parameter_of_another_type_is_refused_where_it_is_written(app: Faultline) -> None:
    @app.task
    def report(day: UUID) -> None: ...

    with pytest.raises(ConfigError, match="day does not fit"):
        app.schedule("0 0 * * *", tick_arg="day")(report)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"unique": Unique(key="k", debounce=5)}, "debounce, which is its delay"),
        ({"expires": 30}, "may expire before it runs"),
    ],
)
def test_jitter_that_its_jobs_cannot_have_is_refused(app: Faultline, queue: Driver, options: Any, why: str) -> None:
    @app.task(**options)
    def report() -> None: ...

    with pytest.raises(ConfigError, match=why):
        app.schedule("* * * * *", jitter=30)(report)
    with pytest.raises(JobRejected, match=why):
        app.schedules.set("report", report.bind(), cron="* * * * *", jitter=30)
    job = {"task": "t", "unique": {"debounce": 5}} if "unique" in options else {"task": "t", "expires_seconds": 30}
    with pytest.raises(JobRejected, match=why):
        queue.run(verbs.set_schedule("s", json.dumps(SPEC | {"job": job, "jitter_seconds": 30})))
    assert queue.run(verbs.set_schedule("s", json.dumps(SPEC | {"job": job})))


@pytest.mark.parametrize(
    "given",
    [
        {"every": "300"}, {"every": [300]}, {"every": True}, {"every": None, "at": "tomorrow+00"},
        {"every": None, "at": "Jan 1 2027 06:00:00+00"}, {"every": None, "at": "2027-01-01T06:00:00z"},
        {"every": None, "at": "2027-01-01T24:00:00+00:00"}, {"every": None, "cron": "0 9 * * *", "tz": 5},
        {"jitter_seconds": "5"}, {"catch_up_seconds": "5"}, {"tick_arg": 5},
        {"job": {"task": "t", "args": 5}, "tick_arg": "a"},
    ],
    ids=str,
)  # fmt: skip
def test_a_schedule_that_no_worker_could_read_is_refused(queue: Driver, given: Any) -> None:
    with pytest.raises(JobRejected, match="is refused"):
        queue.run(verbs.set_schedule("s", json.dumps(SPEC | given)))


@pytest.mark.parametrize("at", ["2027-01-01T06:00:00+00:00", "2027-01-01 06:00+0100", "2027-01-01T06:00:00.5Z"])
def test_a_moment_that_the_database_takes_is_one_that_workers_read(queue: Driver, at: str) -> None:
    assert queue.run(verbs.set_schedule("s", json.dumps({"at": at, "job": {"task": "t"}})))
    assert Rule.of({"at": at}).at is not None


@pytest.mark.parametrize("rule", [Rule("0 0 * * *", "Asia/Tokyo"), Rule(every=60.0), Rule(at=LAST)])
def test_a_backfill_that_begins_at_the_end_of_the_calendar_is_refused(rule: Rule) -> None:
    with pytest.raises(JobRejected, match="1900 to 9998"):
        rule.between(datetime.min.replace(tzinfo=UTC), LAST, anchor=LAST)
    with pytest.raises(JobRejected, match="1900 to 9998"):
        rule.between(FIRST, datetime.max.replace(tzinfo=UTC), anchor=LAST)
