"""Schedules over HTTP: the schemas of requests and responses, and finding the one that a caller may see."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from faultline import operate
from faultline.core.cron import LINE_LENGTH_MAX
from faultline.core.errors import JobRejected
from faultline.core.model import Submission
from faultline.core.schedules import (
    EVERY_SECONDS_MAX,
    EVERY_SECONDS_MIN,
    JITTER_SECONDS_MAX,
    NAME_LENGTH_MAX,
    CatchUp,
    Overlap,
    Policy,
    Rule,
)
from faultline.store import jsontext
from faultline.store.reads import schedules
from faultline.store.reads.schedules import ScheduleLine
from faultline.store.reads.tick_history import TickState
from faultline.web.api.shapes import (
    NO_NUL,
    PAGE_JOBS_MAX,
    SEEN,
    Asked,
    Reason,
    RunAt,
    TaskName,
    Time,
    shapes_of_a_submission,
)
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from faultline.explain.calendar import Grid
    from faultline.store.reads.tick_history import Strip
    from faultline.store.statement import Statement
    from faultline.web.auth.caller import Caller

UPCOMING_MAX = 100
ScheduleName = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LENGTH_MAX, pattern=SEEN)]
#: A moment follows from the tick.
_OF_ONE_JOB = ("delay_seconds", "run_at", "expires_at")
_JOB = {name: shape for name, shape in shapes_of_a_submission().items() if name not in _OF_ONE_JOB}

_JobOfTicks = create_model(
    "_JobOfTicks",
    __base__=Asked,
    task=(TaskName, ...),
    args=(dict[str, Any], Field({}, description="The arguments of the task, by name.")),
    **_JOB,
)


#: In the description. Only a cron line has a time zone.
_ONE_RULE: dict[str, Any] = {
    "oneOf": [
        {
            "required": [rule],
            "properties": {rule: {"type": kind}} | {other: {"type": "null"} for other in others},
        }
        for rule, kind, others in (
            ("cron", "string", ("every", "at")),
            ("every", "number", ("cron", "tz", "at")),
            ("at", "string", ("cron", "tz", "every")),
        )
    ]
}
_CronText = Annotated[str, StringConstraints(max_length=LINE_LENGTH_MAX), Field(json_schema_extra={"format": "cron"})]
_ZoneName = Annotated[str, StringConstraints(min_length=1, max_length=100), Field(json_schema_extra={"format": "time-zone"})]


class NewSchedule(_JobOfTicks):  # type: ignore[misc, valid-type]  # made of the fields of a submission
    """A schedule: one rule (`cron`, `every` or `at`), its job, and what to do about missed ticks and overlaps."""

    model_config = ConfigDict(json_schema_extra=_ONE_RULE)

    cron: _CronText | None = Field(None, description="Five fields: minute, hour, day of the month, month, day of the week.")
    tz: _ZoneName | None = Field(None, description="The time zone of the cron line, such as Europe/Berlin. Default: UTC.")
    every: float | None = Field(
        None, ge=EVERY_SECONDS_MIN, le=EVERY_SECONDS_MAX, allow_inf_nan=False, description="Seconds."
    )
    at: RunAt | None = Field(None, description="Once, at this moment.")
    catch_up: CatchUp = Field("latest", description="Which of the ticks that nobody decided about in time make their jobs.")
    catch_up_seconds: float | None = Field(None, ge=0, le=EVERY_SECONDS_MAX, description="Default: a day.")
    overlap: Overlap = Field("allow", description="What a tick does while a job of an earlier one has not ended.")
    jitter_seconds: float = Field(0.0, ge=0, le=JITTER_SECONDS_MAX, description="Jobs run up to so much later.")
    tick_arg: Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)] | None = Field(
        None, description="The argument of the task that gets the moment of the tick."
    )
    reason: Reason | None = Field(None, description="Recorded in the journal, with the name and id of the key.")

    def rule(self) -> Rule:
        return Rule(self.cron, self.tz, self.every, self.at)

    def policy(self) -> Policy:
        seconds = self.catch_up_seconds
        return Policy(self.catch_up, seconds, self.overlap, self.jitter_seconds, self.tick_arg)

    def job(self) -> Submission:
        given = {name: getattr(self, name) for name in _JOB}
        return Submission(self.task, jsontext.encode_args(self.args, "args"), **given)


class SetSchedule(BaseModel):
    name: str
    changed: bool = Field(description="false: it was so already.")
    queue: str = Field(
        description="Where its jobs go. If none was named: the queue on which living workers serve the task, if it is"
        " exactly one; or that of the schedule as it was, if that had the same task; or `default`."
    )
    warnings: list[str] = Field(description="What looks like a mistake. It was set all the same.")


class ResetSchedule(BaseModel):
    name: str
    changed: bool = Field(description="false: nothing was set for it.")


class RemovedSchedule(BaseModel):
    name: str
    removed: bool = Field(description="false: there was none.")


class PausedSchedule(BaseModel):
    name: str
    paused_at: datetime


class ResumedSchedule(BaseModel):
    name: str
    was_paused: bool


class RunSchedule(BaseModel):
    name: str
    job_id: UUID


class Backfill(Asked):
    """Which ticks of the past to run. Those that have a job are left out."""

    first: RunAt = Field(alias="from", description="The earliest tick.")
    last: RunAt = Field(alias="to", description="Ticks before this moment, which is after `from`.")
    reason: Reason | None = Field(None, description="Recorded in the journal, with the name and id of the key.")


class Backfilled(BaseModel):
    name: str
    jobs: int = Field(description="How many jobs were enqueued.")


class Schedule(BaseModel):
    """A schedule, and when it ticks next."""

    schedule: ScheduleLine
    state: Literal["active", "overdue", "failing", "paused", "orphaned", "ended"]
    upcoming: list[datetime]


class Schedules(BaseModel):
    schedules: list[ScheduleLine]


class TickFilter(Asked):
    model_config = Asked.model_config | {"strict": False}

    before: Time | None = Field(None, description="Only ticks before this moment: `next_before` of the previous page.")
    limit: int = Field(50, ge=1, le=PAGE_JOBS_MAX)


class Ticks(BaseModel):
    ticks: list[TickState]
    next_before: datetime | None = Field(description="Where the next page begins; null at the end.")


async def find(request: Request, caller: Caller, name: str | None) -> ScheduleLine:
    """The schedule of this name, if the caller may see it. One whose jobs go to other queues is not there for them."""
    line = None
    if name is not None and len(name) <= NAME_LENGTH_MAX and "\x00" not in name:
        line = await service_of(request).read_for(caller).run(schedules.schedule(name, only_queues=caller.only_queues))
    if line is None:
        raise Problem(404, "ScheduleNotFound", "No such schedule.", next_step="See the list of schedules.")
    return line


async def backfilling(
    caller: Caller, line: ScheduleLine, first: datetime, until: datetime, *, reason: str | None, by: str
) -> Statement[int]:
    """The backfill of the ticks from one moment up to before another. Off the loop: there may be 10,000 to compute."""
    if until <= first:
        raise Problem(
            422, "InvalidRequest", "The end of the backfill is not after its beginning.", next_step="Swap the two moments."
        )
    last = until - timedelta(microseconds=1)
    return await asyncio.to_thread(operate.backfill, line, first, last, reason=reason, by=by, only_queues=caller.only_queues)


def planned(grid: Grid, line: ScheduleLine, strip: Strip) -> Mapping[int, Mapping[str, int]]:
    """The cells of a strip, with those that have a tick to come. One look at the rule for each cell, however many ticks."""
    if line.next_at is None or line.paused_at is not None or line.ended_at is not None or line.orphaned:
        return strip.cells
    try:
        rule = schedules.rule_of(line)
    except JobRejected:  # its time zone is newer than this system
        return strip.cells
    for cell in grid.coming():
        start = max(grid.start(cell), grid.now) - timedelta(microseconds=1)
        tick = rule.beginning(line.next_at, start)
        if tick is not None and tick < grid.start(cell) + grid.length:
            strip.add(cell, "planned", 0)
    return strip.cells
