"""Real workers under limits and trouble of every kind, judged by what their jobs stamped. The judge sees what is wrong."""

from __future__ import annotations

import pytest

from tests.limits import stamped
from tests.limits.stamped import Run, Setting, Stamped
from tests.limits.stamping import STRICT


@pytest.mark.long
def test_no_start_exceeds_a_limit_or_its_order_and_no_due_job_is_stuck_whatever_happens() -> None:
    found = stamped.hammered(2500)

    assert found.wrong == []
    assert found.counts["runs"] > 1500, found
    assert found.counts["looks"] > 100, found


def _exceeded(runs: list[Run], *settings: Setting) -> list[str]:
    return list(stamped._exceeded(runs, Stamped(settings=list(settings))))  # noqa: SLF001


def test_one_too_many_is_seen_of_the_queue_and_of_a_group() -> None:
    setting = Setting(0, 0, {"": 2, "*": 1})
    apart = [Run("a", 1.0, 2.0, 1), Run("b", 1.5, 3.0, 2), Run("a", 2.0, 3.0, 3)]

    assert _exceeded(apart, setting) == []
    assert _exceeded([*apart[:2], Run("c", 1.9, 3.0, 3)], setting) == ["3 of the queue ran at 1.900, and 2 may: job 3"]
    assert _exceeded([*apart[:1], Run("a", 1.9, 3.0, 2)], setting) == ["2 of a ran at 1.900, and 1 may: job 2"]
    assert _exceeded([Run(STRICT, 1.0, 2.0, 1), Run(STRICT, 1.5, 2.0, 2)], Setting(0, 0, {"": 9, "*": 9})) == [
        f"2 of {STRICT} ran at 1.500, and 1 may: job 2"
    ]


def test_a_lowered_limit_holds_for_what_is_claimed_afterwards() -> None:
    before, after = Setting(0, 0, {"": 2, "*": 2}), Setting(10.0, 10.1, {"": 1, "*": 2})

    assert _exceeded([Run("a", 9.0, 30.0, 1), Run("b", 12.0, 30.0, 2)], before, after) == []
    assert _exceeded([Run("a", 9.0, 30.0, 1), Run("b", 20.0, 30.0, 2)], before, after) != []


def test_a_job_that_runs_after_a_later_one_of_its_ordered_group_is_seen() -> None:
    again = [Run(STRICT, 1.0, 2.0, 1), Run(STRICT, 2.0, 3.0, 1), Run(STRICT, 3.0, 4.0, 2)]

    assert list(stamped._overtaken(again)) == []  # noqa: SLF001
    assert list(stamped._overtaken([*again, Run(STRICT, 4.0, 5.0, 1)])) == [  # noqa: SLF001
        f"job 1 of {STRICT} ran at 4.000, after the later job 2"
    ]
