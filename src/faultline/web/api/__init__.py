"""The HTTP API, for programs: `router`, mounted at /api/v1."""

from __future__ import annotations

from fastapi import APIRouter

from faultline.web.api import events, flows, jobs, operate, queues, streams, submit
from faultline.web.routes import REFUSALS

router = APIRouter(prefix="/api/v1", responses=REFUSALS)
for part in (submit, operate, flows, streams, jobs, queues, events):
    router.include_router(part.router)
