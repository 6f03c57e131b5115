"""The doctor: what it finds in a database, and what it makes of what it sees."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline.doctor import checks, login_checks
from faultline.doctor.checks import Finding, Level
from faultline.store import verbs
from faultline.store.reads import logins as stored_logins
from faultline.store.reads.doctor_queries import Overdue, Role, Server, Setting, Slot, Standby, Waiting, WaitingTask
from faultline.store.reads.health import Health, Holder, TableHealth
from faultline.store.reads.overview import SILENT_SECONDS, WorkerLine
from tests.cli.commands import faultline
from tests.versions import pretend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.conftest import NewLogin
    from tests.driver import Driver

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
#: The server of the tests does without it, which the doctor is right to mind.
OF_THE_TEST_SERVER = {"fsync"}


def visit(dsn: str) -> dict[str, Any]:
    asked = faultline("doctor", "--dsn", dsn, "--json")
    told: dict[str, Any] = json.loads(asked.stdout)
    assert asked.returncode == (1 if told["levels"]["wrong"] else 0)
    return told


def of_level(told: dict[str, Any], level: str) -> dict[str, str]:
    """What was found at this level, by check."""
    found = {finding["check"]: finding["found"] for finding in told["findings"] if finding["level"] == level}
    return {check: text for check, text in found.items() if check not in OF_THE_TEST_SERVER}


def test_a_healthy_database_has_nothing_wrong(dsn: str) -> None:
    told = visit(dsn)

    assert of_level(told, "wrong") == {}
    checked = {finding["check"] for finding in told["findings"]}
    assert {"server version", "autovacuum", "schema", "functions", "roles", "snapshots", "bloat", "clock"} <= checked
    assert {"tokens only increase", "the guards are in place"} <= checked


def test_a_guard_that_was_taken_away_is_wrong_and_named(queue: Driver, dsn: str) -> None:
    queue.connection.execute("alter table faultline.open_jobs disable trigger token_grows")

    told, shown = visit(dsn), faultline("doctor", "--dsn", dsn)

    assert of_level(told, "wrong").keys() == {"guards", "the guards are in place"}
    assert "open_jobs.token_grows" in of_level(told, "wrong")["the guards are in place"]
    assert shown.returncode == 1
    assert "wrong    the guards are in place" in shown.stdout


def test_a_function_that_somebody_changed_is_wrong_and_named(queue: Driver, dsn: str) -> None:
    queue.connection.execute(
        "create or replace function faultline.unregister_worker(worker_id text) returns void language sql as ''"
    )

    assert of_level(visit(dsn), "wrong") == {
        "functions": "unregister_worker does not run with the rights of its owner, unregister_worker has another text,"
        " unregister_worker has other settings"
    }


def test_a_view_that_is_gone_is_told_and_the_visit_goes_on(queue: Driver, dsn: str) -> None:
    queue.enqueue()
    queue.connection.execute("drop view faultline.jobs")

    told = visit(dsn)

    assert of_level(told, "wrong")["views"] == "missing or altered: jobs"
    assert of_level(told, "wrong")["waiting"] == 'relation "faultline.jobs" does not exist'
    assert of_level(told, "wrong")["tasks"] == 'relation "faultline.jobs" does not exist'
    assert {finding["todo"] for finding in told["findings"] if "does not exist" in finding["found"]} == {
        "run: faultline migrate"
    }
    assert "tokens only increase" in {finding["check"] for finding in told["findings"]}
    assert not any("no schema" in finding["found"] for finding in told["findings"])


@pytest.mark.parametrize("off", ["false", "off", "0"])
def test_a_table_that_is_never_vacuumed_is_wrong(queue: Driver, dsn: str, off: str) -> None:
    queue.connection.execute(f"alter table faultline.open_jobs set (autovacuum_enabled = {off})".encode())

    assert of_level(visit(dsn), "wrong") == {"vacuum": "autovacuum is disabled for open_jobs"}


def test_a_newer_schema_that_serves_this_build_is_worth_a_note(queue: Driver, dsn: str) -> None:
    pretend(queue.connection, 99, serves_from=1)

    told = visit(dsn)

    assert of_level(told, "wrong") == {}
    assert "protocol 99, newer than this build's" in of_level(told, "note")["schema"]


def test_a_schema_that_does_not_serve_this_build_ends_the_visit(queue: Driver, dsn: str) -> None:
    pretend(queue.connection, 99, serves_from=98)

    told = visit(dsn)

    assert "the database is at protocol 99" in of_level(told, "wrong")["schema"]
    assert told["findings"][-1]["check"] == "schema"
    assert told["findings"][-1]["todo"] == "upgrade faultline-queue in this program"


def test_a_database_without_the_schema_is_told_what_to_run(empty_dsn: str) -> None:
    asked = faultline("doctor", "--dsn", empty_dsn)

    assert asked.returncode == 1
    assert "→ run: faultline migrate" in asked.stdout


def test_a_server_that_is_away_is_a_finding() -> None:
    told = visit("host=127.0.0.1 port=1 dbname=nowhere")

    assert of_level(told, "wrong").keys() == {"connection"}


def test_work_that_nobody_serves_and_what_was_set_aside_is_told(queue: Driver, dsn: str) -> None:
    queue.enqueue(queue="lonely")
    queue.enqueue(queue="held")
    queue.run(verbs.pause("held", "the bank is closed"))
    queue.enqueue(queue="bad")
    queue.fail(queue.claim_one(queue="bad"), then="fail")

    told = visit(dsn)

    assert of_level(told, "warning")["waiting"].startswith("lonely: jobs have been due for")
    assert of_level(told, "note")["paused"].endswith(": the bank is closed")
    assert of_level(told, "note")["failed jobs"] == "1 has failed"
    assert sum(finding["check"] == "waiting" for finding in told["findings"]) == 1


@pytest.mark.parametrize(("role", "unseen"), [("viewer", set()), ("producer", {"workers", "paused", "the others"})])
def test_a_login_that_may_not_see_everything_is_told_what_it_did_not_see(
    dsn: str, new_login: NewLogin, role: str, unseen: set[str]
) -> None:
    """As a login of its own: who has only taken a role is still what it was."""
    told = visit(f"{dsn} user={new_login(f'in role faultline_{role}')}")

    assert of_level(told, "wrong") == {}
    notes = of_level(told, "note")
    assert unseen <= notes.keys()
    assert "snapshots of other logins were not checked" in notes["snapshots"]


def test_a_login_that_lost_the_schema_is_told_whose_it_is(queue: Driver, dsn: str, new_login: NewLogin) -> None:
    login = new_login("")
    stranger = visit(f"{dsn} user={login}")["findings"][-1]
    queue.connection.execute(f"alter table faultline.samples owner to {login}".encode())
    former = visit(f"{dsn} user={login}")["findings"][-1]

    owner = queue.value("select current_user")
    assert stranger["todo"].startswith(f"the schema belongs to {owner}, who may: grant faultline_viewer to {login}")
    assert former["todo"].startswith(f"the schema belongs to {owner}, who may: alter schema faultline owner to {login}")
    assert former["found"] == "not checked: permission denied for schema faultline"


@pytest.mark.parametrize(
    ("role", "altered", "level", "told"),
    [
        ("worker", "set default_transaction_read_only = on", "wrong", "cannot write: default_transaction_read_only is on"),
        ("worker", "set statement_timeout = '20ms'", "warning", "has a statement_timeout of 20 ms"),
        ("worker", "connection limit 2", "warning", "may open 2 connections, but a worker needs at least 4"),
        ("producer", "superuser", "warning", "is a superuser"),
        ("viewer", "set default_transaction_read_only = on", None, ""),
        ("producer", "connection limit 2", None, ""),
        ("worker", "set statement_timeout = '5s'", None, ""),
        ("worker", "connection limit 50", None, ""),
    ],
)
def test_what_stops_a_programs_login_is_told(
    queue: Driver, dsn: str, new_login: NewLogin, role: str, altered: str, level: str | None, told: str
) -> None:
    login = new_login(f"in role faultline_{role}")
    here = f"in database {queue.connection.info.dbname} " if altered.startswith("set ") else ""  # the server is shared
    queue.connection.execute(f"alter role {login} {here}{altered}".encode())
    found = [finding for finding in visit(dsn)["findings"] if login in finding["found"] and finding["level"] != "ok"]

    if level is None:
        assert found == []
    else:
        [finding] = found
        assert (finding["check"], finding["level"]) == ("logins", level)
        assert finding["found"].startswith(f"{login} (faultline_{role}) {told}")
        assert login in finding["todo"]


@pytest.fixture
def slow(queue: Driver, new_login: NewLogin) -> Callable[[str, str], str]:
    """Makes a login whose statements have 100 ms, and for which this function or view is slow where `condition` holds."""

    def made(name: str, condition: str) -> str:
        login = new_login("superuser")
        queue.execute("create schema slow")
        pause = f"pg_catalog.pg_sleep(case when {condition} then 1 else 0 end)"
        if name.endswith("()"):
            queue.execute(f"create function slow.{name} returns integer return (select pg_catalog.{name} from {pause})")
        else:
            queue.execute(f"create view slow.{name} as select s.* from {pause} cross join pg_catalog.{name} s")
        queue.execute(f"alter role {login} set search_path = slow, pg_catalog")
        queue.execute(f"alter role {login} set statement_timeout = '100ms'")
        return login

    return made


@pytest.mark.parametrize("condition", ["current_query() like '%set_config%'", "current_query() = 'select pg_backend_pid()'"])
def test_a_statement_timeout_that_ends_the_first_statements_is_named(
    slow: Callable[[str, str], str], dsn: str, condition: str
) -> None:
    login = slow("pg_backend_pid()", condition)

    told = visit(f"{dsn} user={login}")

    [finding] = told["findings"]
    assert (finding["check"], finding["level"]) == ("statement_timeout", "wrong")
    assert finding["found"].startswith("it is so short that the server cancelled the first statement of this session")
    assert "alter role ... set statement_timeout = '30s'" in finding["todo"]


def test_a_statement_timeout_of_the_login_does_not_end_what_the_doctor_asks(
    slow: Callable[[str, str], str], dsn: str
) -> None:
    login = slow("pg_settings", "true")

    told = visit(f"{dsn} user={login}")

    assert of_level(told, "wrong") == {}
    assert of_level(told, "warning")["statement_timeout"] == "0.1 s"
    assert "tokens only increase" in {finding["check"] for finding in told["findings"]}


@pytest.mark.parametrize("how", ["noinherit", "noinherit in role faultline_viewer"])
def test_what_a_login_that_inherits_nothing_is_told_helps_it(queue: Driver, dsn: str, new_login: NewLogin, how: str) -> None:
    login = new_login(how)
    told = visit(f"{dsn} user={login}")["findings"][-1]["todo"]

    queue.connection.execute(told.partition("who may: ")[2].partition(", or another one")[0].encode())

    assert login in told
    assert of_level(visit(f"{dsn} user={login}"), "wrong") == {}


def test_a_login_that_does_not_inherit_its_role_is_told(queue: Driver, new_login: NewLogin) -> None:
    login = new_login("noinherit in role faultline_worker")
    [seen] = [one for one in queue.run(stored_logins.logins()) if one.name == login]
    [finding] = login_checks.logins([seen])
    for statement in finding.todo.removeprefix("run: ").replace("then grant the role again: ", "").split("; "):
        queue.connection.execute(statement.encode())
    [mended] = [one for one in queue.run(stored_logins.logins()) if one.name == login]

    assert "does not inherit faultline_worker" in finding.found
    assert list(login_checks.logins([mended])) == []


def test_a_login_that_sees_no_other_sessions_counts_them_all_the_same(dsn: str, new_login: NewLogin) -> None:
    login = new_login("in role faultline_producer")
    with psycopg.connect(dsn), psycopg.connect(dsn):
        told = of_level(visit(f"{dsn} user={login}"), "ok")["connections"]

    assert int(told.removeprefix("about ").partition(" ")[0]) > 3  # ours, and the doctor's own
    assert told.endswith("in use, workers not visible")


def test_a_server_that_has_no_connection_left_is_not_taken_for_a_dead_one(dsn: str, new_login: NewLogin) -> None:
    [finding] = visit(f"{dsn} user={new_login('connection limit 0')}")["findings"]

    assert finding["level"] == "wrong"
    assert "too many connections for role" in finding["found"]
    assert "raise the limit" in finding["todo"]
    assert "start the server" not in finding["todo"]


@pytest.mark.parametrize(
    ("message", "full"),
    [
        ("FATAL:  sorry, too many clients already", True),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", True),
        ("FATAL:  remaining connection slots are reserved for non-replication superuser connections", True),
        ('FATAL:  too many connections for database "shop"', True),
        ("FATAL:  no more connections allowed (max_client_conn)", True),
        ("connection refused. Is the server running on that host?", False),
    ],
)
def test_a_refused_connection_is_judged_by_what_the_server_says(message: str, full: bool) -> None:  # noqa: FBT001
    assert (checks.unreachable(message).todo.startswith("the server is running")) is full


# What it makes of what it sees. A server that is set up wrongly is expensive to have and easy to imagine.


def test_a_database_that_takes_no_writes_is_wrong(queue: Driver, dsn: str) -> None:
    name = queue.value("select current_database()")
    queue.connection.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())

    assert of_level(visit(dsn), "wrong") == {"default_transaction_read_only": "on, set by: database. All writes fail"}


def worst(findings: Iterable[Finding]) -> Level:
    return max((finding.level for finding in findings), key=list(Level).index)


def settings(**values: str) -> dict[str, Setting]:
    on = dict.fromkeys(
        ("autovacuum", "track_counts", "fsync", "full_page_writes", "data_checksums", "synchronous_commit"), "on"
    )
    return {name: Setting(value, "") for name, value in {**on, "wal_level": "replica", **values}.items()}


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ({}, Level.OK),
        ({"autovacuum": "off"}, Level.WRONG),
        ({"track_counts": "off"}, Level.WRONG),
        ({"fsync": "off"}, Level.WRONG),
        ({"full_page_writes": "off"}, Level.WARNING),
        ({"data_checksums": "off"}, Level.NOTE),
        ({"synchronous_commit": "off"}, Level.NOTE),
        ({"wal_level": "minimal"}, Level.NOTE),
        ({"statement_timeout": "500"}, Level.WARNING),
        ({"statement_timeout": "60000"}, Level.OK),
        ({"lock_timeout": "10"}, Level.WARNING),
    ],
)
def test_settings_are_judged_by_what_they_break(values: dict[str, str], level: Level) -> None:
    assert worst(checks.settings(settings(**values))) is level


@pytest.mark.parametrize(
    ("standbys", "values", "level"),
    [
        ([], {}, Level.NOTE),
        ([], {"synchronous_standby_names": "b"}, Level.WARNING),
        ([Standby("b", "async")], {}, Level.WARNING),
        ([Standby("b", "async"), Standby("c", "quorum")], {}, Level.OK),
    ],
)
def test_a_standby_that_may_lack_commits_is_a_warning(standbys: list[Standby], values: dict[str, str], level: Level) -> None:
    assert worst(checks.durability(settings(**values), standbys, sees_sessions=True)) is level


def server(**facts: Any) -> Server:
    known = {
        "version": "18.0", "version_number": 180000, "user": "app", "database": "shop", "is_superuser": False,
        "sees_sessions": True, "is_standby": False, "clock": NOW, "started_at": NOW, "xid_age": 100,
    }  # fmt: skip
    return Server(**{**known, **facts})


@pytest.mark.parametrize(
    ("facts", "pooler", "level"),
    [
        ({}, False, Level.OK),
        ({}, True, Level.NOTE),
        ({"is_superuser": True}, False, Level.NOTE),
        ({"xid_age": 1_900_000_000}, False, Level.WARNING),
        ({"is_standby": True}, False, Level.WRONG),
        ({"version": "14.9", "version_number": 140009}, False, Level.WRONG),
    ],
)
def test_the_server_and_the_way_to_it_are_judged(facts: dict[str, Any], pooler: bool, level: Level) -> None:  # noqa: FBT001
    assert worst(checks.server(server(**facts), pooler=pooler)) is level


def health(**facts: Any) -> Health:
    known = {
        "at": NOW, "version": "18.0", "database": "shop", "database_bytes": 1, "tables": [], "oldest_snapshot": None,
        "sees_sessions": True, "connections": 10, "connections_max": 100, "limits": [], "idle_in_transaction": 0,
        "wal_bytes": 1,
    }  # fmt: skip
    return Health(**{**known, **facts})


def holder(kind: str, *, age: int = 10, seconds: float | None) -> Holder:
    return Holder(kind, "4711", "report", "ada", "idle in transaction", age, seconds)


@pytest.mark.parametrize(
    ("held", "level"),
    [
        (None, Level.OK),
        (holder("session", seconds=5), Level.OK),
        (holder("session", seconds=4000), Level.WARNING),
        (holder("prepared transaction", seconds=4000), Level.WARNING),
        (holder("slot", seconds=None, age=50_000_000), Level.WARNING),
    ],
)
def test_whoever_holds_vacuum_back_is_named(held: Holder | None, level: Level) -> None:
    findings = list(checks.held_back(health(oldest_snapshot=held), []))

    assert worst(findings) is level
    assert level is Level.OK or "4711" in findings[0].found


def test_a_slot_that_nobody_reads_fills_the_disk() -> None:
    slots = [Slot("live", active=True, retained_bytes=5 << 30), Slot("dead", active=False, retained_bytes=5 << 30)]

    warned = [finding for finding in checks.held_back(health(), slots) if finding.level is Level.WARNING]

    assert [finding.found.partition(" ")[0] for finding in warned] == ["dead"]


def test_dead_rows_that_outnumber_the_living_are_a_warning() -> None:
    tables = [TableHealth(name, rows, 400_000, 1, 1, NOW, NOW) for name, rows in (("open_jobs", 10), ("ledger", 9_000_000))]

    warned = [finding for finding in checks.bloat(health(tables=tables), []) if finding.level is Level.WARNING]

    assert [finding.found.partition(":")[0] for finding in warned] == ["open_jobs"]


def worker(name: str = "w", *, age: float = 0.5, ahead: float = 0.0, version: str = "1") -> WorkerLine:
    return WorkerLine(name, "host", 1, version, age < SILENT_SECONDS, ["mail"], [], NOW, NOW, age, 3, ahead, None)


def test_workers_are_judged_by_their_beat_their_version_and_their_clock() -> None:
    none_overdue = Overdue(0, 0.0)

    assert worst(checks.at_work(none_overdue, [worker()], [])) is Level.OK
    assert worst(checks.at_work(none_overdue, [worker(), worker("old", version="0")], [])) is Level.NOTE
    assert worst(checks.at_work(none_overdue, [worker(), worker("frozen", age=30)], [])) is Level.WARNING
    assert worst(checks.at_work(none_overdue, [worker()], [Waiting("mail", 300.0, paused=False)])) is Level.WARNING
    assert worst(checks.at_work(none_overdue, [worker()], [Waiting("mail", 300.0, paused=True)])) is Level.OK
    assert worst(checks.at_work(Overdue(3, 300.0), [worker()], [])) is Level.WARNING
    assert worst(checks.clocks(0.1, [worker(ahead=30)])) is Level.NOTE
    assert worst(checks.clocks(-30, [])) is Level.NOTE


def test_a_task_that_no_living_worker_knows_is_told() -> None:
    def knowing(tasks: list[str] | None, *, age: float = 0.5, queue: str = "mail") -> WorkerLine:
        return replace(worker(), tasks=tasks, age_seconds=age, queues=[queue])

    waits = [WaitingTask("mail", "send", 12)]

    assert worst(checks.known_tasks(waits, [knowing(["send"]), knowing(["pay"])])) is Level.OK
    assert (
        worst(checks.known_tasks(waits, [knowing(None), knowing(["pay"])])) is Level.OK
    )  # one that has not said yet may know it
    assert worst(checks.known_tasks(waits, [knowing(["pay"], queue="other")])) is Level.OK  # told of the queue already
    (found,) = checks.known_tasks(waits, [knowing(["pay"]), knowing(["send"], age=60)])
    assert found.level is Level.WARNING
    assert found.found.startswith("send (mail): 12 queued jobs, and none of 1 live workers knows the task")


def test_waiting_tasks_are_looked_for(queue: Driver, dsn: str) -> None:
    queue.enqueue("send", queue="mail")
    queue.enqueue("send", queue="mail", delay_seconds=60)
    queue.run(verbs.heartbeat("w", host="h", pid=1, version="0", queues=["mail"], sleeping=[], watched=False))
    queue.run(verbs.announce("w", ["pay"]))

    assert of_level(visit(dsn), "warning")["tasks"].startswith("send (mail): 2 queued jobs")


def test_connections_are_judged_by_what_is_used_and_what_workers_may_take() -> None:
    assert worst(checks.connections(health(), [worker()])) is Level.OK
    assert worst(checks.connections(health(connections=95), [])) is Level.WARNING
    assert worst(checks.connections(health(), [worker()] * 20)) is Level.OK
    assert worst(checks.connections(health(), [worker()] * 26)) is Level.WARNING


def test_what_jobs_may_borrow_counts_among_the_connections_of_a_worker() -> None:
    says = replace(worker(), connections_max=24)

    few, many = (list(checks.connections(health(), [says] * number)) for number in (4, 5))

    assert worst(few) is Level.OK
    assert worst(many) is Level.WARNING
    assert "up to 120" in many[0].found


def test_roles_that_are_missing_or_without_grants_are_told() -> None:
    whole = Role("faultline_worker", exists=True, granted=True, ours=True, logins=["app"])

    assert worst(checks.roles([whole], superuser=False)) is Level.OK
    assert worst(checks.roles([whole._replace(exists=False, granted=False)], superuser=False)) is Level.NOTE
    assert worst(checks.roles([whole._replace(granted=False)], superuser=False)) is Level.WARNING


def test_a_pause_that_was_forgotten_is_a_warning() -> None:
    assert worst(checks.set_aside(0, [("mail", NOW - timedelta(hours=1), None)], NOW)) is Level.NOTE
    assert worst(checks.set_aside(0, [("mail", NOW - timedelta(days=3), None)], NOW)) is Level.WARNING
