"""Enqueue jobs."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.core import bounds
from faultline.core.model import Enqueued, Submission
from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, value, values
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.ids import Ids
    from faultline.store.statement import Rows


_ENQUEUED = RowOf(Enqueued)
#: In a caller's session: as text, because its library may give a UUID as anything.
ENQUEUED_THERE = RowOf(Enqueued, job_id=Column("job_id::text", UUID))


def enqueue_many(
    submissions: Sequence[Submission], ids: Ids | None = None, *, appears_late: bool = False
) -> Statement[list[Enqueued]]:
    """Enqueue jobs, all or none. With `ids`, jobs without an id get one here, so the statement is repeatable.

    `appears_late`: the transaction is a larger one and commits some time after this statement.
    """
    if ids is not None and not appears_late and len(submissions) == 1 and _is_plain(submissions[0]):
        return _enqueue_one(submissions[0], ids)
    if ids is not None and all(job.id is None and job.idempotency_key is None and job.unique is None for job in submissions):
        return _enqueue_fresh(submissions, ids, appears_late=appears_late)
    columns = ENQUEUED_THERE if appears_late else _ENQUEUED
    named = [job if job.id is not None or ids is None else replace(job, id=ids.new()) for job in submissions]
    return Statement(
        name="enqueue",
        sql=f"select {columns.columns} from faultline.enqueue_many(%s::text, %s) order by ordinal",
        params=(jobs_text(named), appears_late),
        read=columns.many,
        repeatable=all(job.id is not None or job.idempotency_key is not None for job in named),
        often=True,
    )


def _is_plain(job: Submission) -> bool:
    """Whether `enqueue_one` takes it. A value that is not quite of its type is read, or refused, by `enqueue_many`."""
    return (
        _unusual_of(job) == _PLAIN
        and _is_name(job.task)
        and _is_name(job.queue)
        and type(job.priority) in _WHOLE
        and type(job.max_attempts) in _WHOLE
        and type(job.lease_seconds) in _NUMBER
        and type(job.keep_args) in _TRUTH
        and (job.trace is None or (job.trace.isascii() and "\0" not in job.trace))
    )


_WHOLE, _NUMBER, _TRUTH = {int, NoneType}, {int, float, NoneType}, {bool, NoneType}


@lru_cache(maxsize=1024)
def _is_name(name: str | None) -> bool:
    if name is None:
        return True
    try:
        return type(name) is str and "\0" not in name and bool(name.encode())
    except UnicodeEncodeError:
        return False


def _enqueue_one(job: Submission, ids: Ids) -> Statement[list[Enqueued]]:
    """One plain job, as parameters instead of a document: for the database a third less work."""
    (number,) = ids.new_numbers(1)
    given = (
        f"{number:032x}",
        job.task,
        job.args,
        bounds.QUEUE if job.queue is None else job.queue,
        bounds.PRIORITY if job.priority is None else job.priority,
        bounds.MAX_ATTEMPTS if job.max_attempts is None else job.max_attempts,
        bounds.LEASE_SECONDS if job.lease_seconds is None else job.lease_seconds,
        job.keep_args is not False,
        job.trace,
    )

    def read(rows: Rows) -> list[Enqueued]:
        return [Enqueued(UUID(int=number), value(rows))]

    return Statement(
        name="enqueue",
        sql="select faultline.enqueue_one(%s::uuid, %s, %s, %s, %s::integer, %s::integer, %s::numeric, %s, %s, %s)",
        params=(*given, True),
        params_again=(*given, False),
        read=read,
        repeatable=True,
        often=True,
    )


def _enqueue_fresh(submissions: Sequence[Submission], ids: Ids, *, appears_late: bool) -> Statement[list[Enqueued]]:
    """The database cannot know new ids yet, so it need neither look for them nor return them.

    When the statement is sent again it may know them. Then it returns the positions of those that it had already.
    """
    numbers = ids.new_numbers(len(submissions))
    texts = [_job_text(job, f"{number:032x}") for job, number in zip(submissions, numbers, strict=True)]
    document = f"[{','.join(texts)}]"

    def read(rows: Rows) -> list[Enqueued]:
        known = set(values(rows))
        return [Enqueued(UUID(int=number), position not in known) for position, number in enumerate(numbers, start=1)]

    return Statement(
        name="enqueue",
        sql="select ordinal from faultline.enqueue_many(%s::text, %s, %s) where not created",
        params=(document, appears_late, True),
        params_again=(document, appears_late, False),
        read=read,
        repeatable=True,
        often=True,
    )


def jobs_text(submissions: Sequence[Submission], fresh: Sequence[int] | None = None) -> str:
    """The JSON text of jobs, as `enqueue_many` reads it. `fresh`: an id for each that has none."""
    if fresh is None:
        texts = [_job_text(job) for job in submissions]
    else:
        given = zip(submissions, fresh, strict=True)
        texts = [_job_text(job, f"{number:032x}" if job.id is None else None) for job, number in given]
    return f"[{','.join(texts)}]"


def _job_text(job: Submission, fresh_id: str | None = None) -> str:
    """Build the JSON of one job by hand: its arguments are JSON text already, and parsing them again would cost time."""
    own = "" if fresh_id is None else f',"id":"{fresh_id}"'
    values = _own_of(job)
    if values != _NOTHING:
        given = zip(_OWN, values, strict=True)
        own += "".join([f',"{name}":{_text(name, found)}' for name, found in given if found is not None])
    return f'{{{_common_text(_common_of(job))}{own},"args":{job.args}}}'


#: The fields of a submission are those of its JSON: each job's own, and those that many jobs share.
_OWN = tuple(one.name for one in fields(Submission) if one.metadata.get("own"))
_COMMON = tuple(one.name for one in fields(Submission) if one.name not in (*_OWN, "args"))
_own_of, _common_of = attrgetter(*_OWN), attrgetter(*_COMMON)
_NOTHING = (None,) * len(_OWN)
#: What `enqueue_one` takes. A job with any other field goes to `enqueue_many`, also with one that comes later.
_TAKEN = ("task", "args", "queue", "priority", "max_attempts", "lease_seconds", "keep_args", "trace")
_UNUSUAL = tuple(one.name for one in fields(Submission) if one.name not in _TAKEN)
_unusual_of, _PLAIN = attrgetter(*_UNUSUAL), (None,) * len(_UNUSUAL)


def _text(name: str, found: object) -> str:
    if isinstance(found, UUID):
        return f'"{found}"'
    return jsontext.encode(found.isoformat() if isinstance(found, datetime) else found, name)


@lru_cache(maxsize=1024)
def _common_text(values: tuple[Any, ...]) -> str:
    given = {name: found for name, found in zip(_COMMON, values, strict=True) if found is not None}
    return jsontext.encode(given, f"job of {given['task']}")[1:-1]
