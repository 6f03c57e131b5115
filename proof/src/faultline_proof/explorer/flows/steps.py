"""The steps of flows: one statement each, as the store sends it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.errors import LockNotAvailable

from faultline.core.errors import IllegalTransition
from faultline.store.statement import Statement
from faultline_proof.explorer.steps import Step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

_owners = itertools.count(1)
#: Somebody else holds a row that it will not wait for: it is sent again.
_BUSY = (LockNotAvailable,)
#: Where a resolve stops that looks at jobs.
RESOLVE = ("resolve", "read_nudges", "apply_nudges")
#: A verb with its steps.
SPAWN = ("spawn", "insert_chunk", "keep_chunk")
SUSPEND = ("suspend", "keep_waits")
REAP = ("reap", "lost_jobs", "end_badly")
CANCEL = ("cancel", "end_badly", "sweep")
_LEASES = "%s::uuid[], %s::bigint[], %s::text[]"
_LEASE = "%s::uuid, %s::bigint, %s::text"


@dataclass(frozen=True, slots=True)
class Held:
    """A lease of one job."""

    job_id: UUID
    token: int
    owner: str
    task: str

    @property
    def params(self) -> tuple[Any, ...]:
        return (self.job_id, self.token, self.owner)

    def __str__(self) -> str:
        return f"{self.task}, token {self.token}"


def _step(verb: str, sql: str, params: tuple[Any, ...], about: object = "", **fields: Any) -> Step:
    return Step(verb, Statement(verb, sql, params, fields.pop("read", list)), str(about), **fields)


def _all(leases: Sequence[Held]) -> tuple[list[Any], ...]:
    return [one.job_id for one in leases], [one.token for one in leases], [one.owner for one in leases]


def _told(leases: Sequence[Held]) -> str:
    return "; ".join(map(str, leases))


def claim(queue: str, max_jobs: int = 10) -> Step:
    owner = f"w{next(_owners)}/1"
    return _step(
        "claim",
        "select job_id, fencing_token, task from faultline.claim(%s, %s, %s) order by job_id",
        (queue, owner, max_jobs),
        read=lambda rows: [Held(job_id, token, owner, task) for job_id, token, task in rows],
    )


# Ends


def complete(*leases: Held) -> Step:
    return _step("complete", f"select * from faultline.complete({_LEASES})", _all(leases), _told(leases))


def fail(*leases: Held) -> Step:
    failures = json.dumps([{"then": "fail", "error": "boom"}] * len(leases))
    return _step("fail", f"select * from faultline.fail({_LEASES}, %s)", (*_all(leases), failures), _told(leases))


def release(*leases: Held) -> Step:
    return _step("release", f"select * from faultline.release({_LEASES})", _all(leases), _told(leases))


def record_start(*leases: Held) -> Step:
    return _step("record_start", f"select * from faultline.record_start({_LEASES})", _all(leases), _told(leases))


def renew(*leases: Held) -> Step:
    return _step("renew", f"select * from faultline.renew({_LEASES})", _all(leases), _told(leases))


def cancel(job_id: UUID) -> Step:
    return _step("cancel", "select faultline.cancel(%s)", (job_id,))


def retry(job_id: UUID) -> Step:
    return _step("retry", "select faultline.retry(%s)", (job_id,), foreseen=(IllegalTransition, *_BUSY))


def reap() -> Step:
    return _step("reap", "select * from faultline.reap()", ())


# Waits


def children(number: str = "1", policy: str = "raise") -> dict[str, Any]:
    """A wait for children that are spawned already."""
    return {"number": number, "kind": "children", "name": "kids", "digest": "d", "policy": policy}


def approval(number: str = "1", seconds: float = 3600) -> dict[str, Any]:
    return {"number": number, "kind": "signal", "name": "approval", "digest": "d", "seconds": seconds}


def suspend(*leases: Held, waits: Sequence[dict[str, Any]] = ()) -> Step:
    """Each of the leases waits for all of these."""
    return _step(
        "suspend",
        f"select * from faultline.suspend({_LEASES}, %s::jsonb)",
        (*_all(leases), json.dumps([list(waits or [children()])] * len(leases))),
        _told(leases),
    )


def resolve(cursor: Any = None, max_nudges: int = 100) -> Step:
    """Answers with what is left over and the cursor."""
    return _step(
        "resolve",
        "select woken, left_over, next_cursor::text from faultline.resolve(%s, %s::jsonb)",
        (max_nudges, cursor),
        read=lambda rows: rows[0],
    )


def sweep(max_jobs: int = 500) -> Step:
    return _step("sweep", "select faultline.sweep(%s)", (max_jobs,))


# Calls


def record(lease: Held, *calls: dict[str, Any]) -> Step:
    return _step("record", f"select * from faultline.record({_LEASE}, %s::jsonb)", (*lease.params, json.dumps(calls)), lease)


def call(number: str, outcome: str | None = "done", kind: str = "step", name: str = "s", **more: Any) -> dict[str, Any]:
    return {"number": number, "kind": kind, "name": name, "digest": "d", "outcome": outcome, **more}


def spawn(
    lease: Held,
    queue: str,
    number_of: int = 1,
    *,
    number: str = "1",
    policy: str = "raise",
    jobs: Sequence[dict[str, Any]] = (),
) -> Step:
    jobs = jobs or [
        {"task": f"child-{index}", "queue": queue, "max_attempts": 1, "lease_seconds": 60} for index in range(number_of)
    ]
    return _step(
        "spawn",
        f"select call_id, reason from faultline.spawn({_LEASE}, %s, 'children', 'kids', 'd', %s, %s, 0, %s)",
        (*lease.params, number, policy, number_of, json.dumps(jobs)),
        lease,
        foreseen=_BUSY,
    )


def watch(lease: Held, *targets: UUID, number: str = "1") -> Step:
    return _step(
        "watch",
        f"select call_id, reason from faultline.watch({_LEASE}, %s, 'kids', 'd', 'raise', %s::uuid[])",
        (*lease.params, number, list(targets)),
        lease,
        foreseen=_BUSY,
    )


def take(lease: Held, number: str = "1") -> Step:
    return _step(
        "collect_outcomes",
        f"select status, result from faultline.collect_outcomes({_LEASE}, %s)",
        (*lease.params, number),
        lease,
        read=lambda rows: rows[0],
    )


def stream(lease: Held, first: int, *chunks: Any) -> Step:
    return _step(
        "stream",
        f"select * from faultline.stream({_LEASE}, 'tokens', %s, %s::jsonb)",
        (*lease.params, first, json.dumps(chunks)),
        lease,
    )


# Signals


def signal(job_id: UUID, payload: Any = True, *, name: str = "approval", key: str | None = None, **more: Any) -> Step:  # noqa: FBT002
    named = "".join(f", {word} => %s" for word in more)
    return _step(
        "signal",
        f"select faultline.signal(job_id => %s, name => %s, payload => %s::jsonb, key => %s{named})",
        (job_id, name, json.dumps(payload), key, *more.values()),
        name,
        read=lambda rows: rows[0][0],
        foreseen=(IllegalTransition,),
    )


def receive(
    lease: Held, number: str = "1", *, name: str = "approval", seconds: float | None = 3600, fresh: bool = False
) -> Step:
    return _step(
        "receive",
        f"select status, payload from faultline.receive({_LEASE}, %s, %s, 'd', %s::float8, %s)",
        (*lease.params, number, name, seconds, fresh),
        lease,
        read=lambda rows: rows[0],
    )


# Graphs, new lives


def enqueue_flow(nodes: str) -> Step:
    return _step("enqueue_flow", "select * from faultline.enqueue_flow(%s) order by position", (nodes,))


def continue_as_new(*leases: Held) -> Step:
    args = json.dumps([{"life": 2}] * len(leases))
    return _step(
        "continue_as_new",
        f"select * from faultline.continue_as_new({_LEASES}, %s::jsonb)",
        (*_all(leases), args),
        _told(leases),
    )
