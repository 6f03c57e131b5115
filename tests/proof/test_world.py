"""The simulated world: sound under every seed, repeatable to the last statement, and not blind."""

from __future__ import annotations

from collections import Counter

from faultline.proof.world.simulate import simulate
from faultline.store import migrate

SEEDS = 40


def test_every_seed_keeps_the_promises_and_every_kind_of_fault_took_effect(dsn: str) -> None:
    outcomes = list(simulate(dsn, range(SEEDS)))

    assert {outcome.seed: outcome.broken for outcome in outcomes if outcome.broken} == {}
    assert len(outcomes) == SEEDS
    faults: Counter[str] = sum((Counter(outcome.faults) for outcome in outcomes), Counter())
    assert set(faults) == {"crash", "freeze", "cut off", "slow", "restart", "lost messages"}
    assert sum(outcome.refused for outcome in outcomes) > SEEDS  # stale writes were tried, and refused


def test_a_seed_is_a_history(dsn: str) -> None:
    first, second = (
        {outcome.seed: (outcome.digest, outcome.history) for outcome in simulate(dsn, [3, 7], keep_history=True)}
        for _ in range(2)
    )
    assert first == second
    assert first[3] != first[7]


def test_a_protocol_without_the_fence_is_found_out(dsn: str) -> None:
    sound = migrate.definitions().text
    start = sound.index("create or replace function faultline.complete(")
    complete = sound[start : sound.index("$$;", start) + 3]
    unfenced = complete.replace("where j.fencing_token = l.token and j.lease_owner = l.owner", "where true")
    assert unfenced != complete

    broken = next((outcome for outcome in simulate(dsn, range(60), mutant=unfenced) if outcome.broken), None)

    assert broken is not None
    assert any(" complete " in line for line in broken.history)
