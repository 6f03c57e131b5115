"""For whoever starts and watches the process. `/health`: it runs. `/ready`: it can do its work, or the reasons why not."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["watch"])


@router.get("/health")
async def health() -> dict[str, str]:
    return {"status": "up"}
