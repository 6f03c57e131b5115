"""What stands in the database about some jobs, told in one statement: for those who check that it is what it should be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faultline.store.statement import Rows, Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


@dataclass(slots=True)
class Found:
    """One job. Nothing is hidden: a job that stands in two places has two rows."""

    #: (state, token, owner, attempt), open or done
    rows: list[tuple[str, int, str | None, int]] = field(default_factory=list)
    #: (event, token, owner, reason); a refused write is named with its verb: "complete: lease_lost"
    journal: Counter[tuple[str, int, str | None, str]] = field(default_factory=Counter)
    #: (name, token)
    steps: Counter[tuple[str, int]] = field(default_factory=Counter)


def testimony(job_ids: Sequence[UUID]) -> Statement[dict[UUID, Found]]:
    ids = list(job_ids)
    return Statement(
        name="testimony",
        sql="select 'job', id, state, fencing_token, owner, attempt, ''"
        " from faultline.jobs where id = any(%s)"
        " union all"
        " select 'journal', job_id, event, fencing_token, owner, null,"
        " concat_ws(': ', detail ->> 'verb', detail ->> 'reason')"
        " from faultline.journal where job_id = any(%s)"
        " union all"
        " select 'step', job_id, name, fencing_token, null, null, ''"
        " from faultline.steps where job_id = any(%s)",
        params=(ids, ids, ids),
        read=_found,
        repeatable=True,
    )


def token_floor() -> Statement[int]:
    """Below which `claim` grants no token."""
    return Statement(
        "token_floor", "select token_floor from faultline.settings", (), lambda rows: int(rows[0][0]), repeatable=True
    )


def _found(rows: Rows) -> dict[UUID, Found]:
    jobs: dict[UUID, Found] = {}
    for place, job_id, name, token, owner, attempt, reason in rows:
        job = jobs.setdefault(job_id, Found())
        match place:
            case "job":
                job.rows.append((name, token, owner, attempt))
            case "journal":
                job.journal[name, token, owner, reason] += 1
            case _:
                job.steps[name, token] += 1
    return jobs
