"""Follow the journal by the numbers of its entries, for live pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, values
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
