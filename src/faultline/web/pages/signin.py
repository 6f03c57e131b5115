"""Signing in by pasting an API key, and signing out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request

from faultline.web.auth.access import needs, sign_in, sign_out
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import go, own_path, show
from faultline.web.server.forms import form_of
from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from fastapi.responses import Response

router = APIRouter()
_UNAUTHORIZED = 401


@router.get("/sign-in")
async def sign_in_page(request: Request) -> Response:
    return show(request, None, "signin", next=own_path(request.query_params.get("next", "/")), refused=None)


@router.post("/sign-in")
async def sign_in_by_key(request: Request) -> Response:
    form = await form_of(request)
    wanted = own_path(form.one("next") or "/")
    answer = go(wanted)
    try:
        await sign_in(request, answer, form.one("key") or "")
    except Problem as problem:
        if problem.status != _UNAUTHORIZED:
            raise
        return show(request, None, "signin", status=_UNAUTHORIZED, next=wanted, refused=problem.detail)
    return answer


@router.post("/sign-out")
async def sign_out_again(request: Request, _: Annotated[Caller, Depends(needs(None))]) -> Response:
    answer = go("/sign-in")
    sign_out(request, answer)
    return answer
