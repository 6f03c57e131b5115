"""Commands behind a locked table: each ends at its deadline and says so; the doctor names who is in the way."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline.doctor.session import ExaminationSession, NotSeen
from faultline.store.reads import doctor_queries
from faultline.store.statement import Statement
from tests.cli.commands import faultline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver

SECONDS = "2"


@pytest.fixture
def holder(queue: Driver, dsn: str) -> Iterator[int]:
    """The process of a session that has locked a table which everything needs."""
    queue.enqueue("t")
    with psycopg.connect(dsn, application_name="in-the-way") as connection:
        connection.execute("lock table faultline.open_jobs in access exclusive mode")
        yield connection.info.backend_pid


@pytest.mark.parametrize("words", [("jobs",), ("queues",), ("retry", "--failed"), ("top", "--once")])
def test_a_look_behind_a_locked_table_ends_at_the_deadline_and_says_that_no_answer_came(
    holder: int, dsn: str, words: tuple[str, ...]
) -> None:
    asked = faultline(*words, "--dsn", dsn, FAULTLINE_TIMEOUT=SECONDS)

    told = asked.stderr + asked.stdout
    assert asked.returncode == 1, holder
    assert "no answer within 2 s" in told
    assert "may or may not" not in told


@pytest.mark.parametrize("verb", ["job", "cancel", "retry"])
def test_a_command_about_one_job_behind_a_locked_table_ends_at_the_deadline(holder: int, dsn: str, verb: str) -> None:
    job = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"

    asked = faultline(verb, job, "--dsn", dsn, FAULTLINE_TIMEOUT=SECONDS)

    assert asked.returncode == 1, holder
    assert "no answer within 2 s" in asked.stderr
    assert ("may or may not have been committed" in asked.stderr) == (verb != "job")


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_a_command_about_many_jobs_behind_a_locked_table_waits_once(holder: int, dsn: str, verb: str) -> None:
    jobs = [f"0198c2e4-5d3a-7b11-9f60-2a54c0de7f{number:02}" for number in range(3)]

    asked = faultline(verb, *jobs, "--dsn", dsn, FAULTLINE_TIMEOUT=SECONDS)

    assert asked.returncode == 1, holder
    assert asked.stderr.count("no answer within 2 s") == 1
    assert asked.stderr.endswith(f": {jobs[1]} {jobs[2]}\n")


@pytest.mark.long
def test_the_doctor_goes_on_behind_a_locked_table_and_names_who_is_in_the_way(holder: int, dsn: str) -> None:
    asked = faultline("doctor", "--json", "--dsn", dsn, FAULTLINE_TIMEOUT=SECONDS)

    assert asked.stdout, asked.stderr
    told = json.loads(asked.stdout)["findings"]
    unanswered = [finding for finding in told if "waits for a lock" in finding["found"]]
    assert asked.returncode == 1
    assert {"health", "tokens only increase"} <= {finding["check"] for finding in unanswered}
    assert all(f"process {holder} (in-the-way" in finding["found"] for finding in unanswered)
    assert all(f"pg_terminate_backend({holder})" in finding["todo"] for finding in unanswered)
    answered = {finding["check"] for finding in told if finding not in unanswered}
    assert {"server version", "autovacuum", "functions", "roles", "clock", "times come from the server clock"} <= answered


def test_the_doctor_goes_on_where_its_sessions_own_timeout_ends_a_question(holder: int, dsn: str) -> None:
    asked = faultline("doctor", "--json", "--dsn", f"{dsn} options='-c lock_timeout=100ms'")

    assert asked.stdout, asked.stderr
    found = {finding["check"]: finding for finding in json.loads(asked.stdout)["findings"]}
    unanswered = found["tokens only increase"]
    assert unanswered["found"] == "canceling statement due to lock timeout, so it was not checked", holder
    assert "PGOPTIONS=" in unanswered["todo"]
    assert found["times come from the server clock"]["level"] == "ok"


def test_a_question_that_a_statement_timeout_ends_is_not_seen_and_the_next_one_is_asked(dsn: str) -> None:
    with contextlib.closing(ExaminationSession(f"{dsn} options='-c statement_timeout=2s'", 60.0)) as visit:
        slow: Statement[Any] = Statement("slow", "select pg_sleep(60)", (), lambda rows: rows, reads=True)

        seen = visit.look(slow)

        assert isinstance(seen, NotSeen)
        assert seen.found == "canceling statement due to statement timeout, so it was not checked"
        assert visit.must(doctor_queries.server()).database


@pytest.mark.parametrize("limit", ["statement_timeout", "transaction_timeout", "lock_timeout"])
def test_a_short_limit_of_the_login_or_the_database_ends_no_question(dsn: str, limit: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        if limit == "transaction_timeout" and connection.info.server_version < 170_000:
            pytest.skip("servers before 17 have no transaction_timeout")
        name = connection.info.dbname
        connection.execute(f"alter database {name} set {limit} = '300ms'")
    with contextlib.closing(ExaminationSession(dsn, 60.0)) as visit:
        slow: Statement[Any] = Statement("slow", "select 1 from pg_sleep(0.5)", (), lambda rows: rows, reads=True)

        assert visit.look(slow) == [(1,)]


@pytest.mark.long
def test_the_doctor_leaves_no_question_behind_that_still_waits_for_the_table(holder: int, dsn: str) -> None:
    faultline("doctor", "--dsn", dsn, FAULTLINE_TIMEOUT=SECONDS)

    with psycopg.connect(dsn, autocommit=True) as watcher:
        left = watcher.execute(
            "select count(*) from pg_stat_activity where %s = any(pg_blocking_pids(pid)) and datname = current_database()",
            (holder,),
        ).fetchone()
    assert left == (0,)
