"""A job may be named by the first digits of its id, as long as they name one job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from faultline.core.ids import id_range
from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.reads import views
from tests.cli.commands import faultline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.driver import Driver

OPEN, DONE = UUID("019a3f00-1111-7000-8000-000000000001"), UUID("019a3f00-2222-7000-8000-000000000002")
ELSEWHERE = UUID("019b0000-0000-7000-8000-000000000003")


@pytest.fixture
def jobs(queue: Driver) -> Driver:
    """Two jobs whose ids begin alike, one of them done, and a third."""
    queue.run(verbs.enqueue_many([Submission("ship", id=DONE)]))
    queue.complete(queue.claim_one())
    queue.run(verbs.enqueue_many([Submission("charge", id=OPEN), Submission("mail", id=ELSEWHERE)]))
    return queue


@pytest.mark.parametrize(
    ("prefix", "named"),
    [
        ("019a3f00-1", OPEN),
        ("019a3f001", OPEN),
        ("019A3F00-2222", DONE),
        ("019b00", ELSEWHERE),
        (str(DONE), DONE),
        (str(OPEN)[:-1], OPEN),
    ],
)
def test_digits_that_begin_one_id_name_the_job(jobs: Driver, dsn: str, prefix: str, named: UUID) -> None:
    shown = faultline("job", prefix, "--json", "--dsn", dsn)

    assert json.loads(shown.stdout)["id"] == str(named), shown.stderr


@pytest.mark.parametrize(
    ("prefix", "code", "told"),
    [
        ("019a3f", 2, f"faultline: 019a3f begins the ids of several jobs: {OPEN}, {DONE}; write more digits\n"),
        ("019a3", 2, "faultline: 019a3 is too short for a job id: write at least its first 6 digits\n"),
        ("019c00", 1, "faultline: no job id begins with 019c00; it was never enqueued here, or it was pruned\n"),
        ("charge", 2, "faultline: invalid job id charge; ids look like"),
        (f"{OPEN}0", 2, f"faultline: invalid job id {OPEN}0; ids look like"),
    ],
)
def test_what_names_no_job_or_several_is_refused(jobs: Driver, dsn: str, prefix: str, code: int, told: str) -> None:
    asked = faultline("cancel", prefix, "--dsn", dsn)

    assert (asked.returncode, asked.stdout) == (code, "")
    assert asked.stderr.startswith(told)
    assert jobs.job(OPEN).state is JobState.QUEUED


def test_many_that_begin_alike_are_told_in_part(queue: Driver, dsn: str) -> None:
    ids = [UUID(int=OPEN.int + number) for number in range(9)]
    queue.run(verbs.enqueue_many([Submission("t", id=job_id) for job_id in ids]))

    asked = faultline("job", "019a3f", "--dsn", dsn)

    assert f"{', '.join(map(str, ids[:5]))} and more; write more digits" in asked.stderr


def test_jobs_are_cancelled_and_retried_by_the_first_digits_of_their_ids(jobs: Driver, dsn: str) -> None:
    cancelled = faultline("cancel", "019a3f00-1", "019b00", "--dsn", dsn)
    retried = faultline("retry", "019b00", "--dsn", dsn)

    assert cancelled.stdout == f"{OPEN} cancelled\n{ELSEWHERE} cancelled\n"
    assert retried.stdout == f"{ELSEWHERE} queued\n"


def test_one_that_names_several_keeps_all_from_being_touched(jobs: Driver, dsn: str) -> None:
    asked = faultline("cancel", "019b00", "019a3f", "--dsn", dsn)

    assert asked.returncode == 2
    assert jobs.job(ELSEWHERE).state is JobState.QUEUED


def test_looking_for_an_id_reads_a_few_rows_of_two_indexes(queue: Driver) -> None:
    queue.connection.execute("alter table faultline.ledger disable trigger user")
    queue.connection.execute(
        "insert into faultline.ledger (job_id, fencing_token, created_at, claimed_at, finished_at, priority, attempt,"
        " max_attempts, owner, queue, task) select gen_random_uuid(), 1, now(), now(), now(), 0, 1, 1, 'w', 'q', 't'"
        " from generate_series(1, 50000)"
    )
    queue.connection.execute("analyze faultline.ledger")
    (some,) = queue.connection.execute("select job_id from faultline.ledger limit 1").fetchone() or ()
    least_and_greatest = id_range(str(some)[:7])
    assert least_and_greatest is not None
    look = views.ids_between(*least_and_greatest, ids_max=6)

    plan = plan_of(queue, look.sql, look.params)

    assert "Seq Scan" not in plan
    assert {"open_jobs_pkey", "ledger_pkey"} <= set(plan.replace("\n", " ").split()), plan
    assert some in queue.run(look)


def plan_of(queue: Driver, sql: str, params: Sequence[object]) -> str:
    lines = queue.connection.execute(f"explain {sql}".encode(), params).fetchall()
    return "\n".join(line for (line,) in lines)


def test_the_range_of_a_whole_id_is_that_id() -> None:
    assert id_range(str(OPEN)) == (OPEN, OPEN)
    assert id_range("charge") is id_range("") is id_range(f"{OPEN}0") is None
