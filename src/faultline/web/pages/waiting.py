"""What waits: an inbox of the signals that jobs wait for, each with a form to send it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.core.errors import UnreadableJson
from faultline.explain import tree
from faultline.store import jsontext
from faultline.store.reads import suspended, views
from faultline.web.api import cursors
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.job import find
from faultline.web.pages.page_frame import HERE, go, own_path, show
from faultline.web.server.forms import form_of
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse, RedirectResponse

    from faultline.core.model import Json
    from faultline.web.server.forms import Form

router = APIRouter()
_PAGE_ROWS = 50
_ALL = "all"


@router.get("/waiting")
async def waiting_page(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    read = service_of(request).read_for(caller)
    query = request.query_params
    name = query.get("name", "").replace("\x00", "").strip()[:200] or None
    asked = query.get("kind", "")
    kind = "signal" if name is not None or asked not in (*suspended.KINDS, _ALL) else None if asked == _ALL else asked
    order = suspended.order_of(kind)
    cursor = query.get("behind")
    behind = cursors.decode(cursor, order.name, order.types) if cursor else None
    listed = suspended.waiting(kind=kind, name=name, only_queues=caller.only_queues, page_rows=_PAGE_ROWS, behind=behind)
    page, now = await asyncio.gather(read.run(listed), read.run(views.clock()))
    filters = {"kind": kind or _ALL} | ({"name": name} if name else {})
    more = filters | {"behind": cursors.encode(order.name, page.behind)} if page.behind else None
    return show(
        request,
        caller,
        "waiting",
        now=now,
        page=page,
        kind=kind or _ALL,
        kinds={_ALL: "everything", **{one: tree.KINDS[one] for one in suspended.KINDS}},
        name=name or "",
        limit=tree.limit,
        waits_for=tree.waits_for,
        first="/waiting?" + urlencode(filters),
        more="/waiting?" + urlencode(more) if more else None,
        behind=bool(cursor),
    )


@router.post("/jobs/{job_id}/signals")
async def signal(request: Request, job_id: str, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    """Sent from a wait, it answers that wait only: a late answer must not answer the next question."""
    form = await form_of(request)
    found = await find(request, job_id, caller)
    doing = operate.signal(
        found.id,
        form.one("name") or "",
        _payload(form),
        key=form.one("key"),
        for_call=form.one("for_call"),
        by=caller.signed(HERE),
        only_queues=caller.only_queues,
    )
    await service_of(request).operate.run(doing)
    back = own_path(form.one("back") or f"/jobs/{found.id}")
    return go(back.partition("?")[0], said="signalled")


def _payload(form: Form) -> Json:
    """The typed JSON. An empty field is no answer: a program that expects one would fail on null."""
    text = (form.one("payload") or "").strip()
    if not text:
        raise Problem(
            422,
            "InvalidPayload",
            "The payload is empty; nothing was sent.",
            next_step='Go back and write JSON, such as {"ok": true}; to send nothing, write null.',
        )
    try:
        return jsontext.decode(text)
    except UnreadableJson as error:
        raise Problem(
            422,
            "InvalidPayload",
            "The payload is not JSON; nothing was sent.",
            next_step='Go back and write JSON, such as {"ok": true}, or "text" in quotation marks.',
        ) from error
