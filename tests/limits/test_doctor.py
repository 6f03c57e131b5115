"""What the doctor, the metrics and a viewer say about limits."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faultline.integrations.prometheus.board import Board
from faultline.integrations.prometheus.exposition import Exposition
from faultline.store.database import Database
from tests.cli.commands import faultline
from tests.limits.test_reads import claim, enqueue, limit
from tests.waiting import until

if TYPE_CHECKING:
    from tests.driver import Driver


def findings(dsn: str) -> list[dict[str, str]]:
    told = json.loads(faultline("doctor", "--json", "--dsn", dsn).stdout)
    return [one for one in told["findings"] if one["check"] == "limits"]


def test_the_doctor_has_nothing_to_say_of_a_database_without_limits(dsn: str) -> None:
    assert [(one["level"], one["found"]) for one in findings(dsn)] == [("ok", "no queue has limits")]


def test_the_doctor_names_a_full_queue(queue: Driver, dsn: str) -> None:
    limit(queue, "mail", "", concurrency=1)
    enqueue(queue, "mail", "a", 3)
    claim(queue, "mail", 5)

    assert [(one["level"], one["found"]) for one in findings(dsn)] == [
        ("note", "mail is full: 1 permit is held, 2 jobs wait")
    ]


def test_the_doctor_names_a_queue_whose_jobs_pass_its_limits_of_groups(queue: Driver, dsn: str) -> None:
    limit(queue, "mail", "*", concurrency=1)
    enqueue(queue, "mail", None, 3)

    [found] = findings(dsn)
    assert found["level"] == "warning"
    assert found["found"].startswith("mail: 3 due jobs have no group")
    assert "--group" in found["todo"]
    assert " 3 " in faultline("limits", "--dsn", dsn).stdout


def test_the_doctor_names_a_prepared_transaction_that_holds_a_queue(queue: Driver, dsn: str) -> None:
    limit(queue, "mail", "", concurrency=1)
    enqueue(queue, "mail", "a")
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("begin")
        other.execute("select * from faultline.claim('mail', 'w/1', 1)")
        other.execute("prepare transaction 'it''s mine'")
        try:
            found = findings(dsn)
        finally:
            other.execute("rollback prepared 'it''s mine'")

    assert found[0]["level"] == "wrong"
    assert "it's mine" in found[0]["found"]
    assert "rollback prepared 'it''s mine'" in found[0]["todo"]


def test_the_doctor_names_a_session_that_works_on_in_a_transaction_that_holds_a_queue(queue: Driver, dsn: str) -> None:
    """Not one that waits for it."""
    limit(queue, "mail", "", concurrency=1)
    enqueue(queue, "mail", "a")

    def sleep(session: psycopg.Connection) -> None:
        with pytest.raises(psycopg.errors.QueryCanceled):
            session.execute("select pg_sleep(600)")

    def wait(session: psycopg.Connection) -> None:
        session.execute("select faultline.set_limit('mail', '', '{\"concurrency\": 2}')")

    with psycopg.connect(dsn) as holder, psycopg.connect(dsn, autocommit=True) as waiter:
        holder.execute("select * from faultline.claim('mail', 'w/1', 1)")
        pid = holder.info.backend_pid
        busy = [threading.Thread(target=sleep, args=(holder,)), threading.Thread(target=wait, args=(waiter,))]
        for thread in busy:
            thread.start()
        try:
            named = until(lambda: [one for one in findings(dsn) if one["level"] == "warning"])
        finally:
            holder.cancel()
            busy[0].join()
            holder.rollback()
            busy[1].join()

    assert [f"process {pid} " in one["found"] for one in named] == [True]
    assert "at work in a transaction" in named[0]["found"]
    assert f"pg_terminate_backend({pid})" in named[0]["todo"]


def test_metrics_are_of_queues_and_never_of_groups(queue: Driver, dsn: str) -> None:
    limit(queue, "mail", "", concurrency=2)
    for name in ("secret-a", "secret-b"):
        enqueue(queue, "mail", name, 3)
    claim(queue, "mail", 5)

    database = Database(make_conninfo(dsn, options="-c role=faultline_viewer"))
    try:
        shown = Exposition(board=Board(database)).render().decode()
    finally:
        database.close()

    for line in (
        'faultline_queue_permits_held{queue="mail"} 2.0',
        'faultline_queue_permits_limit{queue="mail"} 2.0',
        'faultline_queue_groups_jobs_waiting{queue="mail"} 4.0',
        'faultline_queue_groups_waiting{queue="mail"} 2.0',
    ):
        assert line in shown, shown
    assert "secret" not in shown
