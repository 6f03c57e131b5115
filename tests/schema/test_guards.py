"""A guard that was taken away is noticed by whoever checks the invariants."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import pytest

from faultline.store.install import schema_diff

if TYPE_CHECKING:
    from tests.driver import Driver


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        ("alter table faultline.open_jobs disable trigger token_grows", "the_guards_are_in_place"),
        ("alter table faultline.ledger disable trigger user", "the_guards_are_in_place"),
        ("drop trigger legal_transition on faultline.open_jobs", "the_guards_are_in_place"),
        (
            (
                "create or replace trigger identity_stays before update of renewals on faultline.open_jobs for each row"
                " when (old.id <> new.id) execute function faultline.refuse_change('')"
            ),
            "the_guards_are_in_place",
        ),
        (
            (
                "create or replace trigger token_grows before update of state, fencing_token on faultline.open_jobs"
                " for each row when (false) execute function faultline.refuse_change('')"
            ),
            "the_guards_are_in_place",
        ),
        (
            (
                "drop trigger never_emptied on faultline.keys;"
                " create trigger never_emptied before truncate on faultline.keys for each statement when (false)"
                " execute function faultline.refuse_change('idempotency keys cannot be truncated')"
            ),
            "the_guards_are_in_place",
        ),
        ("alter domain faultline.state drop constraint known_state", "the_guards_are_in_place"),
        ("alter table faultline.ledger drop constraint ledger_pkey", "the_guards_are_in_place"),
    ],
)
def test_a_guard_that_was_taken_away_is_noticed(queue: Driver, damage: str, broken: str) -> None:
    assert queue.broken_invariants(without=()) == []

    queue.connection.execute(damage.encode())

    assert queue.broken_invariants(without=()) == [broken]


@pytest.mark.parametrize(
    "damage",
    ["delete from faultline.keys", "update faultline.keys set job_id = gen_random_uuid()"],
    ids=["lost", "of another"],
)
def test_an_open_job_without_the_row_of_its_key_is_noticed(queue: Driver, damage: str) -> None:
    queue.enqueue()
    queue.enqueue(idempotency_key="k")
    assert queue.broken_invariants() == []

    with queue.connection.transaction():
        queue.connection.execute("set local session_replication_role = replica")
        queue.connection.execute(damage.encode())

    assert queue.broken_invariants() == ["a_key_is_kept_while_its_job_is_open"]


def test_every_trigger_is_known_to_the_invariant_and_to_the_doctor(queue: Driver) -> None:
    triggers = queue.connection.execute(
        "select c.relname || '.' || t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'faultline'::regnamespace and not t.tgisinternal"
    ).fetchall()

    for table in {name.partition(".")[0] for (name,) in triggers}:
        queue.connection.execute(f"alter table faultline.{table} disable trigger all".encode())

    text = resources.files("faultline.schema").joinpath("invariants", "the_guards_are_in_place.sql").read_text()
    missed = {row[0].partition(" of ")[0] for row in queue.connection.execute(text.encode()).fetchall()}
    assert missed == {name for (name,) in triggers}
    guards = queue.run(schema_diff.guards())
    assert set(guards) == {name for (name,) in triggers}


def test_a_clock_that_was_replaced_is_noticed(queue: Driver) -> None:

    queue.connection.execute(
        "create or replace function faultline.clock() returns timestamptz language sql volatile"
        " return '2100-01-01'::timestamptz"
    )

    assert queue.broken_invariants(without=()) == ["times_come_from_the_server_clock"]


def test_now_is_an_index_condition(queue: Driver) -> None:
    queue.connection.execute("set enable_seqscan = off")

    plan = queue.value(
        "explain (format json) select from faultline.open_jobs"
        " where queue = 'q' and state = 'queued' and priority = 0 and next_run_at <= faultline.now()"
    )

    assert "next_run_at <= statement_timestamp()" in str(plan)


def test_guards_are_the_same_after_a_dump_is_restored(queue: Driver) -> None:
    """pg_dump and pg_upgrade write them as PostgreSQL shows them. Read again, they must be shown so."""
    shown = "select t.tgname, c.relname, pg_get_triggerdef(t.oid) from pg_trigger t join pg_class c on c.oid = t.tgrelid"
    shown += " where c.relnamespace = 'faultline'::regnamespace and not t.tgisinternal order by 2, 1"
    with queue.unsaved():
        before = queue.execute(shown)
        for name, table, text in before:
            queue.execute(f'drop trigger "{name}" on faultline."{table}"')
            queue.execute(text)

        assert len(before) > 20
        assert [row for row in queue.execute(shown) if row not in before] == []
