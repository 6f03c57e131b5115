"""Plain SQL is a client too: in a loop, in a trigger, in a transaction that is prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline_proof.bench.system import thread_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver


# Two-phase commit


def test_a_transaction_that_sends_no_notification_can_be_prepared(queue: Driver) -> None:
    if queue.value("show max_prepared_transactions") == "0":
        pytest.skip("this server has no two-phase commit")
    queue.connection.execute("select faultline.heartbeat('w', 'h', 1, 'v', array['default'], array['default'])")
    queue.connection.execute("listen faultline")

    queue.connection.execute("begin")
    queue.connection.execute("set local faultline.notify = off")
    queue.connection.execute("select faultline.enqueue('t')")
    queue.connection.execute("""select faultline.enqueue_many('[{"task": "t"}, {"task": "t"}]')""")
    queue.connection.execute("prepare transaction 'two phases'")
    queue.connection.execute("commit prepared 'two phases'")

    assert len(queue.claim()) == 3
    assert list(queue.connection.notifies(timeout=0)) == []
    queue.enqueue()
    assert len(list(queue.connection.notifies(timeout=0))) == 1


# Cost

_BARE = (
    "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args, queue,"
    " task, args) values (gen_random_uuid(), now(), now(), 30, 0, 5, true, 'default', 'mail', '{\"to\": \"ada\"}')"
)
_ENQUEUE = "faultline.enqueue('mail', jsonb_build_object('to', 'ada'))"


@pytest.mark.long
@pytest.mark.parametrize("sleeping", [False, True])
def test_an_enqueue_in_plain_sql_costs_little_more_than_a_bare_insert(
    queue: Driver, record_property: Callable[[str, object], None], *, sleeping: bool
) -> None:
    queues = "array['default'], array['default']" if sleeping else "array['default']"
    queue.connection.execute(f"select faultline.heartbeat('w', 'h', 1, 'v', {queues})".encode())

    bare, enqueue = costs(queue, [_BARE] * 100, [f"select {_ENQUEUE}"] * 100)

    record_property("figure", f"plain SQL: enqueue costs {enqueue / bare:.1f} times a bare insert")
    # Two is the aim, and 1.6 is usual; to wake a worker costs a NOTIFY more. Planned at every call it was five to seven.
    assert enqueue < 4 * bare


def test_a_trigger_that_enqueues_costs_little_more_than_one_that_inserts(
    queue: Driver, record_property: Callable[[str, object], None]
) -> None:
    for name, does in (("inserts", _BARE), ("enqueues", f"perform {_ENQUEUE}")):
        queue.connection.execute(
            f"create table {name} (id integer);"
            f"create function {name}() returns trigger language plpgsql as $f$ begin {does}; return new; end $f$;"
            f"create trigger it after insert on {name} for each row execute function {name}()".encode()
        )
    queue.connection.execute("select faultline.heartbeat('w', 'h', 1, 'v', array['default'])")

    bare, enqueue = costs(
        queue, *([f"insert into {name} select generate_series(1, 1000)"] for name in ("inserts", "enqueues"))
    )

    record_property("figure", f"a trigger: enqueue costs {enqueue / bare:.1f} times an insert")
    assert enqueue < 5 * bare


def costs(queue: Driver, *runs: list[str]) -> list[float]:
    """The CPU of the server's own process for each, the best of several tries: other processes take only time from it."""
    backend = queue.connection.info.backend_pid
    best = [float("inf")] * len(runs)
    for _ in range(8):
        for place, statements in enumerate(runs):
            before = thread_cpu_seconds(backend)
            for statement in statements:
                queue.connection.execute(statement.encode(), prepare=False)
            best[place] = min(best[place], thread_cpu_seconds(backend) - before)
    return best
