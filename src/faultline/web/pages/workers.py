"""The workers: are they alive, what do they hold, and does their clock agree with the database's?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline.store.reads import overview, views
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller, seen_by
from faultline.web.pages.page_frame import show
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse

router = APIRouter()
#: A larger difference between clocks is shown, although no decision depends on it.
SKEW_SECONDS = 1.0


@router.get("/workers")
async def workers_page(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    read = service_of(request).read_for(caller)
    workers, now = await asyncio.gather(read.run(overview.workers()), read.run(views.clock()))
    return show(request, caller, "workers", workers=seen_by(caller, workers), now=now, skew_seconds=SKEW_SECONDS)
