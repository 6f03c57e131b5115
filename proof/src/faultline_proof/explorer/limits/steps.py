"""The steps of limited queues and of schedules: one statement each, as the store sends it."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from faultline.core.errors import IllegalTransition
from faultline.store.statement import Statement
from faultline_proof.explorer.flows.steps import Held
from faultline_proof.explorer.steps import LEASE_SECONDS, Step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

_owners = itertools.count(1)
_LEASES = "%s::uuid[], %s::bigint[], %s::text[]"


def _step(verb: str, sql: str, params: tuple[Any, ...] = (), about: object = "", **fields: Any) -> Step:
    return Step(verb, Statement(verb, sql, params, fields.pop("read", list)), str(about), **fields)


def _all(leases: Sequence[Held]) -> tuple[list[Any], ...]:
    return [one.job_id for one in leases], [one.token for one in leases], [one.owner for one in leases]


def _told(leases: Sequence[Held]) -> str:
    return "; ".join(map(str, leases))


# Submissions and claims


def submit(queue: str, *names: str, group: str | None = None, **fields: Any) -> Step:
    """Of jobs without a key: it waits for nobody, whatever others do to its group."""
    more = {"queue": queue, "lease_seconds": LEASE_SECONDS, **fields} | ({"group": group} if group else {})
    document = json.dumps([{"task": name, **more} for name in names])
    sql = "select job_id, created from faultline.enqueue_many(%s) order by ordinal"
    return _step("submit", sql, (document,), f"{', '.join(names)} of {group}")


def claim(queue: str, max_jobs: int = 10, *, patient: bool = True) -> Step:
    """Claims of a queue go one after the other, and wait for a moment: then the answer is empty."""
    owner = f"w{next(_owners)}/1"
    return _step(
        "claim",
        "select job_id, fencing_token, task from faultline.claim(%s, %s, %s) order by job_id",
        (queue, owner, max_jobs),
        patient=patient,
        read=lambda rows: [Held(job_id, token, owner, task) for job_id, token, task in rows],
    )


# Unique jobs, and what is written and read by those that need them


def submit_unique(queue: str, name: str, unique: dict[str, Any] | None = None, **fields: Any) -> Step:
    """All of a scene have one key. It waits for those who submit the same."""
    job = {
        "task": "index", "args": {"n": name}, "queue": queue, "lease_seconds": LEASE_SECONDS,
        "unique": {"key": "doc", **(unique or {})}, **fields,
    }  # fmt: skip
    sql = "select job_id, created from faultline.enqueue_many(%s) order by ordinal"
    return _step("submit", sql, (json.dumps([job]),), f"{name}, unique", patient=True)


def change(scene: int, name: str) -> Step:
    return _step("write", "insert into changes values (%s, %s) returning name", (scene, name), name)


def read(scene: int, leases: Sequence[Held]) -> Step:
    """What a run does: it sees what was committed before, and has the arguments that its job has."""
    return _step(
        "read",
        "insert into seen (scene, name, args) select c.scene, c.name, j.args ->> 'n' from changes c, faultline.open_jobs j"
        " where c.scene = %s and j.id = any (%s) returning name",
        (scene, [one.job_id for one in leases]),
        _told(leases),
    )


def expire() -> Step:
    return _step("expire", "select job_id from faultline.expire()")


# Ends: none of them may wait for a limit


def complete(*leases: Held, **fields: Any) -> Step:
    return _step("complete", f"select * from faultline.complete({_LEASES})", _all(leases), _told(leases), **fields)


def fail(*leases: Held, **fields: Any) -> Step:
    failures = json.dumps([{"then": "retry", "error": "boom", "delay_seconds": 0}] * len(leases))
    sql, params = f"select * from faultline.fail({_LEASES}, %s)", (*_all(leases), failures)
    return _step("fail", sql, params, _told(leases), **fields)


def release(*leases: Held) -> Step:
    return _step("release", f"select * from faultline.release({_LEASES})", _all(leases), _told(leases))


def cancel(job_id: UUID) -> Step:
    """Of a job whose row somebody else may hold."""
    return _step("cancel", "select faultline.cancel(%s)", (job_id,), foreseen=(IllegalTransition,))


def reap() -> Step:
    return _step("reap", "select * from faultline.reap()")


def recover() -> Step:
    return _step("recover", "select count(*) from faultline.recover()")


# Limits


def declare(queue: str, declared: dict[str, Any]) -> Step:
    sql = "select faultline.declare_queue(%s, %s::jsonb)"
    return _step("declare_queue", sql, (queue, json.dumps(declared)), declared, patient=True)


def set_limit(queue: str, key: str, **fields: Any) -> Step:
    sql = "select faultline.set_limit(%s, %s, %s::jsonb, 'ada', 'a scene')"
    return _step("set_limit", sql, (queue, key, json.dumps(fields)), f"{key or 'the queue'}: {fields}", patient=True)


def reset_limit(queue: str, key: str) -> Step:
    sql = "select faultline.reset_limit(%s, %s, 'ada', 'a scene')"
    return _step("reset_limit", sql, (queue, key), key or "the queue", patient=True)


def maintain_limits() -> Step:
    return _step("maintain_limits", "select faultline.maintain_limits()", patient=True)


def recount(queue: str) -> Step:
    return _step("recount", "select faultline.recount(%s)", (queue,), patient=True)


# Budgets


def set_budget(budget: str, fields: dict[str, Any]) -> Step:
    sql = "select faultline.set_budget(%s, %s::jsonb, 'ada', 'a scene')"
    return _step("set_budget", sql, (budget, json.dumps(fields)), fields, patient=True)


def take_budget(lease: Held, budget: str, cost: float) -> Step:
    """Answers with the status, and how long to wait. It waits for others who take, and for who changes the budget."""
    return _step(
        "take_budget",
        "select status, seconds from faultline.take_budget(%s, %s, %s, %s, %s::float8, 1)",
        (lease.job_id, lease.token, lease.owner, budget, cost),
        f"{cost:g}, {lease}",
        patient=True,
        read=lambda rows: rows[0],
    )


def release_for(lease: Held, seconds: float) -> Step:
    """By a run that was told to wait: it waits for who changes the budget now."""
    sql = f"select * from faultline.release({_LEASES}, %s::float8[])"
    return _step("release", sql, (*_all([lease]), [seconds]), f"{lease}, for {seconds:.0f} s", patient=True)


def suspend_for(lease: Held, seconds: float) -> Step:
    """As a flow does that waits for a budget."""
    sql = (
        f"select * from faultline.suspend({_LEASES}, jsonb_build_array(jsonb_build_array(jsonb_build_object("
        "'number', '0.0.0', 'kind', 'retry', 'name', 'budget', 'until', faultline.clock() + make_interval(secs => %s)))))"
    )
    return _step("suspend", sql, (*_all([lease]), seconds), f"{lease}, for {seconds:.0f} s", patient=True)


# Schedules


def set_schedule(name: str, spec: dict[str, Any]) -> Step:
    sql = "select faultline.set_schedule(%s, %s::json, 'ada', 'a scene')"
    return _step("set_schedule", sql, (name, json.dumps(spec)), name, patient=True)


def pause_schedule(name: str) -> Step:
    return _step("pause_schedule", "select faultline.pause_schedule(%s, 'ada', 'a scene')", (name,), name, patient=True)


def due_schedules() -> Step:
    return _step("due_schedules", "select name, revision, next_at, since from faultline.due_schedules('{}')")


def tick(name: str, revision: int, expected: Any, fire: Sequence[Any], next_at: Any) -> Step:
    """While another one decides, nothing happens: it waits for nobody."""
    sql = "select outcome, job_id from faultline.tick(%s, %s, %s, %s::timestamptz[], '[]', %s)"
    return _step("tick", sql, (name, revision, expected, list(fire), next_at), name)
