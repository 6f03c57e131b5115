"""What has changed, for those who watch: the journal by its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.store import jsontext
from faultline.store.statement import Rows, Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import Json


class Change(NamedTuple):
    """A line of the journal, with its number and its queue or that of its job. A job that was pruned has none."""

    id: int
    at: datetime
    job_id: UUID | None
    queue: str | None
    event: str
    fencing_token: int | None
    owner: str | None
    detail: Json


_COLUMNS = (
    "e.id, e.at, e.job_id, case when e.job_id is null then e.detail ->> 'queue' else"
    " (select j.queue from faultline.jobs j where j.id = e.job_id) end, e.event, e.fencing_token,"
    " e.owner, e.detail::text"
)


def end(numbers_max: int = 0) -> Statement[tuple[int, list[int]]]:
    """The number of the last line so far, and those that are missing among the last ones: they may be committed late."""
    return Statement(
        name="journal_end",
        sql="select e.id, array(select n from generate_series(greatest(1, e.id - %s), e.id - 1) n"
        " where not exists (select from faultline.journal j where j.id = n))"
        " from (select coalesce(max(id), 0) as id from faultline.journal) e",
        params=(numbers_max,),
        read=lambda rows: (int(rows[0][0]), list(rows[0][1])),
        repeatable=True,
        reads=True,
    )


def writers() -> Statement[frozenset[str]]:
    """The transactions that have written lines, or are about to. A number is given out only under this lock."""
    return Statement(
        name="journal_writers",
        sql="select virtualtransaction from pg_locks"
        " where locktype = 'relation' and relation = 'faultline.journal'::regclass"
        " and database = (select oid from pg_database where datname = current_database())"
        " and mode = 'RowExclusiveLock' and granted",
        params=(),
        read=lambda rows: frozenset(row[0] for row in rows),
        repeatable=True,
        reads=True,
    )


def since(number: int, *, also: Sequence[int] = (), lines_max: int) -> Statement[list[Change]]:
    """The lines behind a number, in order; `also` asks for single ones before it, which may have been committed late."""
    return Statement(
        name="changes",
        sql=f"(select {_COLUMNS} from faultline.journal e where e.id = any (%s))"
        f" union all (select {_COLUMNS} from faultline.journal e where e.id > %s order by e.id limit %s)",
        params=(list(also), number, lines_max),
        read=_changes,
        repeatable=True,
        reads=True,
    )


def _changes(rows: Rows) -> list[Change]:
    return sorted(Change._make((*row[:-1], jsontext.decode(row[-1]))) for row in rows)
