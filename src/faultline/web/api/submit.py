"""Enqueue jobs. A request sent again with the same Idempotency-Key and body creates no second job.

The key is stored with the id of the API key, so that callers do not share keys, and with a digest of the whole request. One
statement takes the key, compares the digest and creates the jobs: so requests that arrive together create them once, and a
process that dies in between creates all or none.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response

from faultline.core.errors import KeyConflict
from faultline.core.model import Submission
from faultline.store import jsontext, verbs
from faultline.web.api.routes import CheckedRoute
from faultline.web.api.shapes import EnqueuedJob, EnqueuedJobs, NewJob, NewJobs
from faultline.web.auth.access import needs
from faultline.web.auth.caller import Caller
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Sequence

router = APIRouter(tags=["jobs"], route_class=CheckedRoute)

Submitter = Annotated[Caller, Depends(needs("enqueue"))]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="A request sent again with the same key and body gets the same answer, and enqueues nothing new.",
    ),
]


@router.post("/jobs", status_code=201, summary="Enqueue a job")
async def submit(
    request: Request, response: Response, job: NewJob, caller: Submitter, idempotency_key: IdempotencyKey = None
) -> EnqueuedJob:
    (enqueued,) = await _submit(request, response, caller, [job], idempotency_key)
    response.headers["Location"] = f"/api/v1/jobs/{enqueued.id}"
    return enqueued


@router.post("/jobs/batch", status_code=201, summary="Enqueue jobs, all or none")
async def submit_many(
    request: Request, response: Response, body: NewJobs, caller: Submitter, idempotency_key: IdempotencyKey = None
) -> EnqueuedJobs:
    return EnqueuedJobs(jobs=await _submit(request, response, caller, body.jobs, idempotency_key))


async def _submit(
    request: Request, response: Response, caller: Caller, jobs: Sequence[NewJob], key: str | None
) -> list[EnqueuedJob]:
    for job in jobs:
        if not caller.may_touch(job.queue):
            raise Problem(
                403,
                "QueueForbidden",
                f"This key may not enqueue into the queue {job.queue!r}.",
                next_step="Use one of the key's queues.",
            )
    service = service_of(request)
    submissions = [_submission(position, len(jobs), job) for position, job in enumerate(jobs, start=1)]
    if key is None:
        statement = verbs.enqueue_many(submissions, await service.ids())
    else:
        statement = verbs.enqueue_many(_once(submissions, jobs, f"http:{caller.id}:{key}"))
    try:
        enqueued = await service.enqueue.run(statement)
    except KeyConflict as conflict:
        raise KeyConflict("this Idempotency-Key was used with another body") from conflict
    service.numbers.enqueued(job.queue for job, one in zip(jobs, enqueued, strict=True) if one.created)
    if not all(one.created for one in enqueued):
        response.headers["Idempotency-Replayed"] = "true"
    return [EnqueuedJob(id=one.job_id) for one in enqueued]


def _once(submissions: Sequence[Submission], jobs: Sequence[NewJob], key: str) -> list[Submission]:
    """The jobs with their key and a digest of every field of every job, whatever the order of the fields."""
    text = jsontext.encode([given_fields(job) for job in jobs], "submission")
    digest = hashlib.sha256(text.encode()).hexdigest()
    # A header cannot contain a space, so no other key equals one of these.
    return [
        replace(job, idempotency_key=f"{key} {position}" if position else key, digest=digest)
        for position, job in enumerate(submissions)
    ]


def given_fields(job: NewJob) -> dict[str, Any]:
    """Without what is null: so a field that a later release adds changes no digest."""
    return {name: value for name, value in job.model_dump(mode="json").items() if value is not None}


def _submission(position: int, positions: int, job: NewJob) -> Submission:
    what = "args" if positions == 1 else f"args of job {position} of {positions}"
    given = {name: getattr(job, name) for name in NewJob.model_fields}
    unique = None if job.unique is None else job.unique.model_dump(by_alias=True, exclude_unset=True)
    return Submission(**given | {"args": jsontext.encode_args(job.args, what), "unique": unique})
