"""Who may run beside whom: a job that is suspected of killing its workers runs alone, and keeps nobody waiting for ever."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from faultline.core.model import Lease
from faultline.runtime.hold import Hold
from faultline.runtime.lane import Company

CONCURRENCY = 50


@pytest.fixture
def company() -> Company[str]:
    return Company()


def marked(reaps: int) -> Hold:
    """A job whose start is marked, since it was reaped so often."""
    lease = Lease(uuid4(), 1, "w/1", "t", {}, 1, 5, True, reaps, 0, datetime.now(UTC), 30, None)
    return Hold(lease, 0.0)


def admitted(company: Company[str], hold: Hold) -> bool:
    if not company.admits(hold, CONCURRENCY, "lane"):
        return False
    company.enter(hold.lease)
    return True


def test_whoever_waits_to_be_alone_goes_before_all_that_come_later(company: Company[str]) -> None:
    first, suspect, later = marked(1), marked(3), marked(1)

    assert [admitted(company, hold) for hold in (first, suspect, later)] == [True, False, False]
    assert company.leave(first.lease) == {"lane"}
    assert [admitted(company, hold) for hold in (suspect, later)] == [True, False]
    assert company.leave(suspect.lease) == {"lane"}
    assert admitted(company, later)


def test_whoever_waits_to_be_alone_and_loses_its_lease_keeps_nobody_waiting(company: Company[str]) -> None:
    first, suspect, later = marked(1), marked(3), marked(1)
    assert [admitted(company, hold) for hold in (first, suspect, later)] == [True, False, False]

    suspect.lose("lease_lost")
    company.leave(first.lease)

    assert admitted(company, later)
