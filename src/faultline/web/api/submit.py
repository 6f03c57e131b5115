"""Submit jobs. Sent again with the same Idempotency-Key and the same body, a submission makes no second job.

The key is kept under the name of the API key that sent it, so two callers never meet in one. A new job's id carries a digest
of the submission in its random bits: found again under its key, it tells whether it came from the same body, down to the
last option, with nothing to store.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response

from faultline.core import model as core
from faultline.core.errors import KeyConflict
from faultline.core.model import Submission
from faultline.store import jsontext, queue
from faultline.web.access import Caller, needs
from faultline.web.problems import Problem
from faultline.web.routes import CheckedRoute
from faultline.web.service import service_of
from faultline.web.shapes import NewJob, NewJobs, Placed, PlacedJobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.ids import Ids
    from faultline.store.queue import Rows, Statement

router = APIRouter(tags=["jobs"], route_class=CheckedRoute)

Submitter = Annotated[Caller, Depends(needs("enqueue"))]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Send a submission again with the same key and body, and it is answered as the first time.",
    ),
]
_DIGEST_MASK = 2**62 - 1


@router.post("/jobs", status_code=201, summary="Submit a job")
async def submit(
    request: Request, response: Response, job: NewJob, caller: Submitter, idempotency_key: IdempotencyKey = None
) -> Placed:
    (placed,) = await _submit(request, response, caller, [job], idempotency_key)
    response.headers["Location"] = f"/api/v1/jobs/{placed.id}"
    return placed


@router.post("/jobs/batch", status_code=201, summary="Submit jobs, all or none")
async def submit_many(
    request: Request, response: Response, body: NewJobs, caller: Submitter, idempotency_key: IdempotencyKey = None
) -> PlacedJobs:
    return PlacedJobs(jobs=await _submit(request, response, caller, body.jobs, idempotency_key))


async def _submit(
    request: Request, response: Response, caller: Caller, jobs: Sequence[NewJob], key: str | None
) -> list[Placed]:
    for job in jobs:
        if not caller.may_touch(job.queue):
            raise Problem(
                403,
                "QueueForbidden",
                f"This key may not submit to the queue {job.queue!r}.",
                next_step="Name one of the key's own queues.",
            )
    service = service_of(request)
    submissions = [_submission(place, len(jobs), job) for place, job in enumerate(jobs, start=1)]
    ids = await service.ids()
    statement = (
        queue.enqueue_many(submissions, ids) if key is None else _once(submissions, jobs, f"http:{caller.id}:{key}", ids)
    )
    placed = await service.enqueue.run(statement)
    service.numbers.enqueued.update(job.queue for job, one in zip(jobs, placed, strict=True) if one.created)
    if not all(one.created for one in placed):
        response.headers["Idempotency-Replayed"] = "true"
    return [Placed(id=one.job_id) for one in placed]


def _once(submissions: Sequence[Submission], jobs: Sequence[NewJob], key: str, ids: Ids) -> Statement[list[core.Placed]]:
    """Under a key. An answer that names the job of another body is refused, and takes nothing with it."""
    digests = _digests(key, jobs)
    statement = queue.enqueue_many(
        [
            # No header can hold a space, so no other key is taken for a place of this one.
            replace(job, idempotency_key=f"{key} {place}" if place else key, id=_id_with(digests[place], ids))
            for place, job in enumerate(submissions)
        ]
    )

    def judge(rows: Rows) -> list[core.Placed]:
        placed = statement.read(rows)
        if any((one.job_id.int ^ digest) & _DIGEST_MASK for one, digest in zip(placed, digests, strict=True)):
            raise KeyConflict("this Idempotency-Key was used for a submission with another body")
        return placed

    return replace(statement, read=judge, judged=True)


def _submission(place: int, places: int, job: NewJob) -> Submission:
    what = "args" if places == 1 else f"args of job {place} of {places}"
    return Submission(
        task=job.task,
        args=jsontext.encode(job.args, what),
        queue=job.queue,
        priority=job.priority,
        delay_seconds=job.delay_seconds,
        run_at=job.run_at,
        max_attempts=job.max_attempts,
        lease_seconds=job.lease_seconds,
        keep_args=job.keep_args,
    )


def _digests(key: str, jobs: Sequence[NewJob]) -> list[int]:
    """For every job 62 bits of the whole submission and its place in it, whatever the order of the fields was."""
    text = jsontext.encode([key, *(job.model_dump(mode="json") for job in jobs)], "submission")
    whole = hashlib.sha256(text.encode()).digest()
    places = (hashlib.sha256(whole + place.to_bytes(4, "big")).digest() for place in range(len(jobs)))
    return [int.from_bytes(digest[:8], "big") & _DIGEST_MASK for digest in places]


def _id_with(digest: int, ids: Ids) -> UUID:
    """A new id that holds the digest where others hold a counter and random bits."""
    return UUID(int=(ids.new_number() & ~_DIGEST_MASK) | digest)
