"""The checker catches every forgery by the rule that it breaks, and by no other, and accepts what is legal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from faultline_proof.checker import check
from faultline_proof.faults import Rule
from faultline_proof.history import Final, History
from faultline_proof.reads.holdings import JobHeld
from tests.proof import flow_forgeries, limit_forgeries  # noqa: F401 - their tales are among the others
from tests.proof.forgeries import FORGERIES
from tests.proof.tales import Tale, legal_runs


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_caught_by_the_rule_that_it_breaks_and_by_no_other(name: str) -> None:
    rule, tell = FORGERIES[name]
    tale = Tale(forged=True)

    tell(tale)

    assert [fault.rule for fault in tale.faults()] == [rule], list(map(str, tale.faults()))


@pytest.mark.parametrize("name", FORGERIES)
def test_the_same_tale_without_the_forgery_is_accepted(name: str) -> None:
    _, tell = FORGERIES[name]
    tale = Tale()

    tell(tale)

    assert list(map(str, tale.faults())) == []


def test_every_rule_has_a_forgery() -> None:
    assert {rule for rule, _ in FORGERIES.values()} == set(Rule)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(legal_runs())
def test_a_legal_run_is_accepted(tale: Tale) -> None:
    assert list(map(str, tale.faults())) == []


@settings(max_examples=100, derandomize=True, deadline=None)
@given(legal_runs())
def test_a_run_whose_last_job_is_lost_is_not(tale: Tale) -> None:
    acknowledged = {op.job_id for op in tale.history.operations if op.verb == "enqueue" and op.outcome == "ok"}
    lost = [row.job_id for row in tale.final.jobs if row.job_id in acknowledged][-1:]
    tale.final.jobs = [row for row in tale.final.jobs if row.job_id not in lost]

    kept = [fault.job_id for fault in tale.faults() if fault.rule is Rule.KEPT]

    assert kept == lost


def test_a_fault_tells_its_story() -> None:
    tale = Tale()
    tale.claimed()
    tale.by("b/1", 2, "claim")
    tale.by("a/1", 1, "progress")
    tale.row("running", 2, "b/1")

    (fault,) = tale.faults()

    assert str(fault).split("\n") == [
        "an accepted write carries the newest token: job j accepted token 1 though token 2 had been granted before",
        "  p: claim token 2 owner b/1 from 5.000000 to 6.000000: ok",
        "  p: progress token 1 owner a/1 from 7.000000 to 8.000000: ok",
    ]


def test_a_used_up_attempt_names_its_task_and_the_stored_error() -> None:
    tale = Tale()
    tale.limits["own_failures"] = lambda _: 0
    tale.claimed()
    tale.by("a/1", 1, "fail")
    tale.entry("attempt_failed", "running", "failed", 1, error="QueryCanceled: canceling statement due to user request")
    tale.row("failed", 1, max_attempts=1, task="pay")

    (fault,) = tale.faults()

    assert "of task pay is failed" in fault.story
    assert fault.story.endswith("its errors: QueryCanceled: canceling statement due to user request")


def test_an_operation_ends_once() -> None:
    operation = History().invoke("w", "renew", 1.0, job_id="j")
    operation.unknown(2.0)

    with pytest.raises(AssertionError, match="has ended already"):
        operation.ok(3.0)


def test_a_job_with_a_hundred_thousand_operations_is_no_burden() -> None:
    """Grouped by job and sorted, never each against each: that would be a thousand million comparisons here."""
    history = History()
    history.invoke("c", "enqueue", 0.0, job_id="j").ok(0.5)
    for token in range(1, 50_001):
        history.invoke("w", "claim", token, job_id="j", token=token, owner=f"w/{token}").ok(token + 0.1)
        history.invoke("w", "release", token + 0.2, job_id="j", token=token, owner=f"w/{token}").ok(token + 0.3)
    row = JobHeld("j", "queued", "t", 50_000, None, 0, 5, 0.0, 0.0, None)

    assert check(history, Final(at=60_000.0, jobs=[row])) == []
