"""Frozen time and scratch databases: what a test does to them is undone, and nothing is done to anyone else's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline import ConfigError, Faultline, SchemaError
from faultline.store import verbs
from faultline.store.reads import invariants, views
from faultline.testing import frozen_time, scratch_database
from tests.waiting import auntil

if TYPE_CHECKING:
    from datetime import datetime

    from faultline.store.statement import Statement
    from tests.driver import Clock, Driver, Sessions


def broken(app: Faultline) -> list[str]:
    return [violation.invariant for violation in invariants.violations(app.database.run)]


def test_time_stands_still_for_every_session_until_it_is_moved(app: Faultline, queue: Driver) -> None:
    with frozen_time(app) as time:
        began = time.now
        seen = [queue.value("select faultline.now()"), app.database.run(views.clock())]
        time.advance(90)
        later = [queue.value("select faultline.clock()"), app.database.run(views.clock())]

    assert seen == [began, began]
    assert [(at - began).total_seconds() for at in [*later, time.now]] == [90, 90, 90]


def test_a_lease_runs_out_when_time_is_moved_past_it(app: Faultline, queue: Driver) -> None:
    with frozen_time(app) as time:
        queue.enqueue(lease_seconds=30)
        queue.claim_one()
        time.advance(29)
        early = queue.reap()
        time.advance(2)
        late = queue.reap()

    assert (len(early), len(late)) == (0, 1)


def test_afterwards_times_come_from_the_server_clock_again(app: Faultline) -> None:
    with frozen_time(app) as time:
        time.advance(3600)
        frozen = broken(app)

    assert frozen == ["times_come_from_the_server_clock"]
    assert broken(app) == []
    assert app.database.run(views.clock()) < time.now


def test_a_test_that_fails_gives_the_clock_back_too(app: Faultline, queue: Driver) -> None:
    with pytest.raises(ZeroDivisionError), frozen_time(app):
        # It may even have cut every connection.
        queue.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        _ = 1 / 0

    assert broken(app) == []


def test_a_clock_that_a_killed_test_left_behind_is_put_right_by_the_next(app: Faultline, clock: Clock) -> None:
    left_behind = broken(app)

    with frozen_time(app):
        pass

    assert (left_behind, broken(app)) == (["times_come_from_the_server_clock"], [])


def test_a_dsn_will_do(dsn: str, queue: Driver) -> None:
    with frozen_time(dsn) as time:
        assert queue.value("select faultline.now()") == time.now


def test_time_never_goes_back(app: Faultline) -> None:
    with frozen_time(app) as time:
        began = time.now
        with pytest.raises(ConfigError, match="cannot be moved by -1 s: it only moves forward"):
            time.advance(-1)
        time.advance_to(began)

        assert time.now == began


def test_a_database_whose_name_does_not_say_test_is_left_alone(dsn: str) -> None:
    other = make_conninfo(dsn, dbname="postgres")

    with (
        pytest.raises(ConfigError, match=r"frozen in postgres: .* neither test nor scratch\. .* test_database=True"),
        frozen_time(other),
    ):
        pytest.fail("frozen")
    with pytest.raises(SchemaError, match="run: faultline migrate"), frozen_time(other, test_database=True):
        pytest.fail("frozen")


def test_a_database_where_others_are_at_work_is_left_alone(app: Faultline, sessions: Sessions) -> None:
    watched = sessions.open()
    watched.connection.execute("select pg_advisory_lock(faultline.worker_lock('watched'))")
    for name in ("watched", "behind a pooler"):
        app.database.run(heartbeat(name, watched=name == "watched"))

    with pytest.raises(ConfigError, match="behind a pooler on elsewhere, process 1; watched on") as error, frozen_time(app):
        pytest.fail("frozen")

    assert "Stop them" in str(error.value)
    assert broken(app) == []


def test_a_dead_worker_and_this_process_own_are_no_strangers(app: Faultline) -> None:
    app.database.run(heartbeat("killed", watched=True))

    async def story() -> None:
        async with app.worker({"default": 1}) as worker:
            await auntil(lambda: not (worker.id not in app.database.run(views.workers())))
            with frozen_time(app):
                pass

    asyncio.run(story())


def heartbeat(name: str, *, watched: bool) -> Statement[datetime]:
    return verbs.heartbeat(name, host="elsewhere", pid=1, version="1", queues=["default"], sleeping=[], watched=watched)


def test_time_is_in_one_tests_hands(app: Faultline) -> None:
    with frozen_time(app), pytest.raises(ConfigError, match=r"is already frozen in faultline_test_\w+"), frozen_time(app):
        pytest.fail("frozen twice")
    with frozen_time(app):
        pass


def test_who_does_not_own_the_schema_is_told_so(dsn: str, queue: Driver) -> None:
    as_viewer = make_conninfo(dsn, options="-c role=faultline_worker")

    with pytest.raises(ConfigError, match="only the owner of the schema faultline"), frozen_time(as_viewer):
        pytest.fail("frozen")

    assert queue.broken_invariants() == []


def test_a_scratch_database_is_migrated_obviously_for_tests_and_gone_afterwards(dsn: str) -> None:
    with scratch_database(dsn) as made, Faultline(made) as app:
        assert broken(app) == []
        with frozen_time(app):
            name = conninfo_to_dict(made)["dbname"]

    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from pg_database where datname = %s", (name,)).fetchone()
    assert row == (0,)
