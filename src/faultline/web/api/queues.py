"""Queues, workers and invariants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from faultline.store.reads import overview
from faultline.web.api.shapes import Queues, Verdict, Workers
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller, seen_by
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

router = APIRouter()

Reader = Annotated[Caller, Depends(needs("read"))]


@router.get("/queues", tags=["queues"], summary="List queues, with depths and rates")
async def queues(request: Request, caller: Reader) -> Queues:
    lines = await service_of(request).read_for(caller).run(overview.queues())
    return Queues(queues=[line for line in lines if caller.may_touch(line.name)])


@router.get("/workers", tags=["workers"], summary="List workers, with heartbeats and leases")
async def workers(request: Request, caller: Reader) -> Workers:
    """A key that is restricted to queues sees the workers that serve them, and of each worker only these queues."""
    lines = await service_of(request).read_for(caller).run(overview.workers())
    return Workers(workers=[*seen_by(caller, lines)])


@router.get("/invariants", tags=["watch"], summary="Check the invariants")
async def invariants(request: Request, caller: Reader) -> Verdict:
    """Checked at most every 30 seconds, since it reads every job; `checked_at` is the time of the check."""
    if caller.queues is not None:
        raise Problem(
            403,
            "Forbidden",
            "This key is restricted to queues; this concerns all queues.",
            next_step="Use a key for all queues.",
        )
    return await service_of(request).verdicts.latest()
