"""All that the database holds about some jobs, in one statement, to check it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from faultline.store.rows import RowOf, value
from faultline.store.statement import Rows, Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


@dataclass(slots=True)
class Found:
    """One job. A job in two tables has two rows."""

    #: (state, token, owner, attempt), open or done
    rows: list[tuple[str, int, str | None, int]] = field(default_factory=list)
    #: (event, token, owner, reason); a refused write is named with its verb: "complete: lease_lost"
    journal: Counter[tuple[str, int, str | None, str]] = field(default_factory=Counter)
    #: (name, token)
    steps: Counter[tuple[str, int]] = field(default_factory=Counter)


class _Line(NamedTuple):
    kind: str
    job_id: UUID
    name: str
    token: int
    owner: str | None
    attempt: int
    reason: str


_TOKEN = "fencing_token"  # noqa: S105 - a column, no secret
_JOB = RowOf(_Line, kind="'job'", job_id="id", name="state", token=_TOKEN, reason="''")
_ENTRY = RowOf(
    _Line,
    kind="'journal'",
    name="event",
    token=_TOKEN,
    attempt="null",
    reason="concat_ws(': ', detail ->> 'verb', detail ->> 'reason')",
)
_STEP = RowOf(_Line, kind="'step'", token=_TOKEN, owner="null", attempt="null", reason="''")


def testimony(job_ids: Sequence[UUID]) -> Statement[dict[UUID, Found]]:
    ids = list(job_ids)
    return Statement(
        name="testimony",
        sql=f"select {_JOB.columns} from faultline.jobs where id = any(%s)"
        f" union all select {_ENTRY.columns} from faultline.journal where job_id = any(%s)"
        f" union all select {_STEP.columns} from faultline.steps where job_id = any(%s)",
        params=(ids, ids, ids),
        read=_found,
        repeatable=True,
    )


def token_floor() -> Statement[int]:
    """All tokens of later claims are above it."""
    return Statement("token_floor", "select token_floor from faultline.settings", (), value, repeatable=True)


def _found(rows: Rows) -> dict[UUID, Found]:
    jobs: dict[UUID, Found] = {}
    for line in _JOB.many(rows):
        job = jobs.setdefault(line.job_id, Found())
        match line.kind:
            case "job":
                job.rows.append((line.name, line.token, line.owner, line.attempt))
            case "journal":
                job.journal[line.name, line.token, line.owner, line.reason] += 1
            case _:
                job.steps[line.name, line.token] += 1
    return jobs
