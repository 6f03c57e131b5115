"""Flows in groups that keep their order: nobody waits for ever for a permit that is held by one who waits for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.limit_stage import done, expect_right_accounts, groups, limit, put, take
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.probes.limit_stage import Held
    from faultline_proof.sessions import Session, Sessions


def call(q: Session, parent: Held, *, then_wait: bool = True, **child: Any) -> None:
    """The job calls a child, and waits for it."""
    q.execute(
        "select faultline.spawn(%s, %s, %s, '1', 'children', 'c', null, 'raise', 1, 0, %s)",
        parent.job_id, parent.token, parent.owner, json.dumps([{"task": "child", **child}]),
    )  # fmt: skip
    if then_wait:
        wait(q, parent)


def wait(q: Session, parent: Held) -> None:
    q.execute(
        "select faultline.suspend(array[%s::uuid], array[%s::bigint], array[%s], %s::jsonb)",
        parent.job_id, parent.token, parent.owner, '[[{"number": "1", "kind": "children", "name": "c"}]]',
    )  # fmt: skip


@probe("inherit_group")
def a_grandchild_in_a_strict_group_of_one_that_waits_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "strict", ordered=True)
    put(q, "strict", 1)
    (parent,) = take(q)
    call(q, parent)
    (child,) = take(q)
    with refused(q, "FL005", f'in the group "strict" of job {parent.job_id} is refused'):
        call(q, child, group="strict")
    # In another queue the group has another line.
    call(q, child, group="strict", queue="other")
    expect_right_accounts(q)


@probe("inherit_group")
def a_group_that_is_inherited_is_looked_at_as_well(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "strict", ordered=True)
    put(q, "strict", 1)
    (parent,) = take(q)
    call(q, parent, group="strict", queue="other")
    (child,) = take(q, queue="other")
    with refused(q, "FL005", "would wait for itself"):
        call(q, child)
    call(q, child, queue="other")
    expect("the grandchild", groups(take(q, queue="other")), ["strict"])


@probe("free_permits", "waits_for_group")
def a_job_that_waits_for_another_of_its_strict_group_lets_it_run(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "g", concurrency=5)
    put(q, "g", 1)
    (parent,) = take(q)
    call(q, parent, then_wait=False)
    (child,) = take(q)
    call(q, child)
    limit(q, "g", concurrency=None, ordered=True)
    wait(q, parent)
    held = take(q)
    expect("runs", groups(held), ["g"])
    for _ in range(2):
        done(q, *held)
        q.execute("select * from faultline.resolve()")
        held = take(q)
        expect("then", groups(held), ["g"])
    expect("last", [one.job_id for one in held], [parent.job_id])
    expect_right_accounts(q)
