"""A queue with limits never stands still: what may start starts, whatever came in before or is gone again."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Limit
from faultline.store.database import run_on
from faultline.store.reads import invariants
from faultline.store.verbs import limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.driver import Driver, Sessions

#: A worker that rested between its claims would need many times as long.
BOUND = 0.25
PATIENT_BOUND = 10 * BOUND
PATIENCE = 60.0
_calls = itertools.count(1)


def declare(queue: Driver, /, **declared: Any) -> None:
    queue.execute("select faultline.declare_queue('mail', %s::jsonb)", json.dumps(declared))


def put(queue: Driver, groups: Iterable[str], **fields: Any) -> None:
    jobs = [{"task": "note", "queue": "mail", "group": group, **fields} for group in groups]
    for part in range(0, len(jobs), 5000):
        queue.execute("select count(*) from faultline.enqueue_many(%s::text)", json.dumps(jobs[part : part + 5000]))


def take(queue: Driver, most: int) -> list[tuple[Any, ...]]:
    """Claim: of each job its id, token, owner, group and number."""
    owner = f"w/{next(_calls)}"
    rows = queue.execute(
        "select job_id, fencing_token, %s, group_key, args ->> 'n' from faultline.claim('mail', %s, %s)"
        " order by group_key, next_run_at, job_id",
        owner,
        owner,
        most,
    )
    return list(rows)


def done(queue: Driver, held: list[tuple[Any, ...]]) -> None:
    ids, tokens, owners = ([one[column] for one in held] for column in range(3))
    refused = queue.execute("select * from faultline.complete(%s::uuid[], %s::bigint[], %s::text[])", ids, tokens, owners)
    assert refused == []


def seconds_to_next_turn(queue: Driver) -> float | None:
    return queue.run(limit.next_claim_at("mail"))


@pytest.mark.parametrize("each", [1, 10_000])
def test_freed_permits_are_granted_at_once_whatever_came_in_before(queue: Driver, each: int) -> None:
    declare(queue, queue={"concurrency": 10})
    put(queue, (f"g{n % each}" for n in range(10_000)))
    held = take(queue, 10)

    for _ in range(30):
        assert len(held) == 10
        assert take(queue, 10) == []
        done(queue, held)
        held = take(queue, 10)

    assert run_on(queue.connection, invariants.invariant("permits_are_counted")) is None


def test_what_a_claim_hears_of_is_bounded_also_where_nothing_may_be_granted(queue: Driver) -> None:
    declare(queue, queue={"concurrency": 1})
    put(queue, (f"g{n}" for n in range(5_000)))
    take(queue, 1)

    assert take(queue, 1) == []

    assert queue.value("select count(*) from faultline.groups") == 1_000


def test_who_stopped_looking_comes_again_at_once_and_who_may_have_nothing_does_not(queue: Driver) -> None:
    declare(queue, each_group={"concurrency": 1})
    put(queue, ["full", "full"])
    held = take(queue, 10)
    for _ in range(110):  # an event of a hundred groups each
        queue.execute(
            "insert into faultline.group_events (queue, arrival, group_count, group_keys, priorities, run_ats)"
            " select 'mail', true, 100, array_agg('full'::text), array_agg(0::smallint), array_agg(now())"
            " from generate_series(1, 100)"
        )

    assert take(queue, 10) == []
    assert seconds_to_next_turn(queue) == float("-inf")
    assert take(queue, 10) == []
    assert seconds_to_next_turn(queue) is None
    done(queue, held)
    assert len(take(queue, 10)) == 1


def gone(queue: Driver, how: str, number: int, sessions: Sessions) -> None:
    """So many groups with a job each that is cancelled or expired."""
    put(queue, (f"g{n}" for n in range(number)), **({"expires_seconds": 0.01} if how == "expired" else {}))
    if how == "cancelled after upkeep has heard of them":
        while queue.value("select count(*) from faultline.groups") < number:
            queue.execute("select faultline.maintain_limits()")
    if how != "expired":
        # To cancel so many one by one would take a minute: their rows are gone, as after that.
        sessions.hand.execute("delete from faultline.open_jobs")


GONE = ["cancelled", "expired", "cancelled after upkeep has heard of them"]


@pytest.mark.parametrize("slots", [1, 10])
@pytest.mark.parametrize("how", GONE)
def test_two_claims_find_a_job_behind_twenty_thousand_groups_whose_jobs_are_gone(
    queue: Driver, sessions: Sessions, how: str, slots: int
) -> None:
    declare(queue, each_group={"concurrency": 1})
    gone(queue, how, 20_000, sessions)
    put(queue, ["fresh"])

    found = [one[3] for _ in range(3) for one in take(queue, slots)]

    assert found == ["fresh"]
    assert queue.value("select count(*) from faultline.groups where ready") == 0


@pytest.mark.parametrize("slots", [1, 10])
def test_a_worker_starts_a_job_behind_groups_whose_jobs_are_gone_at_once(
    app: Faultline, queue: Driver, sessions: Sessions, slots: int
) -> None:
    times: list[float] = []
    app.queue("mail", each_group=Limit(concurrency=1))

    @app.task(name="note", queue="mail", group="{group}")
    async def note(group: str) -> None:
        times.append(time.monotonic())

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            stack.push_async_callback(app.async_database.close)
            await stack.enter_async_context(app.worker({"mail": slots}))
            await (await note.aenqueue("first")).aresult(PATIENCE)
            # In one transaction: the worker hears of none before they are gone.
            with queue.connection.transaction():
                gone(queue, "expired", 20_000, sessions)
            times.append(time.monotonic())
            await (await note.aenqueue("fresh")).aresult(PATIENCE)

    app.declare()
    asyncio.run(main())

    assert times[2] - times[1] < PATIENT_BOUND


@pytest.mark.parametrize("each_group", [{"concurrency": 1}, {"ordered": True}])
def test_jobs_enqueued_before_a_declaration_keep_their_order_in_their_groups(
    queue: Driver, each_group: dict[str, Any]
) -> None:
    def enqueue(group: str, numbers: Iterable[int]) -> None:
        for n in numbers:
            put(queue, [group], args={"n": n})

    put(queue, ["a"] * 3_000)
    enqueue("b", range(3))
    declare(queue, each_group=each_group)
    enqueue("b", range(3, 6))

    order = []
    while held := take(queue, 10):
        order += [int(one[4]) for one in held if one[3] == "b"]
        done(queue, held)
        if len(order) == 6:
            break

    assert order == list(range(6))


def test_who_is_heard_of_later_stands_behind_also_if_nothing_was_granted_in_between(queue: Driver) -> None:
    declare(queue, queue={"concurrency": 1})
    put(queue, ["first"])
    held = take(queue, 1)
    put(queue, ["x", "y", "z"])
    assert take(queue, 1) == []
    put(queue, ["a"])
    assert take(queue, 1) == []

    order = []
    for _ in range(4):
        done(queue, held)
        held = take(queue, 1)
        order += [one[3] for one in held]

    assert order[-1] == "a"


def test_turns_are_brought_back_before_a_double_loses_the_steps_between_them(queue: Driver, sessions: Sessions) -> None:
    declare(queue, queue={"concurrency": 1})
    put(queue, ["first"])
    done(queue, take(queue, 1))
    sessions.hand.execute(
        "update faultline.limited_queues"
        " set virtual_time = virtual_time + 2e10, arrival_virtual_time = arrival_virtual_time + 2e10"
    )
    sessions.hand.execute("update faultline.groups set virtual_time = virtual_time + 2e10")
    queue.execute("select faultline.maintain_limits()")

    put(queue, ["y"])
    held = take(queue, 1)
    put(queue, ["z"])
    assert take(queue, 1) == []
    done(queue, held)
    put(queue, ["a"])
    order = []
    for n in range(6):
        held = take(queue, 1)
        order += [one[3] for one in held]
        put(queue, [f"a{n}", f"b{n}"])
        assert take(queue, 1) == []
        done(queue, held)

    assert "z" in order
    assert queue.value("select max(virtual_time) from faultline.limited_queues") < 1_000
