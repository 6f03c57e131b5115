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


def _run(group: str, began: float, ended: float, job_id: int, claimed: float | None = None) -> Run:
    return Run(group, began if claimed is None else claimed, began, ended, job_id)


def test_one_too_many_is_seen_of_the_queue_and_of_a_group() -> None:
    setting = Setting(0, 0, {"": 2, "*": 1})
    first, second = _run("a", 1.0, 2.0, 1), _run("b", 1.5, 3.0, 2)

    assert _exceeded([first, second, _run("a", 2.0, 3.0, 3)], setting) == []
    (too_many,) = _exceeded([first, second, _run("c", 1.9, 3.0, 3)], setting)
    assert too_many.startswith("3 of the queue ran at 1.900, and 2 may: ")
    (of_group,) = _exceeded([first, _run("a", 1.9, 3.0, 2)], setting)
    assert of_group.startswith("2 of a ran at 1.900, and 1 may: ")
    (strict,) = _exceeded([_run(STRICT, 1.0, 2.0, 1), _run(STRICT, 1.5, 2.0, 2)], Setting(0, 0, {"": 9, "*": 9}))
    assert strict.startswith(f"2 of {STRICT} ran at 1.500, and 1 may: ")


def test_a_lowered_limit_holds_for_what_is_claimed_afterwards() -> None:
    before, after = Setting(0, 0, {"": 2, "*": 2}), Setting(10.0, 10.1, {"": 1, "*": 2})
    runs = _run("a", 9.0, 30.0, 1)

    assert _exceeded([runs, _run("b", 12.0, 30.0, 2, claimed=10.05)], before, after) == []
    assert _exceeded([runs, _run("b", 12.0, 30.0, 2, claimed=10.2)], before, after) != []


def test_a_job_that_runs_after_a_later_one_of_its_ordered_group_is_seen() -> None:
    again = [_run(STRICT, 1.0, 2.0, 1), _run(STRICT, 2.0, 3.0, 1), _run(STRICT, 3.0, 4.0, 2)]

    assert list(stamped._overtaken(again)) == []  # noqa: SLF001
    assert list(stamped._overtaken([*again, _run(STRICT, 4.0, 5.0, 1)])) == [  # noqa: SLF001
        f"job 1 of {STRICT} ran at 4.000, after the later job 2"
    ]
