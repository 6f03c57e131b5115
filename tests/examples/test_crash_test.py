"""The example of a crash test shows a task that survives, one that does not, and why."""

from __future__ import annotations

import pytest

from tests.examples.test_examples import run

pytestmark = pytest.mark.long


def test_the_crash_test_passes_one_task_and_finds_the_other_out(dsn: str) -> None:
    said = run("crash_test", dsn)

    good, bad = said[: said.index("")], said[said.index("") + 1 :]
    assert good[0].startswith("pay_in_the_jobs_transaction was crashed at 6 points in 1 life and survived")
    assert "  ok      before_commit_sent" in good
    assert bad[0].startswith("pay_beside_it was crashed at 6 points in 1 life and broke at 2")
    assert [line for line in bad if "BROKEN" in line] == [
        "  BROKEN  after_execution: effects 2 instead of 1, job succeeded",
        "  BROKEN  before_complete_sent: effects 2 instead of 1, job succeeded",
    ]
    assert "  - a task without steps: write inside job.transaction() and finish there with tx.complete(...)" in "\n".join(
        bad
    )
