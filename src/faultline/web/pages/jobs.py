"""The list of jobs: filters, a page at a time, and what can be done with the ticked ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Depends, Request

from faultline import operate
from faultline.core.errors import IllegalTransition, JobNotFound
from faultline.core.ids import PREFIX_DIGITS_MIN, id_range
from faultline.core.model import JobState
from faultline.store.reads import listing, overview, views
from faultline.web.api import cursors
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages.page_frame import HERE, go, show
from faultline.web.server.forms import form_of
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from fastapi.responses import Response

    from faultline.web.auth.connection_share import Share

router = APIRouter()
_PAGE_JOBS = 50
_TICKED_MAX = 200
_SPANS = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
SPAN_NAMES = {"15m": "last 15 minutes", "1h": "last hour", "24h": "last day", "7d": "last week"}


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of the form. Invalid values are ignored."""

    queue: str = ""
    task: str = ""
    state: str = ""
    span: str = ""
    key: str = ""
    group: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        words = {name: query.get(name, "").replace("\x00", "").strip()[:500] for name in cls.__slots__}
        words["state"] = words["state"] if words["state"] in set(JobState) else ""
        words["span"] = words["span"] if words["span"] in _SPANS else ""
        return cls(**words)

    def wanted(self, caller: Caller, now: datetime) -> listing.Wanted:
        return listing.Wanted(
            state=JobState(self.state) if self.state else None,
            queue=self.queue or None,
            task=self.task or None,
            created_after=now - _SPANS[self.span] if self.span else None,
            key=self.key or None,
            group=self.group or None,
            only_queues=caller.only_queues,
        )

    @property
    def cancels(self) -> bool:
        """Whether all jobs that match can be cancelled together: by these filters, some of which must be given."""
        given = self.queue or self.task or self.group or self.state
        return bool(given) and not self.span and not self.key and self.state in {"", "queued", "running"}

    @property
    def query(self) -> dict[str, str]:
        return {name: value for name in self.__slots__ if (value := getattr(self, name))}


@router.get("/jobs")
async def jobs_page(request: Request, caller: Annotated[Caller, Depends(needs("read"))]) -> Response:
    filters = Filters.of(request.query_params)
    job_id = _as_id(filters.key)
    read = service_of(request).read_for(caller)
    if job_id is not None:
        found = await read.run(views.job(job_id))
        if found is not None and caller.may_touch(found.queue):
            return go(f"/jobs/{job_id}")
    now, queues = await asyncio.gather(read.run(views.clock()), read.run(overview.queues()))
    wanted = filters.wanted(caller, now)
    order = listing.order_of(wanted)
    cursor = request.query_params.get("behind")
    behind = cursors.decode(cursor, order.name, order.types) if cursor else None
    page = await read.run(listing.jobs(wanted, page_jobs=_PAGE_JOBS, behind=behind))
    if not page.jobs and (named := await _begins_with(filters.key, read, caller)) is not None:
        return go(f"/jobs/{named}")
    older = filters.query | {"behind": cursors.encode(order.name, page.behind)} if page.behind else None
    return show(
        request,
        caller,
        "jobs",
        now=now,
        page=page,
        filters=filters,
        first="/jobs?" + urlencode(filters.query),
        older="/jobs?" + urlencode(older) if older else None,
        behind=bool(cursor),
        order=order.name,
        window=listing.WINDOW,
        states=list(JobState),
        spans=SPAN_NAMES,
        queues=[line.name for line in queues if caller.may_touch(line.name)],
    )


@router.post("/jobs/ticked")
async def ticked(request: Request, caller: Annotated[Caller, Depends(needs("operate"))]) -> Response:
    """Cancel or retry each ticked job separately, and count those that cannot be."""
    form = await form_of(request)
    ids = [job_id for text in form.all("id")[:_TICKED_MAX] if (job_id := _as_id(text)) is not None]
    is_retry = form.one("do") == "retry"
    verb, reason = (operate.retry, form.words("reason")) if is_retry else (operate.cancel, form.why("reason"))
    done = 0
    for job_id in ids:
        try:
            doing = verb(job_id, reason=reason, by=caller.signed(HERE), only_queues=caller.only_queues)
            await service_of(request).operate.run(doing)
            done += 1
        except (IllegalTransition, JobNotFound):
            continue  # Its state has changed since the list was shown.
    said = "bulk_nothing" if not ids else "bulk_retried" if is_retry else "bulk_cancelled"
    filters = Filters.of({name: form.one(f"filter_{name}") or "" for name in Filters.__slots__})
    return go("/jobs", said=said, n=done, **filters.query)


async def _begins_with(text: str, read: Share, caller: Caller) -> UUID | None:
    """The one job whose id begins so. Not for keys of some queues: jobs of other queues must make no difference."""
    wanted = id_range(text) if len(text) >= PREFIX_DIGITS_MIN else None
    if wanted is None or caller.only_queues is not None:
        return None
    found = await read.run(views.ids_between(*wanted, ids_max=2))
    return found[0] if len(found) == 1 else None


def _as_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
