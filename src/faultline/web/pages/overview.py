"""Is everything correct, and do workers keep up? Nothing here counts rows, so it is fast with any number of jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline.core.measures import COUNTS
from faultline.explain.formatting import rate, short
from faultline.explain.sparkline import curve
from faultline.store.reads import incidents, overview, views
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import show
from faultline.web.pages.verdict import last_verdict
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi.responses import HTMLResponse

    from faultline.store.reads.overview import Minute, QueueLine

router = APIRouter()
_MINUTES = 60
_MINUTES_MIN = 15
_MOMENT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sums:
    """All queues together."""

    due: int
    delayed: int
    running: int
    oldest_seconds: float | None
    per_second: float
    growth_per_second: float | None
    #: All queues were counted at least once.
    counted: bool

    @property
    def keeps_up(self) -> bool:
        """No more jobs wait than arrive in a moment."""
        return self.due <= _MOMENT_SECONDS * self.per_second

    @property
    def is_stalled(self) -> bool:
        """Jobs wait, and none is completed."""
        return self.due > 0 and self.per_second == 0

    @property
    def drain_seconds(self) -> float | None:
        if self.keeps_up:
            return self.due / self.per_second if self.due else 0.0
        growth = self.growth_per_second
        return self.due / -growth if growth is not None and growth < 0 else None


def sums(lines: Sequence[QueueLine]) -> Sums:
    oldest = [line.oldest_due_seconds for line in lines if line.oldest_due_seconds is not None and line.due]
    growths = [line.growth_per_second for line in lines if line.growth_per_second is not None]
    return Sums(
        due=sum(line.due for line in lines),
        delayed=sum(line.delayed for line in lines),
        running=sum(line.running for line in lines),
        oldest_seconds=max(oldest, default=None),
        per_second=sum(line.succeeded_per_second for line in lines),
        growth_per_second=sum(growths) if growths else None,
        counted=all(line.sampled_at for line in lines),
    )


@router.get("/")
async def overview_page(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    read = service_of(request).read_for(caller)
    only = caller.only_queues
    lines, trends, now = await asyncio.gather(
        read.run(overview.queues()),
        # A key that is restricted to queues sees their sum.
        asyncio.gather(*(read.run(overview.trend(_MINUTES, queue)) for queue in ([None] if only is None else only))),
        read.run(views.clock()),
    )
    lines = [line for line in lines if caller.may_touch(line.name)]
    hour = [_summed(minutes) for minutes in zip(*trends, strict=True)]
    trend = _known(hour)
    return show(
        request,
        caller,
        "overview",
        now=now,
        verdict=last_verdict(request).look(),
        lines=lines,
        sums=sums(lines),
        trend=trend,
        hour=_summed(hour),
        throughput=_throughput(trend),
        backlog=_backlog(trend),
        # These journal entries have no queue.
        incidents=await read.run(incidents.incidents()) if only is None else [],
        refused=await read.run(incidents.refused_lately()) if only is None else None,
    )


def _summed(minutes: Sequence[Minute]) -> Minute:
    """The same minute of several queues, or several minutes."""
    due = [minute.due for minute in minutes if minute.due is not None]
    counts = {name: sum(getattr(minute, name) for minute in minutes) for name in COUNTS}
    return overview.Minute(minute=minutes[0].minute, due=sum(due) if due else None, **counts)


def _known(hour: Sequence[Minute]) -> Sequence[Minute]:
    """From the first recorded minute: a new database should not show an empty hour."""
    first = next((number for number, minute in enumerate(hour) if minute.due is not None or minute.started), len(hour))
    return hour[min(first, len(hour) - _MINUTES_MIN) :]


def _throughput(trend: Sequence[Minute]) -> object:
    # The last minute is not over.
    rates = [minute.succeeded / 60 for minute in trend[:-1]]
    return curve(rates, tall=True, description=f"Jobs completed per second, recently: at most {rate(max(rates))}.")


def _backlog(trend: Sequence[Minute]) -> object:
    depths = [None if minute.due is None else float(minute.due) for minute in trend]
    most = max((depth for depth in depths if depth is not None), default=0.0)
    return curve(depths, tall=True, description=f"Jobs waiting, recently: at most {short(most)}.")
