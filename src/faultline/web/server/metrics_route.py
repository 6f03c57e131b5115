"""`/metrics`, for Prometheus. It shows every queue, so it needs a key that may read all of them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from faultline.integrations.prometheus import CONTENT_TYPE
from faultline.web.api.routes import REFUSALS
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

router = APIRouter(tags=["watch"])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **REFUSALS},
)
async def metrics(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> Response:
    if caller.queues is not None:
        raise Problem(
            403,
            "QueueForbidden",
            "This key is restricted to queues; metrics concern all queues.",
            next_step="Use a key for all queues; `faultline api-keys create prometheus --scope read` creates one.",
        )
    return Response(await asyncio.to_thread(service_of(request).numbers.render), media_type=CONTENT_TYPE)
