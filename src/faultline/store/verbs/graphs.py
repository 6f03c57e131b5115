"""Enqueue graphs of jobs, and read what a job of a graph came after."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID  # noqa: TC003 - the field of a named tuple

from faultline.core.model import Enqueued, JobState, Json
from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, as_json
from faultline.store.statement import Statement
from faultline.store.verbs.submit import ENQUEUED_THERE, jobs_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.model import Lease, Submission


class Node(NamedTuple):
    """A job of a graph: its name, what it comes after, and what becomes of it if one of these fails."""

    job: Submission
    name: str
    after: tuple[str, ...] = ()
    if_failed: str = "cancel"


class Upstream(NamedTuple):
    """A job that this one came after."""

    name: str
    job_id: UUID
    task: str
    state: JobState
    result: Json
    error: str | None


_ENQUEUED = RowOf(Enqueued)
_UPSTREAM = RowOf(Upstream, job_id="upstream_id", state=Column("state", JobState), result=as_json("result"))


def enqueue_flow(root: Submission, nodes: Sequence[Node], *, appears_late: bool = False) -> Statement[list[Enqueued]]:
    """Enqueue the root and all jobs of a graph, all or none. The root comes first in the answer."""
    texts = [jobs_text([root])[1:-1], *(_node_text(node) for node in nodes)]
    columns = ENQUEUED_THERE if appears_late else _ENQUEUED
    return Statement(
        name="enqueue_flow",
        sql=f"select {columns.columns} from faultline.enqueue_flow(%s::text, %s) order by position",
        params=(f"[{','.join(texts)}]", appears_late),
        read=columns.many,
        repeatable=root.id is not None or root.idempotency_key is not None,
    )


def _node_text(node: Node) -> str:
    more = {"name": node.name, "after": list(node.after), "if_failed": node.if_failed}
    return f"{jobs_text([node.job])[1:-2]},{jsontext.encode(more, node.name)[1:]}"


def upstream(lease: Lease) -> Statement[list[Upstream]]:
    """What became of the jobs that this one came after."""
    return Statement(
        name="upstream",
        sql=f"select {_UPSTREAM.columns} from faultline.upstream(%s, %s, %s)",
        params=(lease.job_id, lease.fencing_token, lease.owner),
        read=_UPSTREAM.many,
        repeatable=True,
    )
