"""The explorer finds nothing in the sound protocol, and finds the guard that was taken out of a broken one."""

from __future__ import annotations

from itertools import permutations

import pytest

from faultline.core.errors import ConfigError
from faultline.store.install import migrate
from faultline_proof.explorer import FLOW_SCENARIOS, LIMIT_SCENARIOS, SCENARIOS, explore
from faultline_proof.explorer.orders import DrawnOrders, Orders

pytestmark = pytest.mark.long

#: function, what is taken out, what stands there instead, where it is noticed, how
MUTANTS = {
    "a completion that does not compare the lease": (
        "complete",
        ("j.fencing_token = l.token and j.lease_owner = l.owner", "true"),
        "complete-complete-stale",
        "A's complete with token 1 was accepted (token_mismatch): the job is running, token 2",
    ),
    "a failure that does not compare the lease": (
        "fail",
        ("j.fencing_token = l.token and j.lease_owner = l.owner", "true"),
        "fail-reap",
        "A's fail with token 1 was accepted (lease_lost): the job is queued, token 1",
    ),
    "a fence without a lock": (
        "fence",
        ("\n  for update;", ";"),
        "fence-reap",
        "A's fence with token 1 was committed (lease_lost): the job is queued, token 1",
    ),
    "a fence that asks the clock before its lock": (
        "fence",
        ("faultline.clock()", "faultline.now()"),
        "fence-wait-expiry",
        "A's fence with token 1 was let through (lease_expired): the job is running, token 1",
    ),
    "a fence with a foreign key's lock": (
        "fence",
        ("\n  for update;", "\n  for key share;"),
        "fence-again",
        "in the end its effect exists 2 times",
    ),
    "a step that does not lock its job": (
        "lock_lease",
        ("\n  for update;", ";"),
        "step-reap",
        "A's step with token 1 was committed (lease_lost): the job is queued, token 1",
    ),
    "a claim that waits for locked jobs": (
        "claim",
        ("for update skip locked", "for update"),
        "claim-claim",
        "claim waits for a lock, and should skip what is locked",
    ),
    "a claim that reads the floor before its statement": (
        "claim",
        (
            "(select s.token_floor from faultline.settings s)",
            "read_before",
            "  remaining integer := ",
            "  read_before constant bigint := (select s.token_floor from faultline.settings s);\n  remaining integer := ",
        ),
        "claim-recover",
        "of a job whose last one is 0, and the floor is",
    ),
    "a claim without the floor": (
        "claim",
        ("greatest(j.fencing_token, (select s.token_floor from faultline.settings s))", "j.fencing_token"),
        "enqueue-again-prune",
        "B was granted token 1 of a job whose last one is 0, and the floor is 3",
    ),
    "a recover that lets claims go on": (
        "recover",
        ("  lock table faultline.open_jobs in exclusive mode;\n", ""),
        "claim-recover",
        "of a job whose last one is 0, and the floor is",
    ),
    "a refusal without a record": (
        "refuse",
        ("where g.reason <> 'busy'", "where false"),
        "complete-complete-stale",
        "in the end its journal should be",
    ),
    "a key whose loser is not told the winner's job": (
        "insert_or_find_jobs",
        (
            (
                "select r.ids, r.news into ids, news from faultline.resolve_known(insert_or_find_jobs.jobs, ids, news,"
                " answered) r;"
            ),
            "null;",
        ),
        "enqueue-key",
        "B's enqueue made a second job for one key",
    ),
    "keys taken in the order of the submission": (
        "insert_or_find_jobs",
        ("order by p.idempotency_key, p.ordinal", "order by p.ordinal"),
        "enqueue-keys-crossed",
        "enqueue ended with DeadlockDetected",
    ),
    "a unique job that is not locked for who is answered with it": (
        "insert_unique_jobs",
        ("    for update skip locked;\n    is_queued", ";\n    is_queued"),
        "unique-look-claim",
        "no run has seen what was committed by a",
    ),
    "a unique job that stands in when it is cancelled": (
        "insert_unique_jobs",
        ("where j.id = known.job_id and coalesce(j.state, '') = 'queued'\n", "where j.id = known.job_id\n"),
        "unique-cancel",
        "no run has seen what was committed by a",
    ),
    "a unique job that is not replaced": (
        "renew_unique",
        ("args = case when replaces then renew_unique.args else j.args end", "args = j.args"),
        "unique-replace-claim",
        "came last",
    ),
    "a unique job that waits again beside the one in its place": (
        "supersede",
        ("    where j.state = 'queued'\n      and j.flow_id", "    where false\n      and j.flow_id"),
        "unique-supersede-retry",
        "2 jobs of one key wait, and 1 may",
    ),
    "a take that does not lock its budget": (
        "take_budget",
        ("where b.name = take_budget.budget for update;", "where b.name = take_budget.budget;"),
        "budget-two-takers",
        "was taken and",
    ),
    "a take that is not remembered": (
        "take_budget",
        ("then\n    return query select 'taken',", "and false then\n    return query select 'taken',"),
        "budget-take-again",
        "was taken and",
    ),
    "a take without a lease": (
        "take_budget",
        (
            "if not faultline.lock_lease(take_budget.job_id, take_budget.fencing_token, take_budget.owner) then",
            "if false then",
        ),
        "budget-take-expiry",
        "after its lease was taken back",
    ),
    "a run that does not see that a budget was raised": (
        "budget_raised_since_asked",
        ("    for share of b\n", ""),
        "budget-wait-raise",
        "wait for ever",
    ),
    "a claim that looks what is open after it has looked for events": (
        "apply_group_events",
        (
            "pg_snapshot_xmax(before)",
            "pg_snapshot_xmax(pg_current_snapshot())",
            "faultline.open_xids(before, ",
            "faultline.open_xids(pg_current_snapshot(), ",
        ),
        "limit-hear-enqueue",
        "nothing runs, and these wait for ever",
    ),
    "a tick whose job waits for one that somebody is ending": (
        "wait_behind",
        ("  for update skip locked;\n", "  ;\n"),
        "tick-one-complete",
        "tick waits for a lock, and should skip what is locked",
    ),
    "a tick whose job does not wait for the one before": (
        "wait_behind",
        ("set suspended = true, next_run_at = '9999-01-01Z', in_group", "set in_group"),
        "tick-one-release",
        "2 jobs of one schedule run at once",
    ),
    "a submission sent again that does not look into the ledger": (
        "insert_or_find_jobs",
        ("news := faultline.delete_already_completed(ids, news);", ""),
        "enqueue-again-complete",
        "producer's enqueue made a second job for one key",
    ),
}


def mutated(function: str, *changes: str) -> str:
    definitions = migrate.definitions().text
    start = definitions.index(f"create or replace function faultline.{function}(")
    text = definitions[start : definitions.index("$$;", start) + 3]
    for sound, broken in zip(changes[::2], changes[1::2], strict=True):
        assert sound in text
        text = text.replace(sound, broken)
    return text


def silent(_: str) -> None:
    pass


def test_every_order_of_every_scenario_keeps_the_rules(dsn: str) -> None:
    exploration = explore(dsn, most=12, tell=silent)

    assert exploration.broken is None, str(exploration.broken)
    assert str(exploration).endswith("no broken schedule")
    assert [one.scenario for one in exploration.explored] == [*SCENARIOS, *FLOW_SCENARIOS, *LIMIT_SCENARIOS]
    assert exploration.schedules >= 2000
    assert exploration.lock_waits >= 200
    # Only where two transactions take two jobs in opposite order.
    assert [one.scenario for one in exploration.explored if one.deadlocks] == ["crossed-transactions"]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_that_was_taken_out_is_noticed(dsn: str, name: str) -> None:
    function, change, scenario, what = MUTANTS[name]

    broken = explore(dsn, only=scenario, mutant=mutated(function, *change), tell=silent).broken

    assert broken is not None
    assert what in broken.what


def test_a_broken_schedule_is_told_step_by_step(dsn: str) -> None:
    function, change, scenario, _ = MUTANTS["a fence that asks the clock before its lock"]
    told: list[str] = []

    broken = explore(dsn, only=scenario, mutant=mutated(function, *change), tell=told.append).broken

    assert broken is not None
    assert [(line.who, line.step, line.answer) for line in broken.lines[1:]] == [
        ("set-up", "claim", "granted first, token 1"),
        ("operator", "begin", "done"),
        ("operator", "cancel (first)", "cancelled"),
        ("A", "begin", "done"),
        ("A", "fence (first, token 1)", "waits for operator"),
        ("time", "the leases run out", "done"),
        ("operator", "rollback", "done"),
        ("A", "fence (first, token 1)", "done"),
    ]
    assert broken.schedule == ("operator", "A", "time", "operator")
    assert told == [str(broken)]
    assert str(broken).splitlines()[0] == f"{scenario}: BROKEN: {broken.what}"


def test_every_order_is_tried_once() -> None:
    orders, tried = Orders(), []
    while orders.another():
        steps_left, order = {"A": 2, "B": 1, "C": 1}, ""
        while ready := [name for name, left in steps_left.items() if left]:
            name = orders.choose(len(order), ready)
            steps_left[name] -= 1
            order += name
        tried.append(order)

    assert tried == sorted({"".join(order) for order in permutations("AABC")})


def test_drawn_orders_are_all_different_and_the_same_each_time() -> None:
    def drawn() -> list[str]:
        orders, tried = DrawnOrders(5), []
        while orders.another():
            steps_left, order = {"A": 2, "B": 2, "C": 1}, ""
            while ready := [name for name, left in steps_left.items() if left]:
                name = orders.choose(len(order), ready)
                steps_left[name] -= 1
                order += name
            tried.append(order)
        assert orders.drawn
        return tried

    assert len(set(drawn())) == 5
    assert drawn() == drawn()


def test_an_unknown_scenario_is_answered_with_the_known_ones(dsn: str) -> None:
    with pytest.raises(ConfigError, match="there are: claim-claim"):
        explore(dsn, only="tea-party")
