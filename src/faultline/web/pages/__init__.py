"""The dashboard: pages made on the server. `router` is mounted at `/`, the files of `web/static` at `/static`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from faultline.web.problems import Problem

router = APIRouter(include_in_schema=False)


def show_problem(request: Request, problem: Problem) -> Response:  # noqa: ARG001
    """What a person sees of a refusal. (Programs, under /api, get problem+json.)"""
    return PlainTextResponse(f"{problem.title}: {problem.detail}\n{problem.next_step}\n", problem.status, problem.headers)
