"""The router of the API, mounted at /api/v1. Not in the package itself: who imports a shape needs no routes."""

from __future__ import annotations

from fastapi import APIRouter

from faultline.web.api import events, flows, jobs, limits, operate, queues, schedules, streams, submit
from faultline.web.api.routes import REFUSALS

router = APIRouter(prefix="/api/v1", responses=REFUSALS)
for part in (submit, operate, limits, flows, streams, jobs, queues, schedules, events):
    router.include_router(part.router)
