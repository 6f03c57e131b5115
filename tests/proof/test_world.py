"""The simulated world: sound under every seed, repeatable to the last statement, and not blind."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faultline.store.install import migrate
from faultline_proof.faults import Rule
from faultline_proof.world.flows import CHILDREN
from faultline_proof.world.limits import TICKED
from faultline_proof.world.simulate import played_again, simulate
from faultline_proof.world.storm import DEFAULT, KINDS
from faultline_proof.world.story import DOOMED, jobs_with

if TYPE_CHECKING:
    from faultline_proof.world.world import Outcome
    from tests.conftest import Servers

pytestmark = pytest.mark.long

SEEDS = 30
SEEDS_ALONE = 8


@pytest.fixture(scope="module")
def alone(servers: Servers) -> list[Outcome]:
    """The first seeds, one after the other."""
    server_dsn = make_conninfo(servers.template("default"), dbname="postgres")
    return list(simulate(server_dsn, range(SEEDS_ALONE), processes=1, keep_history=True))


def test_every_seed_keeps_the_promises_and_every_kind_of_fault_took_effect(dsn: str, alone: list[Outcome]) -> None:
    outcomes = [*alone, *simulate(dsn, range(SEEDS_ALONE, SEEDS))]

    assert {outcome.seed: outcome.broken for outcome in outcomes if outcome.broken} == {}
    assert len(outcomes) == SEEDS
    faults: Counter[str] = sum((Counter(outcome.faults) for outcome in outcomes), Counter())
    assert {kind for kind, times in faults.items() if times} == {"lost messages", *(kind for kind in DEFAULT if KINDS[kind])}
    succeeded: Counter[str] = sum((Counter(outcome.succeeded) for outcome in outcomes), Counter())
    assert set(succeeded) == {*jobs_with(DEFAULT), *CHILDREN, *TICKED} - DOOMED, "a task that never succeeds shows nothing"
    assert sum(outcome.refused for outcome in outcomes) > SEEDS  # stale writes were tried, and refused


def test_a_seed_is_a_history_whoever_else_is_played_beside_it(dsn: str, alone: list[Outcome]) -> None:
    with psycopg.connect(dsn) as somebody:
        # A transaction anywhere on the server keeps dead rows in their places, so new ones come to lie elsewhere.
        somebody.execute("select pg_current_xact_id()")
        differences = list(played_again(dsn, alone))

    assert differences == []
    assert len({outcome.digest for outcome in alone}) == len(alone)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not KINDS[kind]])
def test_a_kind_of_jobs_can_be_played_without_any_fault(dsn: str, kind: str) -> None:
    outcomes = list(simulate(dsn, range(2), processes=1, faults=(kind,)))

    assert {outcome.seed: outcome.broken for outcome in outcomes if outcome.broken} == {}
    assert [outcome.faults.keys() for outcome in outcomes] == [{"lost messages"}] * 2


def test_a_seed_that_had_another_history_is_told_of(dsn: str) -> None:
    (sound,) = simulate(dsn, range(3, 4), processes=1, keep_history=True)
    forged = dataclasses.replace(
        sound, digest="another", history=[*sound.history[:9], "something else", *sound.history[10:]]
    )

    (difference,) = played_again(dsn, [forged])

    assert "seed 3 had two histories" in difference
    assert "something else" in difference
    assert sound.history[9] in difference


#: What is taken out of which function, what stands there instead, and the promise that is broken by it.
MUTANTS = {
    "a completion that does not fence": (
        "complete",
        ("j.fencing_token = l.token and j.lease_owner = l.owner", "true"),
        "",
    ),
    "a claim that grants more than a group may": (
        "list_ready_groups",
        ("l.cap - g.holding, ", ""),
        Rule.LIMIT_KEPT,
    ),
    "a failure that gives the permit of a job in order back": (
        "free_permits",
        ("      new.has_permit := true;\n      freed_group := false;\n", "      null;\n"),
        Rule.GROUP_ORDER,
    ),
    "a take that takes nothing": (
        "take_budget",
        ("    bucket.tokens := bucket.tokens - take_budget.cost;\n", ""),
        Rule.BUDGET_KEPT,
    ),
    "a take that wastes tokens": (
        "take_budget",
        (
            "    bucket.tokens := bucket.tokens - take_budget.cost;",
            "    bucket.tokens := bucket.tokens - 2 * take_budget.cost;",
        ),
        Rule.BUDGET_WHOLE,
    ),
    "a tick that leaves moments out": (
        "tick",
        (
            "  set next_at = tick.next_at,",
            "  set next_at = tick.next_at + (tick.next_at - coalesce(last_due, tick.next_at)),",
        ),
        Rule.TICK_ONCE,
    ),
    "the job of a tick that does not wait for the one before": (
        "wait_behind",
        ("set suspended = true, next_run_at = '9999-01-01Z', in_group", "set in_group"),
        Rule.TICK_ALONE,
    ),
    "a running job that stands in for another": (
        "insert_unique_jobs",
        ("where j.id = known.job_id and coalesce(j.state, '') = 'queued'\n", "where j.id = known.job_id\n"),
        Rule.UNIQUE_RUN,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_protocol_without_its_guard_is_found_out(dsn: str, name: str) -> None:
    function, (guard, instead), promise = MUTANTS[name]
    sound = migrate.definitions().text
    start = sound.index(f"create or replace function faultline.{function}(")
    text = sound[start : sound.index("$$;", start) + 3]
    assert guard in text

    played = simulate(dsn, range(60), mutant=text.replace(guard, instead))
    broken = next((outcome for outcome in played if any(promise in what for what in outcome.broken)), None)

    assert broken is not None
    assert broken.history, "it is told"
