"""One queue: what it and its groups may do, what they do now, and forms to set and reset limits, with who and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.core.bounds import GROUP_LENGTH_MAX, QUEUE_LENGTH_MAX
from faultline.core.limits import EACH_GROUP, WHOLE_QUEUE
from faultline.explain import limits as words
from faultline.store.reads import groups as reads
from faultline.store.reads import limits as stored
from faultline.store.reads import overview, views
from faultline.web.api import cursors
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import HERE, go, show
from faultline.web.server.forms import form_of, refused_form
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse, RedirectResponse

    from faultline.web.server.forms import Form

router = APIRouter()
_PAGE_GROUPS = 50
_NUMBERS = ("concurrency", "rate", "per", "burst", "weight")
_NONE = "none"


@router.get("/queues/{queue_name:path}")
async def queue_page(request: Request, queue_name: str, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    name = _queue(queue_name.replace("\x00", ""), caller)
    cursor = request.query_params.get("after")
    behind = cursors.decode(cursor, "group", reads.CURSOR_TYPES) if cursor else None
    read = service_of(request).read_for(caller)
    uses, limits, page, lines, now = await asyncio.gather(
        read.run(reads.in_use(name)),
        read.run(stored.limits(name)),
        read.run(reads.groups(name, page_rows=_PAGE_GROUPS, behind=behind)),
        read.run(overview.queues()),
        read.run(views.clock()),
    )
    more = None if page.behind is None else address(name, after=cursors.encode("group", page.behind))
    return show(
        request,
        caller,
        "queue",
        name=name,
        address=address(name),
        use=uses[0] if uses else None,
        line=next((line for line in lines if line.name == name), None),
        limits=limits,
        page=page,
        more=more,
        behind=bool(cursor),
        window=reads.WINDOW,
        now=now,
        said_of=words.said,
        in_force=words.in_force,
        whose=words.whose,
        group_length_max=GROUP_LENGTH_MAX,
    )


@router.post("/queues/limits/set")
async def set_limit(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    form = await form_of(request)
    name = _queue(form.one("queue"), caller)
    with refused_form("LimitRefused"):
        doing = operate.set_limit(name, _group(form), _fields(form), reason=form.words("reason"), by=caller.signed(HERE))
        await service_of(request).operate.run(doing)
    return go(address(name), said="limit_set")


@router.post("/queues/limits/reset")
async def reset_limit(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    form = await form_of(request)
    name = _queue(form.one("queue"), caller)
    doing = operate.reset_limit(name, _group(form), reason=form.words("reason"), by=caller.signed(HERE))
    await service_of(request).operate.run(doing)
    return go(address(name), said="limit_reset")


def address(queue: str, **query: str) -> str:
    """The page of a queue. Its name may contain anything that can be seen."""
    return f"/queues/{quote(queue, safe='')}" + (f"?{urlencode(query)}" if query else "")


def _group(form: Form) -> str:
    return {"queue": WHOLE_QUEUE, "each": EACH_GROUP}.get(form.one("of") or "", form.one("group") or WHOLE_QUEUE)


def _fields(form: Form) -> dict[str, Any]:
    """What was typed; what was left empty stays as it is."""
    found: dict[str, Any] = {}
    for name in _NUMBERS:
        text = form.one(name)
        if text is not None:
            found[name] = None if text == _NONE else form.number(name)
    order = form.one("ordered")
    if order in ("yes", "no"):
        found["ordered"] = order == "yes"
    return found


def _queue(name: str | None, caller: Caller) -> str:
    if not name or len(name) > QUEUE_LENGTH_MAX or not name.isprintable() or not caller.may_touch(name):
        raise Problem(404, "QueueNotFound", "No such queue.", next_step="See the list of queues.")
    return name
