"""Enqueue jobs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.model import Placed
from faultline.store import jsontext
from faultline.store.rows import RowOf, values
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.ids import Ids
    from faultline.core.model import Submission
    from faultline.store.statement import Rows


_PLACED = RowOf(Placed)


def enqueue_many(
    submissions: Sequence[Submission], ids: Ids | None = None, *, appears_late: bool = False
) -> Statement[list[Placed]]:
    """Put jobs into queues, all or none. With `ids`, jobs without one get theirs here, and the statement is repeatable.

    `appears_late`: the transaction is a larger one and commits some time after this statement.
    """
    if ids is not None and all(job.id is None and job.idempotency_key is None for job in submissions):
        return _enqueue_fresh(submissions, ids, appears_late=appears_late)
    named = [job if job.id is not None or ids is None else replace(job, id=ids.new()) for job in submissions]
    return Statement(
        name="enqueue",
        sql=f"select {_PLACED.columns} from faultline.enqueue_many(%s::text, %s) order by place",
        params=(f"[{','.join([_job_text(job) for job in named])}]", appears_late),
        read=_PLACED.many,
        repeatable=all(job.id is not None or job.idempotency_key is not None for job in named),
        often=True,
    )


def _enqueue_fresh(submissions: Sequence[Submission], ids: Ids, *, appears_late: bool) -> Statement[list[Placed]]:
    """Ids that were made just now cannot be known yet: the database need not look for them, nor tell them back to us.

    Sent again, they can be; then it is said which ones were there already.
    """
    numbers = ids.new_numbers(len(submissions))
    texts = [_job_text(job, f"{number:032x}") for job, number in zip(submissions, numbers, strict=True)]
    document = f"[{','.join(texts)}]"

    def read(rows: Rows) -> list[Placed]:
        known = set(values(rows))
        return [Placed(UUID(int=number), place not in known) for place, number in enumerate(numbers, start=1)]

    return Statement(
        name="enqueue",
        sql="select place from faultline.enqueue_many(%s::text, %s, %s) where not created",
        params=(document, appears_late, True),
        params_again=(document, appears_late, False),
        read=read,
        repeatable=True,
        often=True,
    )


def _job_text(job: Submission, fresh_id: str | None = None) -> str:
    """Build the JSON of one job by hand: its arguments are JSON text already and must not be parsed and written again."""
    own = ""
    if fresh_id is not None:
        own = f',"id":"{fresh_id}"'
    elif job.id is not None:
        own = f',"id":"{job.id}"'
    if job.idempotency_key is not None:
        own += f',"idempotency_key":{jsontext.encode(job.idempotency_key, "idempotency_key")}'
    if job.digest is not None:
        own += f',"digest":{jsontext.encode(job.digest, "digest")}'
    if job.run_at is not None:
        own += f',"run_at":"{job.run_at.isoformat()}"'
    if job.trace is not None:
        own += f',"trace":{jsontext.encode(job.trace, "trace")}'
    common = _common_text(
        job.task, job.queue, job.priority, job.delay_seconds, job.max_attempts, job.lease_seconds, job.keep_args
    )
    return f'{{{common}{own},"args":{job.args}}}'


@lru_cache(maxsize=1024)
def _common_text(
    task: str,
    queue: str | None,
    priority: int | None,
    delay_seconds: float | None,
    max_attempts: int | None,
    lease_seconds: float | None,
    keep_args: bool | None,  # noqa: FBT001
) -> str:
    fields = {
        "task": task,
        "queue": queue,
        "priority": priority,
        "delay_seconds": delay_seconds,
        "max_attempts": max_attempts,
        "lease_seconds": lease_seconds,
        "keep_args": keep_args,
    }
    return jsontext.encode({name: value for name, value in fields.items() if value is not None}, f"job of {task}")[1:-1]
