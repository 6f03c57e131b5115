"""Flows in groups that keep their order: nobody waits for ever for a permit that is held by one who waits for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.flow_plans import rows_read
from faultline_proof.probes.limit_stage import done, expect_right_accounts, groups, limit, put, take
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.probes.limit_stage import Held
    from faultline_proof.sessions import Session, Sessions

_FEW = 300


def call(q: Session, parent: Held, *, then_wait: bool = True, **child: Any) -> None:
    """The job calls a child, and waits for it."""
    q.execute(
        "select faultline.spawn(%s, %s, %s, '1', 'children', 'c', null, 'raise', 1, 0, %s)",
        parent.job_id, parent.token, parent.owner, json.dumps([{"task": "child", **child}]),
    )  # fmt: skip
    if then_wait:
        wait(q, parent)


def wait(q: Session, parent: Held, *, kind: str = "children") -> None:
    q.execute(
        "select faultline.suspend(array[%s::uuid], array[%s::bigint], array[%s], %s::jsonb)",
        parent.job_id, parent.token, parent.owner, json.dumps([[{"number": "1", "kind": kind, "name": "c"}]]),
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


def _stuck(q: Session) -> tuple[Held, Held]:
    """Two jobs of two strict groups, each of which waits for a child in the other's group. The youngest comes last."""
    limit(q, "*", ordered=True)
    put(q, "a", 1)
    put(q, "b", 1)
    first, second = sorted(take(q), key=lambda one: one.job_id)
    call(q, first, group=str(second.group))
    call(q, second, group=str(first.group))
    expect("starts", take(q), [])
    return first, second


def _a_minute_later(sessions: Sessions, q: Session) -> None:
    sessions.hand.execute("update faultline.limited_queues set all_events_applied_at = '-infinity'")
    q.execute("select faultline.maintain_limits()")


@probe("break_group_deadlocks", "maintain_limits")
def of_two_that_wait_for_each_others_strict_groups_the_youngest_gives_way(sessions: Sessions) -> None:
    q = sessions.open()
    first, second = _stuck(q)
    put(q, str(first.group), 1)
    _a_minute_later(sessions, q)
    held = take(q)
    expect("the child in the group of the youngest", groups(held), [str(second.group)])
    told = q.execute("select job_id, detail ->> 'group' from faultline.journal where event = 'group_deadlock_broken'")
    expect("the journal", told, [(second.job_id, second.group)])
    done(q, *held)
    q.execute("select * from faultline.resolve()")
    held = take(q)
    expect("the other goes on", [one.job_id for one in held], [first.job_id])
    done(q, *held)
    held = take(q)
    expect("and what its group kept waiting", groups(held), [str(first.group)])
    expect_right_accounts(q)


@probe("break_group_deadlocks", "maintain_limits")
def one_that_waits_for_the_strict_group_of_another_gives_nothing_up(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", ordered=True)
    put(q, "a", 1)
    put(q, "b", 1)
    first, second = take(q)
    call(q, first, group=str(second.group))
    call(q, second, group="c")
    put(q, str(first.group), 1)
    _a_minute_later(sessions, q)
    expect("starts", groups(take(q)), ["c"])
    expect_right_accounts(q)


@probe("break_group_deadlocks", "maintain_limits")
def who_looks_for_jobs_that_give_way_waits_for_none(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    _, second = _stuck(q)
    other.begin()
    other.execute("select from faultline.open_jobs where id = %s for update", second.job_id)
    sessions.at_once(q, lambda session: session.execute("select faultline.break_group_deadlocks()"))
    expect("while its row is held", take(q), [])
    other.rollback()
    q.execute("select faultline.break_group_deadlocks()")
    expect("afterwards", groups(take(q)), [str(second.group)])


@probe("break_group_deadlocks")
def a_worker_is_woken_for_what_may_start_when_one_gives_way(sessions: Sessions) -> None:
    q = sessions.open()
    _stuck(q)
    q.heartbeat("sleeper", sleeping=["default"])
    q.execute("listen faultline")
    q.notices()
    q.execute("select faultline.break_group_deadlocks()")
    expect("woken", ["sleeper" in notice for notice in q.notices()], [True])


@probe("break_group_deadlocks")
def one_that_is_woken_gives_nothing_up(sessions: Sessions) -> None:
    q = sessions.open()
    _, second = _stuck(q)
    sessions.hand.execute("update faultline.open_jobs set next_run_at = faultline.clock() where id = %s", second.job_id)
    q.execute("select faultline.break_group_deadlocks()")
    expect("goes on with its permit", [one.job_id for one in take(q)], [second.job_id])
    expect_right_accounts(q)


@probe("break_group_deadlocks", "maintain_limits")
def one_whose_child_came_to_wait_for_its_strict_group_gives_way(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", ordered=True)
    put(q, "a", 1)
    (parent,) = take(q)
    call(q, parent, queue="other")
    (waits_for,) = put(q, "a", 1)
    (child,) = take(q, queue="other")
    q.execute(
        "select faultline.watch(%s, %s, %s, '1', 'c', null, 'raise', array[%s::uuid])",
        child.job_id, child.token, child.owner, waits_for,
    )  # fmt: skip
    wait(q, child, kind="watch")
    expect("starts", take(q), [])
    _a_minute_later(sessions, q)
    expect("starts then", [one.job_id for one in take(q)], [waits_for])
    expect_right_accounts(q)


@probe("break_group_deadlocks", "plan")
def who_looks_for_jobs_that_give_way_reads_no_others(sessions: Sessions) -> None:
    """Nor their calls, in a session whose plans were made while the tables were empty."""
    q = sessions.open()
    _stuck(q)
    with q.unsaved():
        q.execute("select faultline.break_group_deadlocks()")
    sessions.hand.execute(
        "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
        " queue, task, args, state) select gen_random_uuid(), now(), now(), 30, 0, 5, true, 'default', 't', '{}', 'queued'"
        " from generate_series(1, 1000)"
    )
    sessions.hand.execute(
        "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, awaited)"
        " select gen_random_uuid(), '1', 'children', 'child', 1, now(), true from generate_series(1, 1000)"
    )
    sessions.hand.execute("insert into faultline.edges select -n, 0, gen_random_uuid() from generate_series(1, 1000) n")
    with q.unsaved():
        before = rows_read(q)
        q.execute("select faultline.break_group_deadlocks()")
        read = rows_read(q) - before
    if read > _FEW:
        raise AssertionError(f"break_group_deadlocks read {read} rows beside a backlog of 1000")
