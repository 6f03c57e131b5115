"""Statements for proofs only: whole rows to compare, and jobs by the hundred thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store.rows import value
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


def whole(job_ids: Sequence[UUID]) -> Statement[dict[UUID, str]]:
    """All that is stored about these jobs except the journal, as text: the open row, the ledger's row, the steps."""
    return Statement(
        name="whole",
        sql="select wanted.id, jsonb_build_object("
        " 'open', (select to_jsonb(j) from faultline.open_jobs j where j.id = wanted.id),"
        " 'done', (select to_jsonb(f) from faultline.ledger f where f.job_id = wanted.id),"
        " 'steps', (select jsonb_agg(to_jsonb(s) order by s.name) from faultline.steps s where s.job_id = wanted.id)"
        ")::text from unnest(%s::uuid[]) as wanted (id)",
        params=(list(job_ids),),
        read=dict,
        repeatable=True,
    )


def lapsed(job_ids: Sequence[UUID]) -> Statement[bool]:
    """Whether the leases of all these jobs have expired."""
    return Statement(
        name="lapsed",
        sql="select not exists ("
        "select from faultline.open_jobs where id = any(%s) and lease_expires_at > faultline.clock())",
        params=(list(job_ids),),
        read=value,
        repeatable=True,
    )


def fill(jobs: int, *, task: str, args: str = "{}", queue: str = "default", delay_seconds: float = 0.0) -> Statement[int]:
    """Insert queued jobs directly into the table, faster than enqueueing. Only the table's owner can."""
    return Statement(
        name="fill",
        sql="with filled as ("
        " insert into faultline.open_jobs"
        " (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task, args)"
        " select faultline.new_id(n), now(), now() + make_interval(secs => %s) + n * interval '1 microsecond', 30, 0, 5,"
        " true, %s, %s, %s::jsonb from generate_series(1, %s) n returning 1"
        ") select count(*) from filled",
        params=(delay_seconds, queue, task, args, jobs),
        read=value,
    )


def fill_suspended(jobs: int, *, task: str, queue: str = "default") -> Statement[int]:
    """Insert jobs that wait for something, directly into the table. Only the table's owner can."""
    return Statement(
        name="fill_suspended",
        sql="with filled as ("
        " insert into faultline.open_jobs"
        " (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue, task, args,"
        " flow_id, suspended)"
        " select i, now(), '9999-01-01Z', 30, 0, 5, true, %s, %s, '{}', i, true"
        " from (select faultline.new_id(n) as i from generate_series(1, %s) n) ids returning 1"
        ") select count(*) from filled",
        params=(queue, task, jobs),
        read=value,
    )
