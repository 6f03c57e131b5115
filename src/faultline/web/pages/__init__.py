"""The dashboard: pages rendered on the server. `router` is mounted at `/`, the files of `web/static` at `/static`.

Pages only read. Their forms use the same verbs, roles and scopes as the API. A GET changes nothing.
"""

from __future__ import annotations

from fastapi import APIRouter

from faultline.web.pages import (
    budgets,
    cancelling,
    database,
    failures,
    job,
    jobs,
    overview,
    queue,
    queues,
    schedules,
    signin,
    waiting,
    workers,
)
from faultline.web.pages.page_frame import load, show_problem

__all__ = ["PAGES", "load", "router", "show_problem"]

#: Every page, with its forms.
PAGES = (
    overview, jobs, cancelling, job, waiting, schedules, queues, queue, budgets, workers, failures, database, signin
)  # fmt: skip
router = APIRouter(include_in_schema=False)
for page in PAGES:
    router.include_router(page.router)
