"""Who may run beside whom, so that a job which kills its workers is found out."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from faultline.core.model import Lease
from faultline.runtime.lane import Company

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def lease(*, reaps: int = 0) -> Lease:
    return Lease(
        job_id=uuid4(),
        fencing_token=1,
        owner="w/1",
        task="t",
        args={},
        attempt=1,
        max_attempts=5,
        mark_start=True,
        reaps=reaps,
        priority=0,
        next_run_at=NOW,
        lease_seconds=30.0,
        key="k",
    )


def admitted(company: Company[int], reaps: int, concurrency: int = 64) -> int:
    """How many jobs that were reaped so often may run at once."""
    count = 0
    while count < concurrency and company.admits(lease(reaps=reaps), concurrency, 0):
        company.enter(lease(reaps=reaps))
        count += 1
    return count


def test_a_job_that_was_reaped_has_less_and_less_company() -> None:
    assert [admitted(Company[int](), reaps) for reaps in (0, 1, 2, 3, 9)] == [64, 16, 4, 1, 1]


def test_after_three_crashes_no_other_marked_job_runs_beside_it() -> None:
    company, suspect = Company[int](), lease(reaps=3)
    company.enter(suspect)

    assert not company.admits(lease(), 64, 0)

    company.leave(suspect)
    assert company.admits(lease(), 64, 0)


def test_it_waits_for_the_marked_ones_that_run_and_no_new_ones_pass_it() -> None:
    company, running, suspect = Company[int](), lease(), lease(reaps=3)
    company.enter(running)

    assert not company.admits(suspect, 64, 0)
    assert not company.admits(lease(), 64, 0)

    company.leave(running)
    assert company.admits(suspect, 64, 0)
