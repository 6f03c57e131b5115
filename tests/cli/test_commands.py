"""The commands as people run them: as processes, with their output and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest
from typer.testing import CliRunner

from faultline import operate
from faultline.cli import main
from faultline.store.install.schema_text import protocol
from tests.cli.commands import environment, faultline
from tests.versions import pretend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def test_help_names_every_command() -> None:
    shown = faultline("--help")

    assert shown.returncode == 0
    for command in (
        "enqueue",
        "job",
        "retry",
        "queues",
        "top",
        "migrate",
        "doctor",
        "recover",
        "db",
        "demo",
        "drill",
        "bench",
    ):
        assert command in shown.stdout


def imported(*words: str) -> set[str]:
    """The modules that Python imports for this, beside those that it starts with. Times would vary with the load."""
    found = []
    for asked in (("-c", "pass"), words):
        looked = subprocess.run(
            [sys.executable, "-X", "importtime", *asked], capture_output=True, text=True, check=True, env=environment()
        )
        found.append(set(re.findall(r"\|\s+([\w.]+)$", looked.stderr, re.MULTILINE)))
    return found[1] - found[0]


HEAVY = {"rich", "psycopg", "orjson", "pydantic", "fastapi", "uvicorn", "asyncio", "logging", "faultline.core.model"}


@pytest.mark.parametrize("command", ["enqueue", "jobs", "api-keys create", "top", "migrate", "recover", "up", "db start"])
def test_help_names_values_in_words_not_as_types(command: str) -> None:
    shown = faultline(*command.split(), "--help").stdout

    assert re.findall(r"--[a-z-]+ <(?:str|int|float|list|path).*", shown) == []


def test_help_does_not_wait_for_what_only_commands_need() -> None:
    """Each of these takes longer to import than all the rest of the help."""
    modules = imported("-m", "faultline", "--help")

    assert "typer" in modules
    assert modules & HEAVY == set()
    # Beside typer and what finds the commands of other distributions.
    own = modules - imported("-c", "import typer, importlib.metadata")
    assert len(own) < 40, sorted(own)


@pytest.mark.parametrize("command", ["worker", "jobs"])
def test_help_of_a_command_does_not_wait_for_other_commands(command: str) -> None:
    modules = imported("-m", "faultline", command, "--help")

    late = {"importlib.metadata", "faultline.doctor.checks", "faultline.explain.formatting"}
    assert modules & (HEAVY | late) == set()
    own = modules - imported("-c", "import typer")
    assert len(own) < 28, sorted(own)


def test_the_list_of_commands_reads_the_options_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read them takes as long as all imports of the help."""
    built: list[str] = []
    monkeypatch.setattr(main, "_built", lambda name, _: built.append(name))

    assert "\nRunning:\n" in CliRunner().invoke(main.app, ["--help"]).output
    assert built == []


def test_importing_faultline_imports_nothing_else() -> None:
    assert imported("-c", "import faultline") - imported("-c", "import importlib") == {"faultline"}


def test_a_program_that_only_enqueues_loads_neither_worker_nor_command_line() -> None:
    modules = imported("-c", "from faultline import Faultline, Retry, Submission, log_events")

    assert not {
        name for name in modules if re.match(r"faultline\.(worker|cli|web|testing|integrations|explain|doctor)\b", name)
    }
    own = {name for name in modules if name.startswith("faultline")}
    assert len(own) < 168, sorted(own)
    others = modules - own - imported("-c", "import psycopg, orjson")
    assert len(others) < 15, sorted(others)


def test_completion_knows_the_commands() -> None:
    asked = faultline("--help", _FAULTLINE_COMPLETE="complete_bash", COMP_WORDS="faultline wor", COMP_CWORD="1")

    assert asked.stdout.split() == ["worker", "workers"]


def test_migrate_says_what_it_did(empty_dsn: str) -> None:
    first, second = (faultline("migrate", FAULTLINE_DSN=empty_dsn) for _ in range(2))

    assert f": migrated to protocol {protocol().version}\n" in first.stdout
    assert "up to date" in second.stdout


def test_an_error_is_a_sentence_and_an_exit_code() -> None:
    asked = faultline("workers")

    assert asked.returncode == 2
    assert asked.stdout == ""
    assert asked.stderr.startswith("faultline: no database is configured: pass --dsn,")
    assert "Traceback" not in asked.stderr


def test_a_command_refuses_a_database_that_no_longer_serves_it(connection: psycopg.Connection, dsn: str) -> None:
    pretend(connection, 99, serves_from=98)

    asked = faultline("recover", "--dsn", dsn)

    assert asked.returncode == 1
    assert asked.stderr.startswith("faultline: the database is at protocol 99 and supports builds from 98 on")


def test_migrating_a_newer_database_says_that_there_is_nothing_to_do(connection: psycopg.Connection, dsn: str) -> None:
    pretend(connection, 99, serves_from=1)

    asked = faultline("migrate", "--dsn", dsn)

    assert asked.returncode == 0
    assert f"the database is newer (protocol 99) than this build ({protocol().version}); nothing to do" in asked.stdout


def test_a_database_without_the_schema_is_told_what_to_run(empty_dsn: str) -> None:
    asked = faultline("enqueue", "charge", "--dsn", empty_dsn)

    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "faultline: this database has no schema faultline; run: faultline migrate\n"


def test_recover_says_what_it_lifted(connection: psycopg.Connection, dsn: str) -> None:
    connection.execute("select faultline.enqueue('t')")

    asked = faultline("recover", "--dsn", dsn, "--floor", "500")

    assert asked.stdout == "new tokens are above 500; running jobs requeued: 0\n"


def test_recover_records_who_did_it_and_why(connection: psycopg.Connection, dsn: str) -> None:
    asked = faultline("recover", "--dsn", dsn, "--reason", "a restored backup")

    assert asked.returncode == 0
    who = "select detail ->> 'by', detail ->> 'reason' from faultline.journal where detail ->> 'setting' = 'token_floor'"
    assert connection.execute(who).fetchall() == [(operate.this_user(), "a restored backup")]


def test_recover_gives_way_and_says_who_is_in_the_way(connection: psycopg.Connection, dsn: str) -> None:
    connection.execute("select faultline.enqueue('t')")
    with psycopg.connect(dsn) as holder:
        holder.execute("select faultline.enqueue('of a long transaction')")

        asked = faultline("recover", "--dsn", dsn, "--wait", "0.5")

        assert asked.returncode == 1
        assert "nothing was changed" in asked.stderr
        assert f"process {holder.info.backend_pid} " in asked.stderr
        assert "run faultline recover again" in asked.stderr


def test_recover_names_a_prepared_transaction_that_is_in_the_way(connection: psycopg.Connection, dsn: str) -> None:
    """It has no process. A copy of the files of a server has those that were prepared there."""
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("begin")
        holder.execute("set local faultline.notify = off")
        holder.execute("select faultline.enqueue('of a prepared transaction')")
        holder.execute("prepare transaction 'it''s recover''s'")
    try:
        asked = faultline("recover", "--dsn", dsn, "--wait", "0.5")
    finally:
        connection.execute("rollback prepared 'it''s recover''s'")

    assert asked.returncode == 1
    assert "the prepared transaction it's recover's of " in asked.stderr
    assert "rollback prepared 'it''s recover''s', or commit prepared 'it''s recover''s'" in asked.stderr
    assert faultline("recover", "--dsn", dsn).returncode == 0


@pytest.mark.long
def test_a_drill_prints_its_trace_and_its_verdict(dsn: str) -> None:
    asked = faultline("drill", "lease-race", "--dsn", dsn)

    assert asked.returncode == 0
    lines = asked.stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines if line.startswith("{")] == [
        "lease_acquired",
        "execution_started",
        "lease_acquired",
        "execution_started",
        "stale_write_blocked",
        "worker_exit",
        "worker_exit",
    ]
    assert "lease-race: passed" in lines


@pytest.mark.long
def test_a_drill_with_its_log_prints_lines_with_times(dsn: str) -> None:
    asked = faultline("drill", "lease-race", "--log", "--dsn", dsn)

    lines = [json.loads(line) for line in asked.stdout.splitlines() if line.startswith("{")]
    assert {"worker_started", "lease_reaped", "job_completed"} <= {line["event"] for line in lines}
    assert all({"at", "level", "event"} <= line.keys() for line in lines)


@pytest.mark.long
def test_the_demo_sums_up(dsn: str) -> None:
    asked = faultline("demo", "--dsn", dsn)

    assert asked.returncode == 0
    for line in (
        "rows in the ledger: 1",
        "token in the ledger: 2",
        "writes refused and on record: 1",
        "invariants broken: none",
    ):
        assert line in asked.stdout


@pytest.mark.long
def test_the_bench_prints_figures_as_json(dsn: str) -> None:
    asked = faultline("bench", "protocol", "--dsn", dsn, "--jobs", "1000", "--backlog", "1000", "--json")

    names = [figure["name"] for figure in json.loads(asked.stdout)]
    assert "PostgreSQL CPU, claim + complete" in names


def test_commands_of_a_private_server_use_the_folder_that_the_environment_names(tmp_path: Path) -> None:
    named = tmp_path / "elsewhere"

    asked = faultline("db", "status", "--json", FAULTLINE_DSN=f"embedded:{named}")
    given = faultline("db", "status", "--json", f"--folder={tmp_path / 'db'}", FAULTLINE_DSN=f"embedded:{named}")
    removed = faultline("db", "destroy", FAULTLINE_DSN=f"embedded:{named}")

    assert str(named) in json.loads(asked.stdout)["data"]
    assert str(tmp_path / "db") in json.loads(given.stdout)["data"]
    assert removed.stdout == f"{named} removed\n"


@pytest.mark.long
def test_a_private_server_is_started_described_and_removed(tmp_path: Path) -> None:
    folder = f"--folder={tmp_path / 'db'}"

    assert faultline("db", "status", folder).returncode == 3
    started = faultline("db", "start", folder)
    try:
        described = json.loads(faultline("db", "status", folder, "--json").stdout)
        assert described["running"] is True
        assert described["dsn"] in started.stdout
        named = f"embedded:{tmp_path / 'db'}"
        assert "migrated to protocol" in faultline("migrate", "--dsn", named).stdout
        assert faultline("doctor", "--dsn", named).returncode == 0
    finally:
        assert faultline("db", "stop", folder).stdout == "stopped\n"
        faultline("db", "destroy", folder)
    assert not (tmp_path / "db").exists()


@pytest.mark.long
def test_a_private_server_starts_where_the_environment_says(tmp_path: Path) -> None:
    named = f"embedded:{tmp_path / 'db'}"

    started = faultline("db", "start", FAULTLINE_DSN=named)
    try:
        described = json.loads(faultline("db", "status", f"--folder={tmp_path / 'db'}", "--json").stdout)
        assert described["dsn"] in started.stdout
        assert "migrated to protocol" in faultline("migrate", FAULTLINE_DSN=named).stdout
    finally:
        assert faultline("db", "stop", FAULTLINE_DSN=named).stdout == "stopped\n"
        faultline("db", "destroy", FAULTLINE_DSN=named)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql+asyncpg://shop:SECRET@db/jobs",
        "postgresql://shop:SECRET%RE@db/jobs",
        "postgresql://shop:two SECRET@db/jobs",
        "postgresql:/shop:SECRET@db/jobs",
        "postgresql://shop:SECRET@db/jobs?sslmod=require",
        "host=db user=shop password=one SECRET",
        "host=db password='SECRET",
        "shop:SECRET",
    ],
)
@pytest.mark.parametrize("command", ["queues", "doctor", "migrate"])
def test_what_is_no_dsn_is_not_shown_as_it_may_hold_a_password(dsn: str, command: str) -> None:
    asked = faultline(command, "--dsn", dsn)

    assert asked.returncode == 2
    assert "invalid DSN" in asked.stderr + asked.stdout
    assert "SECRET" not in asked.stderr + asked.stdout
