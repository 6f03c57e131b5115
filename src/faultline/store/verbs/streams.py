"""Write to the streams of a running job, and read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.core.errors import JobNotFound
from faultline.core.model import JobState
from faultline.store.rows import Column, RowOf, as_json
from faultline.store.statement import Statement
from faultline.store.verbs.lease import for_one_lease

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Json, Lease, Unwritten
    from faultline.store.statement import Rows

_ROWS = 100


class Position(NamedTuple):
    """Up to where a stream was read: the token and the position of a chunk, and how many items there are up to its end."""

    token: int = -1
    position: int = -1
    items: int = 0


class Chunk(NamedTuple):
    """Items that were written together."""

    fencing_token: int
    position: int
    items: list[Json]


class Chunks(NamedTuple):
    """One look at a stream: what is new, and how the job stood then."""

    state: JobState
    queue: str
    chunks: list[Chunk]
    #: There may be more at once.
    more: bool

    @property
    def has_ended(self) -> bool:
        """No more can come."""
        return not self.more and self.state not in (JobState.QUEUED, JobState.RUNNING)


class _Row(NamedTuple):
    state: JobState
    queue: str
    fencing_token: int | None
    position: int
    chunk: Json


_ROW = RowOf(_Row, state=Column("state", JobState), chunk=as_json("chunk"))


def stream(lease: Lease, name: str, first_position: int, items: str, reach: str = '{"": 0}') -> Statement[Unwritten]:
    """Append items, the text of a JSON array, to a stream. Positions are those of this attempt, from 0.

    `reach`: where the program is, the text of a JSON object, as `flow.calls.reach` has it.
    """
    return for_one_lease("stream", lease, (name, first_position, items, reach), "%s, %s, %s::jsonb, %s::jsonb")


def no_job(job_id: UUID) -> str:
    return f"no job {job_id}: it was never committed in this database, or it was pruned"


def chunks(job_id: UUID, name: str, behind: Position = Position()) -> Statement[Chunks]:  # noqa: B008 - it never changes
    """What a stream has behind a position. Raises `JobNotFound`."""

    def read(rows: Rows) -> Chunks:
        if not rows:
            raise JobNotFound(no_job(job_id))
        found = _ROW.many(rows)
        new = [Chunk(row.fencing_token, row.position, row.chunk) for row in found if row.fencing_token is not None]
        return Chunks(found[0].state, found[0].queue, new, len(new) == _ROWS)

    return Statement(
        name="chunks",
        sql=f"select {_ROW.columns} from faultline.chunks(%s, %s, %s, %s, %s)",
        params=(job_id, name, behind.token, behind.position, _ROWS),
        read=read,
        repeatable=True,
        reads=True,
    )
