"""The schedules: when each ticks, what became of its ticks, and pausing, running and backfilling it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.explain import calendar as drawing
from faultline.store.reads import schedules, tick_history, views
from faultline.web.api.schedule_shapes import backfilling, find, planned
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import HERE, go, own_path, show
from faultline.web.server.forms import form_of
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi.responses import HTMLResponse, RedirectResponse
    from markupsafe import Markup

    from faultline.store.reads.schedules import ScheduleLine
    from faultline.store.statement import Statement
    from faultline.web.server.forms import Form

T = TypeVar("T")

router = APIRouter()
Reader = Annotated[Caller, Depends(needs("read"))]
Operator = Annotated[Caller, Depends(needs("operate"))]
#: Each costs a look at its ticks and their jobs.
_PAGE_SCHEDULES = 30
_PAGE_TICKS = 50
_UPCOMING = 8
#: What somebody should look at comes first.
_ORDER = ("failing", "overdue", "orphaned", "paused", "active", "ended")
_OUTCOMES = {
    "fired": "on its time",
    "skipped": "skipped: the job before had not ended",
    "backfilled": "backfilled",
    "missed": "missed",
    "manual": "run by hand",
}


@router.get("/schedules")
async def schedules_page(request: Request, caller: Reader) -> HTMLResponse:
    read = service_of(request).read_for(caller)
    lines, now = await asyncio.gather(read.run(schedules.schedules(only_queues=caller.only_queues)), read.run(views.clock()))
    # By what needs somebody, then by name: pages are cut from a list that is short enough to be read whole.
    lines.sort(key=lambda line: (_ORDER.index(line.state), line.name))
    page = _number(request.query_params.get("page"))
    shown = lines[page * _PAGE_SCHEDULES : (page + 1) * _PAGE_SCHEDULES]
    grid = _grid(request, now)
    by = {"by": grid.unit}
    more = {**by, "page": str(page + 1)} if len(lines) > (page + 1) * _PAGE_SCHEDULES else None
    return show(
        request,
        caller,
        "schedules",
        now=now,
        lines=shown,
        grid=grid,
        strips=await _strips(request, caller, grid, shown),
        legend=drawing.legend(),
        first="/schedules?" + urlencode(by),
        more="/schedules?" + urlencode(more) if more else None,
        behind=page > 0,
    )


@router.get("/schedules/{name:path}")
async def schedule_page(request: Request, name: str, caller: Reader) -> HTMLResponse:
    line = await find(request, caller, name)
    read = service_of(request).read_for(caller)
    before = _moment(request.query_params.get("before"))
    ticks, now = await asyncio.gather(
        read.run(tick_history.ticks(line.name, before=before, page_rows=_PAGE_TICKS)), read.run(views.clock())
    )
    grid = _grid(request, now)
    strips = await _strips(request, caller, grid, [line])
    path = f"/schedules/{quote(line.name)}"
    return show(
        request,
        caller,
        "schedule",
        now=now,
        line=line,
        grid=grid,
        strip=strips[line.name],
        legend=drawing.legend(),
        upcoming=await asyncio.to_thread(line.upcoming, _UPCOMING),
        local=_local(line),
        ticks=ticks.ticks,
        outcomes=_OUTCOMES,
        path=path,
        more=f"{path}?{urlencode({'before': ticks.before.isoformat()})}" if ticks.before else None,
        behind=before is not None,
    )


@router.post("/schedules/pause")
async def pause(request: Request, caller: Operator) -> RedirectResponse:
    form, _ = await _operated(request, caller, operate.pause_schedule)
    return _back(form, "schedule_paused")


@router.post("/schedules/resume")
async def resume(request: Request, caller: Operator) -> RedirectResponse:
    form, resumed = await _operated(request, caller, operate.resume_schedule)
    return _back(form, "schedule_resumed" if resumed else "schedule_was_not_paused")


@router.post("/schedules/run")
async def run(request: Request, caller: Operator) -> RedirectResponse:
    form, _ = await _operated(request, caller, operate.run_schedule)
    return _back(form, "schedule_run")


@router.post("/schedules/reset")
async def reset(request: Request, caller: Operator) -> RedirectResponse:
    form, changed = await _operated(request, caller, operate.reset_schedule)
    return _back(form, "schedule_reset" if changed else "schedule_was_not_set")


@router.post("/schedules/remove")
async def remove(request: Request, caller: Operator) -> RedirectResponse:
    """Back to the list: its own page is gone."""
    await _operated(request, caller, operate.remove_schedule)
    return go("/schedules", said="schedule_removed")


async def _operated(request: Request, caller: Caller, verb: Callable[..., Statement[T]]) -> tuple[Form, T]:
    """Do this to the schedule that the form names, for the reason that it gives."""
    form = await form_of(request)
    line = await find(request, caller, form.one("schedule"))
    doing = verb(line.name, reason=form.words("reason"), by=caller.signed(HERE), only_queues=caller.only_queues)
    return form, await service_of(request).operate.run(doing)


@router.post("/schedules/backfill")
async def backfill(request: Request, caller: Operator) -> RedirectResponse:
    """Needs a reason: it may enqueue thousands of jobs."""
    form = await form_of(request)
    line = await find(request, caller, form.one("schedule"))
    reason = form.why("reason")
    first, until = _moment(form.one("from")), _moment(form.one("to"))
    if first is None or until is None:
        raise Problem(
            422,
            "InvalidRequest",
            "A backfill needs two moments; nothing was done.",
            next_step="Go back and enter both, such as 2026-11-01T00:00.",
        )
    doing = await backfilling(caller, line, first, until, reason=reason, by=caller.signed(HERE))
    jobs = await service_of(request).operate.run(doing)
    return _back(form, "schedule_backfilled" if jobs else "schedule_backfilled_none", jobs)


async def _strips(request: Request, caller: Caller, grid: drawing.Grid, lines: list[ScheduleLine]) -> dict[str, Markup]:
    statement = tick_history.strips([line.name for line in lines], first=grid.first, length=grid.length, cells=grid.cells)
    found = await service_of(request).read_for(caller).run(statement)

    def drawn() -> dict[str, Markup]:
        return {
            line.name: drawing.draw(
                grid, planned(grid, line, found[line.name]), line.name, read_from=found[line.name].read_from
            )
            for line in lines
        }

    # Rules are computed: off the loop, which serves others meanwhile.
    return await asyncio.to_thread(drawn)


def _grid(request: Request, now: datetime) -> drawing.Grid:
    return drawing.Grid.around(now, "day" if request.query_params.get("by") == "day" else "hour")


def _back(form: Form, said: str, n: int | None = None) -> RedirectResponse:
    path = own_path(form.one("back") or "/schedules").partition("?")[0]
    return go(path, said=said, n=n)


def _local(line: ScheduleLine) -> Callable[[datetime], str]:
    """Moments as the clocks of its time zone show them."""
    try:
        zone = ZoneInfo(line.tz or "UTC")
    except Exception:  # noqa: BLE001 - its time zone is newer than this system, or not one at all
        zone = ZoneInfo("UTC")
    return lambda at: f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 6 else 0  # noqa: PLR2004


def _moment(text: str | None) -> datetime | None:
    """None: it is none. Without a time zone, UTC."""
    try:
        moment = datetime.fromisoformat(text or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
