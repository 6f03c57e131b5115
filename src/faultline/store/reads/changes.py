"""Follow the journal by the numbers of its entries, for live pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.core.model import JobState
from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, as_json, values
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import Json


class Change(NamedTuple):
    """An entry of the journal, with its number and its queue or that of its job. A pruned job has no queue."""

    id: int
    at: datetime
    job_id: UUID | None
    queue: str | None
    event: str
    fencing_token: int | None
    owner: str | None
    detail: Json


class End(NamedTuple):
    """The number of the last entry, and the missing ones shortly before it, which may still be committed."""

    number: int
    missing: list[int]


class Reported(NamedTuple):
    """What a job last said of how far it is."""

    job_id: UUID
    queue: str
    task: str
    state: JobState
    progress: Json


_REPORTED = RowOf(Reported, job_id="id", state=Column("state", JobState), progress=as_json("progress"))
#: Of a larger progress, only the page of its job tells.
_PROGRESS_BYTES_MAX = 4096
_CHANGE = RowOf(
    Change,
    queue="case when e.job_id is null then e.detail ->> 'queue' else"
    " (select j.queue from faultline.jobs j where j.id = e.job_id) end",
    detail=Column("detail::text", jsontext.decode),
)
_END = RowOf(
    End,
    number="e.id",
    missing="array(select n from generate_series(greatest(1, e.id - %s), e.id - 1) n"
    " where not exists (select from faultline.journal j where j.id = n))",
)


def end(numbers_max: int = 0) -> Statement[End]:
    """Where the journal ends. Missing numbers are searched among the last `numbers_max`."""
    return Statement(
        name="journal_end",
        sql=f"select {_END.columns} from (select coalesce(max(id), 0) as id from faultline.journal) e",
        params=(numbers_max,),
        read=_END.one,
        repeatable=True,
        reads=True,
    )


def writers() -> Statement[frozenset[str]]:
    """The transactions that have written entries or are about to: a number is assigned only under this lock."""
    return Statement(
        name="journal_writers",
        sql="select virtualtransaction from pg_locks"
        " where locktype = 'relation' and relation = 'faultline.journal'::regclass"
        " and database = (select oid from pg_database where datname = current_database())"
        " and mode = 'RowExclusiveLock' and granted",
        params=(),
        read=lambda rows: frozenset(values(rows)),
        repeatable=True,
        reads=True,
    )


def progress(also: Sequence[UUID] = (), *, jobs_max: int) -> Statement[list[Reported]]:
    """How far running jobs are that say so. `also`: jobs that said so before, which may have ended since."""
    columns, reported = _REPORTED.columns, f"progress is not null and octet_length(progress::text) <= {_PROGRESS_BYTES_MAX}"
    return Statement(
        name="progress_of_jobs",
        sql=f"(select {columns} from faultline.jobs where id = any (%s) and {reported})"
        f" union all (select {columns} from faultline.jobs where state = 'running' and id <> all (%s)"
        f" and {reported} limit %s)",
        params=(list(also), list(also), jobs_max),
        read=_REPORTED.many,
        repeatable=True,
        reads=True,
    )


def since(number: int, *, also: Sequence[int] = (), lines_max: int) -> Statement[list[Change]]:
    """The entries after a number, in order. `also`: single numbers before it that may have been committed late."""
    return Statement(
        name="changes",
        sql=f"(select {_CHANGE.columns} from faultline.journal e where e.id = any (%s))"
        f" union all (select {_CHANGE.columns} from faultline.journal e where e.id > %s order by e.id limit %s)",
        params=(list(also), number, lines_max),
        read=lambda rows: sorted(_CHANGE.many(rows), key=lambda change: change.id),
        repeatable=True,
        reads=True,
    )
