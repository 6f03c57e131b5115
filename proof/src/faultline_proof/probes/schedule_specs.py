"""What a schedule may say: each tick makes a job of its own, and what could not tick is refused where it is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_DAY = datetime(2026, 11, 1, tzinfo=UTC)
_SPEC: dict[str, Any] = {"every": 60, "job": {"task": "t"}}


def write(q: Session, **given: Any) -> None:
    q.execute("select faultline.set_schedule('s', %s::json)", json.dumps(_SPEC | given))


def template(text: str) -> list[dict[str, Any]]:
    return [{"text": text, "path": ["day"]}]


@probe("tick_job", "fill_template", "check_schedule", "backfill")
def a_group_and_a_key_of_the_tick_are_those_of_each_tick(sessions: Sessions) -> None:
    q = sessions.open()
    job = {"task": "t", "group": template("day-"), "unique": {"key": template("report:"), "then": "replace"}}
    write(q, job=job, tick_arg="day")
    days = [_DAY + timedelta(days=n) for n in range(3)]
    expect("enqueued", q.value("select faultline.backfill('s', %s)", days), 3)
    found = q.execute("select args ->> 'day', group_key, unique_key from faultline.open_jobs order by 1")
    texts = [day.isoformat() for day in days]
    expect("jobs", found, [(text, f"day-{text}", f"report:{text}") for text in texts])
    with refused(q, "FL005", "day is missing"):
        write(q, job=job)


@probe("check_schedule")
def what_no_worker_could_read_or_tick_is_no_schedule(sessions: Sessions) -> None:
    q = sessions.open()
    wrong: dict[str, dict[str, Any]] = {
        "not all numbers": {"every": "300"},
        "a time with a time zone": {"every": None, "at": "tomorrow+00"},
        "no name of one": {"every": None, "cron": "0 9 * * *", "tz": 5},
        "the name of an argument": {"tick_arg": 5},
        "are not a JSON object": {"job": {"task": "t", "args": 5}, "tick_arg": "day"},
        "leave the jitter out": {"job": {"task": "t", "unique": {"debounce": 5}}, "jitter_seconds": 1},
        "may expire before it runs": {"job": {"task": "t", "expires_seconds": 5}, "jitter_seconds": 5},
    }
    for why, given in wrong.items():
        with refused(q, "FL005", why, what=why):
            write(q, **given)
    expect("schedules", q.value("select count(*) from faultline.schedules"), 0)
    write(q, job={"task": "t", "expires_seconds": 5}, jitter_seconds=4)
