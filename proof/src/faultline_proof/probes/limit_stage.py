"""What stories about limits have in common."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.probe import expect

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.sessions import Session

_calls = itertools.count(1)


def limit(q: Session, group: str = "", queue: str = "default", **fields: Any) -> bool:
    changed: bool = q.value("select faultline.set_limit(%s, %s, %s::jsonb)", queue, group, json.dumps(fields))
    return changed


def put(q: Session, group: str | None = None, times: int = 1, **fields: Any) -> list[UUID]:
    """Enqueue jobs of a group, in one submission."""
    jobs = json.dumps([{"task": "t", **({} if group is None else {"group": group}), **fields}] * times)
    return [row[1] for row in q.execute("select * from faultline.enqueue_many(%s::text)", jobs)]


def put_each(q: Session, number: int) -> None:
    """Enqueue a job of each of so many groups, in one submission."""
    jobs = json.dumps([{"task": "t", "group": f"g{nth}"} for nth in range(number)])
    q.execute("select from faultline.enqueue_many(%s::text)", jobs)


def take(q: Session, most: int = 100, *, queue: str = "default") -> list[Held]:
    """Claim, in the order of the ids."""
    sql = "select job_id, fencing_token, group_key from faultline.claim(%s, %s, %s) order by 1"
    rows = q.execute(sql, queue, owner := f"w/{next(_calls)}", most)
    return [Held(job_id, token, owner, group) for job_id, token, group in rows]


class Held:
    """A lease, as plain SQL has it."""

    def __init__(self, job_id: UUID, token: int, owner: str, group: str | None) -> None:
        self.job_id, self.token, self.owner, self.group = job_id, token, owner, group

    def __repr__(self) -> str:
        return f"{self.group}:{self.job_id}"


def groups(held: list[Held]) -> list[str]:
    return sorted(str(one.group) for one in held)


def _verb(q: Session, verb: str, held: tuple[Held, ...], more: str = "", *params: Any) -> list[Any]:
    return q.execute(
        f"select reason from faultline.{verb}(%s::uuid[], %s::bigint[], %s::text[]{more})",
        [one.job_id for one in held],
        [one.token for one in held],
        [one.owner for one in held],
        *params,
    )


def ended(q: Session, *held: Held, more: str = "") -> list[Any]:
    """Complete with further arguments. Gives what was refused."""
    return _verb(q, "complete", held, more)


def done(q: Session, *held: Held) -> None:
    expect("refused completions", _verb(q, "complete", held), [])


def failed(q: Session, *held: Held, then: str = "retry", delay: float = 0) -> None:
    failures = json.dumps([{"then": then, "delay_seconds": delay, "error": "boom"}] * len(held))
    expect("refused failures", _verb(q, "fail", held, ", %s::jsonb", failures), [])


def given_back(q: Session, *held: Held, delay: float | None = None) -> None:
    expect("refused releases", _verb(q, "release", held, ", %s::float8[]", [delay] * len(held)), [])


def running(q: Session, group: str | None = None) -> int:
    count: int = q.value(
        "select count(*) from faultline.open_jobs where state = 'running' and (%s::text is null or group_key = %s)",
        group,
        group,
    )
    return count


def expect_right_accounts(q: Session) -> None:
    expect("broken invariants", q.broken_invariants(), [])
