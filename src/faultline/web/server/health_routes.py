"""For orchestrators. `/health`: the process runs. `/ready`: it can do its work, or the reasons why not.

Both answer without a key, and show nothing else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from faultline.web.api.routes import REFUSALS
from faultline.web.api.shapes import Health, Readiness
from faultline.web.server.service import service_of

router = APIRouter(tags=["watch"])


@router.get("/health", summary="Whether the process is running")
async def health() -> Health:
    return Health(status="up")


@router.get(
    "/ready",
    summary="Whether the server is ready",
    responses={422: REFUSALS[422], 503: {"model": Readiness, "description": "It is not ready; `reasons` says why."}},
)
async def ready(
    request: Request,
    response: Response,
    workers: Annotated[Literal["0", "1"], Query(description="1: at least one worker must be alive as well.")] = "0",
) -> Readiness:
    """Ready when the database can be reached, has a matching schema and accepts writes; with `workers=1` also a worker."""
    _, fault, alive, read_only = await service_of(request).readiness.latest()
    reasons = [] if fault is None else [f"{fault.code}: {fault.detail}"]
    if read_only:
        reasons.append("DatabaseReadOnly: the database does not accept writes; reading works.")
    if workers == "1" and alive == 0:
        reasons.append("NoWorkers: no worker is alive.")
    if reasons:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return Readiness(ready=not reasons, reasons=reasons, workers_alive=alive)
