"""What schemathesis must know beside /openapi.json: how texts of our formats look, and how values must compare, for which
JSON Schema has no words. Loaded by its command, by the name in `SCHEMATHESIS_HOOKS`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.openapi.checks import RejectedPositiveData

_MINUTES, _HOURS, _DAYS = (st.integers(least, most).map(str) for least, most in ((0, 59), (0, 23), (1, 28)))
_WEEKDAYS = st.sampled_from(["mon-fri", "sun", "5L", "mon#2", "1,3,5", "0-7/2"])
_EVERY = st.just("*")

schemathesis.openapi.format(
    "cron",
    st.tuples(
        _MINUTES | _EVERY | st.just("*/5"), _HOURS | _EVERY, _DAYS | _EVERY, st.just("jan") | _EVERY, _WEEKDAYS | _EVERY
    ).map(" ".join),
)
schemathesis.openapi.format("time-zone", st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Lima"]))


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Drop the complaint about a request that fits its schema, but whose values contradict each other or the schedule."""
    refused = isinstance(failure, RejectedPositiveData) and response.status_code == 422
    # The job is there, and has not come to that call.
    if response.status_code == 404 and "has no call" in response.text:
        return False
    # How many ticks there are between two moments follows from the schedule.
    return not (refused and (_contradicts_itself(case.body) or "ticks, and at most" in response.text))


def _contradicts_itself(body: Any) -> bool:
    if not isinstance(body, dict):
        return False
    if "from" in body and "to" in body:
        # Ticks that have yet to come are not backfilled.
        return _moment(body["from"]) >= min(_moment(body["to"]), datetime.now(UTC))
    jobs = body["jobs"] if isinstance(body.get("jobs"), list) else [body]
    return any(_is_short(job.get("unique") or {}) or _expires_early(job) for job in jobs)


def _is_short(unique: dict[str, Any]) -> bool:
    """Its longest delay is shorter than its delay."""
    debounce, at_most = unique.get("debounce"), unique.get("at_most")
    return debounce is not None and at_most is not None and at_most < debounce


def _expires_early(job: dict[str, Any]) -> bool:
    """It would expire before it may run."""
    now = datetime.now(UTC)
    seconds, at = job.get("expires_seconds"), job.get("expires_at")
    expires = _moment(at) if at is not None else None if seconds is None else now + timedelta(seconds=seconds)
    run_at = job.get("run_at")
    # A debounce is the delay of its job, and so is the jitter of a schedule.
    delays = (job.get("delay_seconds"), (job.get("unique") or {}).get("debounce"), job.get("jitter_seconds"))
    due = _moment(run_at) if run_at is not None else now + timedelta(seconds=max(delay or 0 for delay in delays))
    return expires is not None and expires <= due


def _moment(text: str) -> datetime:
    """A time by RFC 3339, which knows leap seconds."""
    return datetime.fromisoformat(re.sub(r":60(?=[.Zz+-])", ":59", text).upper())
