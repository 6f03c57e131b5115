"""Checking the invariants takes time in proportion to the rows, whatever the planner hopes for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from faultline.store import verbs
from faultline.store.install import constraints
from faultline.store.reads import doctor_queries, invariants

if TYPE_CHECKING:
    from faultline.store.statement import Statement
    from tests.driver import Driver

JOBS = 3_000


def fill(queue: Driver) -> None:
    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute(
            "insert into faultline.ledger select faultline.new_id(n), 1, now(), now(), now(), 0, 1, 5, 'w/1', 'default',"
            " 't', null, '{}', null from generate_series(1, %s) n",
            (JOBS,),
        )
        queue.connection.execute("insert into faultline.steps select job_id, 's', 1, now() from faultline.ledger")
        queue.connection.execute(
            "insert into faultline.journal (at, job_id, event, fencing_token, owner)"
            " select now(), job_id, 'attempt_failed', 1, 'w/1' from faultline.ledger"
        )
        queue.connection.execute(
            "insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)"
            " select now(), job_id, 'stale_write_blocked', 1, 'w/1', '{\"current_token\": null}' from faultline.ledger"
        )
        queue.connection.execute(
            "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
            " queue, task, args, idempotency_key) select faultline.new_id(n), now(), now(), 30, 0, 5, true, 'default', 't',"
            " '{}', 'k' || n from generate_series(1, %s) n",
            (JOBS,),
        )
        queue.connection.execute(
            "insert into faultline.keys select idempotency_key, id, '', created_at from faultline.open_jobs"
        )


@pytest.mark.parametrize("statistics", ["none", "fresh"])
@pytest.mark.parametrize("name", [name for name in invariants.names() if name.startswith("a_")])
def test_no_row_is_compared_with_each_of_another_table(queue: Driver, name: str, statistics: str) -> None:
    """A nested loop is fine where its inner side is found by an index."""
    fill(queue)
    if statistics == "fresh":
        queue.connection.execute("analyze")
    statement = invariants.invariant(name)

    plan = queue.value(f"explain (analyze, timing off, format json) {statement.sql.replace('%%', '%')}")

    assert read(plan[0]["Plan"]) < 20 * JOBS


@pytest.mark.parametrize("statistics", ["none", "fresh"])
@pytest.mark.parametrize(
    "statement",
    [
        doctor_queries.lost_history(),
        doctor_queries.waiting(),
        doctor_queries.waiting_tasks(),
        doctor_queries.overdue(),
        doctor_queries.failed(),
        constraints.numbering(),
    ],
    ids=lambda statement: statement.name,
)
def test_no_other_question_of_the_doctor_takes_more_than_its_rows(
    queue: Driver, statement: Statement[Any], statistics: str
) -> None:
    fill(queue)
    if statistics == "fresh":
        queue.connection.execute("analyze")

    plan = queue.value(f"explain (analyze, timing off, format json) {statement.sql}", *statement.params)

    assert read(plan[0]["Plan"]) < 20 * JOBS


def read(node: dict[str, Any]) -> float:
    """How many rows all parts of a plan have taken up or thrown away."""
    here = sum(float(node.get(what, 0)) for what in ("Actual Rows", *(f"Rows Removed by {by}" for by in _THROWN_AWAY)))
    return here * float(node["Actual Loops"]) + sum(map(read, node.get("Plans", [])), 0.0)


_THROWN_AWAY = ("Filter", "Join Filter", "Index Recheck")


@pytest.mark.parametrize("done", [True, False], ids=["done", "open"])
def test_a_record_with_a_greater_token_than_its_job_is_noticed(queue: Driver, *, done: bool) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    queue.run(verbs.step(lease, "s", 1))
    if done:
        queue.complete(lease)
    assert queue.broken_invariants() == []

    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute("update faultline.steps set fencing_token = 2")

    assert queue.broken_invariants() == ["tokens_only_increase"]
