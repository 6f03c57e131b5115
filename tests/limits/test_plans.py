"""A claim of a queue with limits reads what it grants and what has happened, in a session that began on empty tables too.

Counted in rows and index entries, not in time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from faultline_proof.probes.flow_plans import rows_read

if TYPE_CHECKING:
    from tests.driver import Driver, Sessions

FULL = 2_000
#: What may be read for a claim of one job. Measured: 40 at most.
FEW = 100
#: Each group has a limit of its own besides.
DECLARED = {"each_group": {"concurrency": 1}}
OWN = {**DECLARED, "groups": {f"full-{n}": {"weight": 2} for n in range(FULL)}}


def enqueue(queue: Driver, groups: list[str]) -> None:
    jobs = [{"task": "t", "queue": "q", "group": group} for group in groups]
    queue.execute("select count(*) from faultline.enqueue_many(%s::text)", json.dumps(jobs))


def claim(queue: Driver, owner: str, most: int) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = queue.execute(
        "select job_id, fencing_token, %s::text, group_key from faultline.claim('q', %s, %s)",
        owner,
        owner,
        most,
    )
    return found


def complete(queue: Driver, held: list[tuple[Any, ...]]) -> None:
    ids, tokens, owners = ([row[at] for row in held] for at in range(3))
    queue.execute("select * from faultline.complete(%s::uuid[], %s::bigint[], %s::text[])", ids, tokens, owners)


@pytest.mark.parametrize("vacuumed", [False, True])
@pytest.mark.parametrize("declared", [DECLARED, OWN], ids=["each group", "own limits"])
def test_a_claim_beside_full_groups_reads_little(
    queue: Driver, sessions: Sessions, declared: dict[str, Any], *, vacuumed: bool
) -> None:
    filler = sessions.open()
    filler.execute("select faultline.declare_queue('q', %s::jsonb)", json.dumps(DECLARED))
    if vacuumed:
        for name in ("open_jobs", "groups", "group_events", "limits", "limited_queues"):
            filler.execute(f"vacuum analyze faultline.{name}")
    for number in range(3):  # plans are made
        enqueue(queue, ["a", "b"])
        complete(queue, claim(queue, f"early/{number}", 10))
    filler.execute("select faultline.declare_queue('q', %s::jsonb)", json.dumps(declared))
    enqueue(filler, [f"full-{n}" for n in range(FULL)] * 2)
    # A few at a time: those of the last claim may be read again.
    held: list[tuple[Any, ...]] = []
    while more := claim(filler, f"filler/{len(held)}", 10):
        held += more
    assert len(held) == FULL

    found = {}
    enqueue(queue, ["a"])
    for name, what in (("of a new job", None), ("of a freed permit", held[7]), ("of nothing", None)):
        if what is not None:
            complete(filler, [what])
        queue.begin()
        before = rows_read(queue)
        got = claim(queue, f"late/{name}", 10)
        found[name] = rows_read(queue) - before
        queue.commit()
        assert [row[3] for row in got] == {"of a new job": ["a"], "of a freed permit": [held[7][3]], "of nothing": []}[name]

    assert max(found.values()) < FEW, found


def test_counts_are_looked_at_without_a_lock_and_beside_a_claim_that_is_open(sessions: Sessions) -> None:
    queue, claimer = sessions.open(), sessions.open()
    queue.execute("select faultline.declare_queue('q', %s::jsonb)", json.dumps(DECLARED))
    enqueue(queue, [f"g{n}" for n in range(30)])
    complete(queue, claim(queue, "w/1", 10)[:3])
    claimer.begin()

    assert len(claim(claimer, "w/2", 10)) == 10
    assert sessions.at_once(queue, lambda q: q.value("select faultline.is_miscounted('q')")) is False

    claimer.commit()
    assert queue.value("select faultline.is_miscounted('q')") is False
    sessions.hand.execute("update faultline.groups set holding = 3 where group_key = 'g7'")
    assert queue.value("select faultline.is_miscounted('q')") is True


#: Any plan that may have parallel workers has them.
EAGER = ("parallel_setup_cost = 0", "parallel_tuple_cost = 0", "min_parallel_index_scan_size = 0")
WORKERS_STARTED = "select parallel_workers_to_launch from pg_stat_database where datname = current_database()"


def test_no_claim_starts_parallel_workers(queue: Driver, sessions: Sessions) -> None:
    """To start them takes longer than a claim of a hundred jobs."""
    if queue.connection.info.server_version < 18_00_00:
        pytest.skip("before PostgreSQL 18, the server does not count them")
    queue.execute("select faultline.declare_queue('q', %s::jsonb)", json.dumps({"each_group": {}}))
    enqueue(queue, ["hot"] * 50_000)
    queue.execute("vacuum analyze faultline.open_jobs")
    for setting in EAGER:
        queue.execute(f"alter database {queue.connection.info.dbname} set {setting}")

    late = sessions.open()
    for number in range(10):
        assert len(claim(late, f"w/{number}", 10)) == 10
        late.execute("select faultline.next_claim_at('q')")
        late.execute("select faultline.due('{q}', '{}', '{}', '{}', '{}')")

    late.execute("select pg_stat_force_next_flush()")
    assert late.value(WORKERS_STARTED) == 0


def test_no_verb_that_is_planned_by_hand_may_start_any(queue: Driver) -> None:
    settings = "select proname, proconfig from pg_proc where pronamespace = 'faultline'::regnamespace and prosecdef"
    found = {name: config for name, config in queue.execute(settings) if config and "enable_seqscan=off" in config}

    assert len(found) > 20
    assert [name for name, config in found.items() if "max_parallel_workers_per_gather=0" not in config] == []
