"""One job: who held it under which token, how that ended, and what was refused. Cancel, retry and fork."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from markupsafe import Markup

from faultline import operate
from faultline.core.journal import JournalEvent, kind_of
from faultline.core.model import JobState
from faultline.explain import attempt_timeline
from faultline.explain.epochs import epochs as epochs_of
from faultline.explain.epochs import program_changed
from faultline.explain.limits import standing
from faultline.explain.why_not_running import awaited
from faultline.store.reads import groups, overview, views
from faultline.store.reads.flows import flow_names
from faultline.web.api.visible_flow import flow_of
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.pages import flow as flow_part
from faultline.web.pages import story
from faultline.web.pages.page_frame import HERE, go, show
from faultline.web.pages.queue import address
from faultline.web.server.forms import form_of
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from fastapi.responses import HTMLResponse, RedirectResponse

    from faultline.core.model import JobRecord, Json

router = APIRouter()
#: Longer values are cut.
TEXT_MAX = 20_000


@router.get("/jobs/{job_id}")
async def job_page(request: Request, job_id: str, caller: Annotated[Caller, Depends(needs("read"))]) -> HTMLResponse:
    found = await find(request, job_id, caller)
    read = service_of(request).read_for(caller)
    journal, steps, now = await asyncio.gather(
        read.run(views.journal(found.id)), read.run(views.steps(found.id)), read.run(views.clock())
    )
    permit = None if found.state.ended else await read.run(groups.permit(found.id))
    workers = await read.run(overview.workers()) if found.state is JobState.QUEUED else []
    flow = None if found.flow_id is None else await flow_of(found, read, caller)
    life = epochs_of(found, journal)
    sentences = story.sentences(found, life, now, flow_part.awaited(found, flow), program_changed(found, journal))
    waits, signals = flow_part.waits_of(found, flow, now), flow_part.signals_of(found, flow)
    return show(
        request,
        caller,
        "job",
        job=found,
        permit=standing(found, permit, now),
        claimants=awaited(found, permit, workers, now),
        queue_address=address(found.queue),
        title=title(found),
        now=now,
        epochs=life,
        names=attempt_timeline.letters(life),
        worker_of=attempt_timeline.worker_of,
        story=sentences,
        picture=attempt_timeline.draw(
            found,
            life,
            now=now,
            description=Markup(" ").join(sentences).striptags(),
            waits=waits,
            signals=signals,
        )
        if life or waits
        else None,
        legend=attempt_timeline.legend(life, waits, signals),
        lanes_max=attempt_timeline.LANES_MAX,
        others=[
            entry
            for entry in journal
            if entry.event == JournalEvent.PROGRAM_CHANGED or ((kind := kind_of(entry.event)) and kind.operated)
        ],
        steps=steps,
        percent=percent(found.progress),
        can_cancel=caller.may("operate") and found.state in (JobState.QUEUED, JobState.RUNNING),
        can_retry=caller.may("operate") and found.state in (JobState.FAILED, JobState.CANCELLED),
        text_max=TEXT_MAX,
        **flow_part.facts(found, flow, now, may_operate=caller.may("operate")),
    )


@router.post("/jobs/{job_id}/cancel")
async def cancel(request: Request, job_id: str, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    found = await find(request, job_id, caller)
    reason = (await form_of(request)).why("reason")
    doing = operate.cancel(found.id, reason=reason, by=caller.signed(HERE), only_queues=caller.only_queues)
    await service_of(request).operate.run(doing)
    return go(f"/jobs/{found.id}", said="cancelled")


@router.post("/jobs/{job_id}/retry")
async def retry(request: Request, job_id: str, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    found = await find(request, job_id, caller)
    reason = (await form_of(request)).words("reason")
    doing = operate.retry(found.id, reason=reason, by=caller.signed(HERE), only_queues=caller.only_queues)
    await service_of(request).operate.run(doing)
    return go(f"/jobs/{found.id}", said="retried")


@router.post("/jobs/{job_id}/undo")
async def undo(request: Request, job_id: str, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    found = await find(request, job_id, caller)
    reason = (await form_of(request)).words("reason")
    doing = operate.undo(found.id, reason=reason, by=caller.signed(HERE), only_queues=caller.only_queues)
    await service_of(request).operate.run(doing)
    return go(f"/jobs/{found.id}", said="undoing")


@router.post("/jobs/{job_id}/fork")
async def fork(request: Request, job_id: str, caller: Annotated[Caller, Depends(needs("operate"))]) -> RedirectResponse:
    found = await find(request, job_id, caller)
    form = await form_of(request)
    doing = operate.fork(
        found.id,
        form.one("before"),
        reason=form.words("reason"),
        by=caller.signed(HERE),
        only_queues=caller.only_queues,
    )
    forked = await service_of(request).operate.run(doing)
    return go(f"/jobs/{forked}", said="forked")


async def find(request: Request, job_id: str, caller: Caller) -> JobRecord:
    """The job, if this caller may see it."""
    try:
        found = await service_of(request).read_for(caller).run(views.job(UUID(job_id)))
    except ValueError:
        found = None
    if found is None or not caller.may_touch(found.queue):
        raise Problem(404, "JobNotFound", f"No job {job_id[:60]}.", next_step="Search the list of jobs.")
    return found


def title(job: JobRecord) -> str:
    """What people call the job: its task; of the root of a graph the name of that."""
    return flow_names(job)[0] or job.task


def percent(progress: Json) -> float | None:
    """How far a job is, if its progress says so: a fraction up to 1, a percentage, or a count and a total.

    Both `{"page": 3, "of": 12}` and `{"done": 3, "total": 12}` work: the count may have any name.
    """
    match progress:
        case {"done": (int() | float()) as done, "total": (int() | float()) as total} if total > 0:
            share = done / total
        case {"total": (int() | float()) as total} | {"of": (int() | float()) as total} if total > 0:
            others = [value for name, value in progress.items() if name not in ("total", "of")]
            numbers = [value for value in others if isinstance(value, int | float) and not isinstance(value, bool)]
            if len(numbers) != 1:
                return None
            share = numbers[0] / total
        case {"percent": (int() | float()) as percentage}:
            share = percentage / 100
        case bool():
            return None
        case int() | float():
            share = progress if progress <= 1 else progress / 100
        case _:
            return None
    return max(0.0, min(share, 1.0)) * 100
