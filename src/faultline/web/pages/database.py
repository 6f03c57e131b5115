"""The database behind the queues: what grows, what blocks vacuum, and how much is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline.store.reads.health import Health, health, wal_bytes_per_second
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import show
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse

router = APIRouter()
#: An older snapshot keeps vacuum from cleaning the index that claims use.
OLD_SECONDS = 300.0
DEAD_SHARE = 0.5
_LOOKS_KEPT = 20
_RATE_OVER_SECONDS = 30.0


@router.get("/database")
async def database_page(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    if caller.queues is not None:
        raise Problem(
            403,
            "Forbidden",
            "This key is restricted to queues; this page concerns all of them.",
            next_step="Use a key for all queues.",
        )
    found = await service_of(request).read_for(caller).run(health())
    rate = wal_bytes_per_second(_earlier(request, found), found)
    return show(
        request,
        caller,
        "database",
        health=found,
        wal_rate=rate,
        old_seconds=OLD_SECONDS,
        dead_share=DEAD_SHARE,
        now=found.at,
    )


def _earlier(request: Request, found: Health) -> Health | None:
    """A reading from about half a minute ago, or the last one."""
    looks: list[Health] = getattr(request.app.state, "health_looks", [])
    recent = [look for look in looks if (found.at - look.at).total_seconds() <= _RATE_OVER_SECONDS]
    request.app.state.health_looks = [*looks, found][-_LOOKS_KEPT:]
    return recent[0] if recent else (looks[-1] if looks else None)
