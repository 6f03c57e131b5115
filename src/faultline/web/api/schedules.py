"""Schedules: list and read them, set, reset, remove, pause, resume, run and backfill them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query, Request

from faultline import operate
from faultline.operate import schedule_notes
from faultline.store.reads import overview, schedules, tick_history, views
from faultline.web.api.routes import SCHEDULE_PATHS, CheckedRoute
from faultline.web.api.schedule_shapes import (
    UPCOMING_MAX,
    Backfill,
    Backfilled,
    NewSchedule,
    PausedSchedule,
    RemovedSchedule,
    ResetSchedule,
    ResumedSchedule,
    RunSchedule,
    Schedule,
    ScheduleName,
    Schedules,
    SetSchedule,
    TickFilter,
    Ticks,
    backfilling,
    find,
)
from faultline.web.api.shapes import Why
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

router = APIRouter(tags=["schedules"], route_class=CheckedRoute)

Reader = Annotated[Caller, Depends(needs("read"))]
Operator = Annotated[Caller, Depends(needs("operate"))]
Name = Annotated[ScheduleName, Path()]
#: Where nothing follows the name.
WholeName = Annotated[
    ScheduleName, Path(description=f"Not one that ends in {', '.join(f'/{path}' for path in SCHEDULE_PATHS)}.")
]
Because = Annotated[Why | None, Body()]


@router.get("/schedules", summary="List schedules")
async def list_schedules(request: Request, caller: Reader) -> Schedules:
    """A key that is restricted to queues sees the schedules whose jobs go there."""
    found = await service_of(request).read_for(caller).run(schedules.schedules(only_queues=caller.only_queues))
    return Schedules(schedules=found)


@router.get("/schedules/{name:path}/ticks", summary="List what was decided about the ticks of a schedule")
async def list_ticks(request: Request, name: Name, wanted: Annotated[TickFilter, Query()], caller: Reader) -> Ticks:
    """Newest first. Missed ticks that follow each other are one entry."""
    line = await find(request, caller, name)
    statement = tick_history.ticks(line.name, before=wanted.before, page_rows=wanted.limit)
    page = await service_of(request).read_for(caller).run(statement)
    return Ticks(ticks=page.ticks, next_before=page.before)


@router.get("/schedules/{name:schedule}", summary="One schedule, with its next ticks")
async def one_schedule(
    request: Request, name: WholeName, caller: Reader, count: Annotated[int, Query(ge=0, le=UPCOMING_MAX)] = 5
) -> Schedule:
    line = await find(request, caller, name)
    return Schedule(schedule=line, state=line.state, upcoming=line.upcoming(count))  # type: ignore[arg-type]  # a word of ours


@router.put("/schedules/{name:schedule}", summary="Make or change a schedule")
async def set_schedule(request: Request, name: WholeName, body: NewSchedule, caller: Operator) -> SetSchedule:
    """A schedule that enqueues new jobs also needs the scope `enqueue`. What is set here wins over the code of workers."""
    if not caller.may("enqueue"):
        raise Problem(
            403,
            "Forbidden",
            "A schedule enqueues jobs; this key lacks the `enqueue` scope.",
            next_step="Use a key with the scopes `operate` and `enqueue`.",
        )
    read = service_of(request).read_for(caller)
    workers, now = await asyncio.gather(read.run(overview.workers()), read.run(views.clock()))
    there = await read.run(schedules.schedule(name))
    theirs = there if there is not None and caller.may_touch(there.queue) else None
    doubts: list[str] = []
    if "queue" not in body.model_fields_set:
        found = schedule_notes.queue_for(body.task, workers, theirs)
        doubts += [] if found else schedule_notes.unsure(body.task, workers)
        body = body.model_copy(update={"queue": found or body.queue})
    if not caller.may_touch(body.queue):
        raise Problem(
            403,
            "QueueForbidden",
            f"This key may not enqueue into the queue {body.queue!r}.",
            next_step="Use one of the key's queues.",
        )
    if there is not None and theirs is None:
        raise Problem(409, "NameTaken", "A schedule of another queue has this name.", next_step="Choose another name.")
    job = body.job()
    doing = operate.set_schedule(
        name,
        body.rule(),
        job,
        body.policy(),
        reason=body.reason,
        by=caller.signed(),
        only_queues=caller.only_queues,
    )
    changed = await service_of(request).operate.run(doing)
    doubts += schedule_notes.changes(name, job, there)
    doubts += schedule_notes.doubts(body.task, body.queue, body.rule(), workers, now)
    return SetSchedule(name=name, changed=changed, queue=body.queue, warnings=doubts)


@router.post("/schedules/{name:path}/reset", summary="Reset a schedule to what the code of workers says")
async def reset_schedule(request: Request, name: Name, caller: Operator, body: Because = None) -> ResetSchedule:
    """What was set for it no longer holds. One that was made at run time is refused: no code has it."""
    line = await find(request, caller, name)
    if not line.from_code:
        raise Problem(
            409,
            "IllegalTransition",
            "The schedule was made at run time: no code says anything else.",
            next_step="Set it to what you want, or remove it.",
        )
    doing = operate.reset_schedule(name, reason=_why(body), by=caller.signed(), only_queues=caller.only_queues)
    return ResetSchedule(name=name, changed=await service_of(request).operate.run(doing))


@router.delete("/schedules/{name:schedule}", summary="Remove a schedule")
async def remove_schedule(request: Request, name: WholeName, caller: Operator, body: Because = None) -> RemovedSchedule:
    """One that is in the code of a living worker is refused: that worker would make it again."""
    await find(request, caller, name)
    doing = operate.remove_schedule(name, reason=_why(body), by=caller.signed(), only_queues=caller.only_queues)
    return RemovedSchedule(name=name, removed=await service_of(request).operate.run(doing))


@router.post("/schedules/{name:path}/pause", summary="Pause a schedule: its ticks make no jobs")
async def pause_schedule(request: Request, name: Name, caller: Operator, body: Because = None) -> PausedSchedule:
    await find(request, caller, name)
    doing = operate.pause_schedule(name, reason=_why(body), by=caller.signed(), only_queues=caller.only_queues)
    return PausedSchedule(name=name, paused_at=await service_of(request).operate.run(doing))


@router.post("/schedules/{name:path}/resume", summary="Resume a schedule")
async def resume_schedule(request: Request, name: Name, caller: Operator, body: Because = None) -> ResumedSchedule:
    """Ticks from now on count: what was paused on purpose is not caught up."""
    await find(request, caller, name)
    doing = operate.resume_schedule(name, reason=_why(body), by=caller.signed(), only_queues=caller.only_queues)
    return ResumedSchedule(name=name, was_paused=await service_of(request).operate.run(doing))


@router.post("/schedules/{name:path}/run", status_code=201, summary="Run the job of a schedule now, beside its ticks")
async def run_schedule(request: Request, name: Name, caller: Operator, body: Because = None) -> RunSchedule:
    await find(request, caller, name)
    doing = operate.run_schedule(name, reason=_why(body), by=caller.signed(), only_queues=caller.only_queues)
    return RunSchedule(name=name, job_id=await service_of(request).operate.run(doing))


@router.post("/schedules/{name:path}/backfill", status_code=201, summary="Run ticks of the past that have no job")
async def backfill(request: Request, name: Name, body: Backfill, caller: Operator) -> Backfilled:
    """Sent twice, it enqueues once. More than 10,000 ticks are refused, with their number."""
    line = await find(request, caller, name)
    doing = await backfilling(caller, line, body.first, body.last, reason=body.reason, by=caller.signed())
    return Backfilled(name=name, jobs=await service_of(request).operate.run(doing))


def _why(body: Why | None) -> str | None:
    return None if body is None else body.reason
