"""Flows made by the verbs alone, step by step: what a screen shows must not depend on a worker's timing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.store.verbs import flow

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from tests.driver import Driver


def begun(on: Driver, /, task: str = "article", **fields: Any) -> Lease:
    """A job that runs, more urgent than all others of its queue."""
    on.enqueue(**{"task": task, "priority": -100, **fields})
    return on.claim_one(queue=fields.get("queue", "default"))


def done(on: Driver, /, lease: Lease, number: str, name: str = "draft", **fields: Any) -> None:
    """A step that has ended."""
    call = {"number": number, "kind": "step", "name": name, "digest": "d", "outcome": "done", "tries": 1, **fields}
    assert on.run(flow.record(lease, [call])).stale == []


def suspended(on: Driver, /, lease: Lease, number: str, kind: str = "signal", name: str = "approval", **fields: Any) -> UUID:
    """It waits."""
    wait = {"number": number, "kind": kind, "name": name, "seconds": 3600, **fields}
    written = on.run(flow.suspend([lease], [json.dumps([wait])]))
    assert (written.stale, written.busy) == ([], [])
    return lease.job_id


def asked(on: Driver, /, task: str = "article", name: str = "approval", **fields: Any) -> UUID:
    """A job that waits for a signal, as its first call."""
    return suspended(on, begun(on, task, **fields), "1", name=name)


def spawned(on: Driver, /, lease: Lease, number: str, jobs: int, *, task: str = "part", **fields: Any) -> int:
    """Children of a call. Returns the id of the call."""
    children = [Submission(task, json.dumps({"n": n}), **fields) for n in range(jobs)]
    return on.run(flow.spawn(lease, number, children, name=task, digest="d"))
