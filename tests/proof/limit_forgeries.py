"""Tales about limits, schedules and unique jobs, told as they should be and forged in one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline_proof.faults import Rule
from faultline_proof.reads.holdings import BudgetHeld
from tests.proof.forgeries import breaks

if TYPE_CHECKING:
    from tests.proof.tales import Tale


def _declared(tale: Tale, **fields: Any) -> None:
    tale.change("declare_queue", "q", None, {"queue": fields.pop("queue", {}), "each_group": fields})


def _enqueued(tale: Tale, *job_ids: str) -> None:
    for job_id in job_ids:
        tale.call("enqueue", job_id)


def _claimed(tale: Tale, job_id: str, **facts: Any) -> None:
    tale.call("claim", job_id, token=1, owner=f"{job_id}/1", **facts)


def _completed(tale: Tale, job_id: str, **facts: Any) -> None:
    tale.call("complete", job_id, token=1, owner=f"{job_id}/1", **facts)


def _done(tale: Tale, job_id: str, group: str | None = "g") -> None:
    tale.row("succeeded", 1, f"{job_id}/1", job_id, queue="q", group=group)


def _runs(tale: Tale, job_id: str, group: str | None = "g") -> None:
    tale.row("running", 1, f"{job_id}/1", job_id, queue="q", group=group, has_permit=True)


# No more run at once than the limit says


@breaks(Rule.LIMIT_KEPT)
def two_of_a_group_run_at_once(tale: Tale) -> None:
    """It may have been done when it was asked to be."""
    _declared(tale, concurrency=1)
    _enqueued(tale, "j", "k")
    _claimed(tale, "j")
    asked = tale.now
    _claimed(tale, "k")
    _completed(tale, "j", since=None if tale.forged else asked)
    _completed(tale, "k")
    _done(tale, "j")
    _done(tale, "k")


@breaks(Rule.LIMIT_KEPT)
def two_groups_exceed_the_limit_of_their_queue(tale: Tale) -> None:
    _declared(tale, queue={"concurrency": 1 if tale.forged else 2}, concurrency=1)
    _enqueued(tale, "j", "k")
    _claimed(tale, "j")
    _claimed(tale, "k")
    _runs(tale, "j", "g")
    _runs(tale, "k", "h")
    tale.given_out("", 2)
    tale.given_out("g", 1)
    tale.given_out("h", 1)


@breaks(Rule.LIMIT_KEPT)
def a_lowered_limit_is_exceeded_by_the_next_grant(tale: Tale) -> None:
    """Nobody is stopped by it, but nobody is granted anything either."""
    _declared(tale, concurrency=2)
    _enqueued(tale, "j", "k")
    _claimed(tale, "j")
    if tale.forged:
        tale.change("set_limit", "q", "g", {"concurrency": 1})
        _claimed(tale, "k")
    else:
        _claimed(tale, "k")
        tale.change("set_limit", "q", "g", {"concurrency": 1})
    _completed(tale, "j")
    _completed(tale, "k")
    _done(tale, "j")
    _done(tale, "k")


@breaks(Rule.LIMIT_KEPT)
def a_limit_that_was_reset_holds_again(tale: Tale) -> None:
    """A change without an answer may have been made."""
    _declared(tale, concurrency=1)
    tale.change("set_limit", "q", "g", {"concurrency": None})
    tale.change("reset_limit", "q", "g", None, outcome="ok" if tale.forged else "unknown")
    _enqueued(tale, "j", "k")
    _claimed(tale, "j")
    _claimed(tale, "k")
    _completed(tale, "j")
    _completed(tale, "k")
    _done(tale, "j")
    _done(tale, "k")


@breaks(Rule.LIMIT_KEPT)
def a_lease_that_is_renewed_is_held(tale: Tale) -> None:
    """Without a sign of life it may have been taken back by somebody without an answer."""
    _declared(tale, concurrency=1)
    _enqueued(tale, "j", "k")
    _claimed(tale, "j")
    _claimed(tale, "k")
    if tale.forged:
        tale.call("renew", "j", token=1, owner="j/1")
    _completed(tale, "k")
    tale.row("queued", 1, None, "j", queue="q", group="g")
    _done(tale, "k")


# Rates


@breaks(Rule.RATE_KEPT)
def more_are_granted_than_the_rate_allows(tale: Tale) -> None:
    """Three within seven seconds, at one in four seconds after the first."""
    _declared(tale, queue={"rate": 0.1 if tale.forged else 0.5, "burst": 1})
    _enqueued(tale, "j", "k", "l")
    for job_id in ("j", "k", "l"):
        _claimed(tale, job_id)
        _completed(tale, job_id)
        _done(tale, job_id, None)


@breaks(Rule.RATE_KEPT)
def a_burst_is_granted_twice(tale: Tale) -> None:
    _declared(tale, rate=1, per=60, burst=2 if tale.forged else 3)
    _enqueued(tale, "j", "k", "l")
    for job_id in ("j", "k", "l"):
        _claimed(tale, job_id)
        _completed(tale, job_id)
        _done(tale, job_id)


# Budgets


def _takes(tale: Tale, left: float, *takes: dict[str, Any]) -> None:
    """One in two seconds comes in, and one is taken every two."""
    tale.change("declare_budget", "b", {"rate": 1, "per": 2, "burst": 4})
    tale.claimed()
    for number, facts in enumerate(takes, start=1):
        tale.took(number=facts.pop("number", number), **facts)
    tale.row("running", 1, "a/1")
    tale.final.budgets.append(BudgetHeld("b", left))


@breaks(Rule.BUDGET_KEPT)
def more_is_taken_than_the_budget_has(tale: Tale) -> None:
    _takes(tale, 0.0, {"cost": 4}, {"cost": 3 if tale.forged else 1})


@breaks(Rule.BUDGET_KEPT)
def a_take_is_made_twice(tale: Tale) -> None:
    """Sent again with its number, it takes nothing."""
    _takes(tale, 0.0, {"cost": 4}, {"cost": 4, "number": 2 if tale.forged else 1})


@breaks(Rule.BUDGET_KEPT)
def a_set_burst_is_exceeded(tale: Tale) -> None:
    tale.change("set_budget", "b", {"rate": 1, "per": 2, "burst": 5 if tale.forged else 8})
    _takes(tale, 0.0, {"cost": 4}, {"cost": 4})


@breaks(Rule.BUDGET_WHOLE)
def tokens_are_missing_that_nobody_has_taken(tale: Tale) -> None:
    """A take without an answer may have taken them."""
    outcome = "failed" if tale.forged else "unknown"
    _takes(tale, 1.5, {"cost": 1}, {"cost": 2, "outcome": outcome}, {"cost": 1})


@breaks(Rule.BUDGET_WHOLE)
def what_comes_in_is_lost(tale: Tale) -> None:
    _takes(tale, 0.2 if tale.forged else 1.5, {"cost": 4}, {"cost": 1}, {"cost": 0.5}, {"cost": 0.5})


# Order


@breaks(Rule.GROUP_ORDER)
def the_second_of_a_strict_group_starts_while_the_first_waits_to_be_tried_again(tale: Tale) -> None:
    _declared(tale, ordered=True)
    _enqueued(tale, "j", "k")
    _claimed(tale, "j")
    tale.call("fail", "j", token=1, owner="j/1")
    tale.entry("attempt_failed", "running", "queued", 1)
    if not tale.forged:
        tale.call("claim", "j", token=2, owner="j/2")
        tale.call("complete", "j", token=2, owner="j/2")
    _claimed(tale, "k")
    _completed(tale, "k")
    if tale.forged:
        tale.call("claim", "j", token=2, owner="j/2")
        tale.call("complete", "j", token=2, owner="j/2")
    tale.row("succeeded", 2, "j/2", "j", queue="q", group="g")
    _done(tale, "k")


@breaks(Rule.GROUP_ORDER)
def the_second_of_a_strict_group_is_started_first(tale: Tale) -> None:
    """Of two that are enqueued at the same time, either may be the first."""
    _declared(tale, ordered=True)
    asked = tale.now
    tale.call("enqueue", "j")
    tale.call("enqueue", "k", since=None if tale.forged else asked)
    for job_id in ("k", "j"):
        _claimed(tale, job_id)
        _completed(tale, job_id)
        _done(tale, job_id)


@breaks(Rule.GROUP_ORDER)
def what_is_started_before_the_order_is_declared_has_none(tale: Tale) -> None:
    if tale.forged:
        _declared(tale, ordered=True)
    _enqueued(tale, "j", "k")
    for job_id in ("k", "j"):
        _claimed(tale, job_id)
        _completed(tale, job_id)
        _done(tale, job_id)
    if not tale.forged:
        _declared(tale, ordered=True)


# Permits


@breaks(Rule.PERMIT_FREED)
def a_permit_is_given_out_and_nobody_has_it(tale: Tale) -> None:
    _declared(tale, concurrency=1)
    _enqueued(tale, "j")
    _claimed(tale, "j")
    _completed(tale, "j")
    _done(tale, "j")
    tale.given_out("g", 1 if tale.forged else 0)


@breaks(Rule.PERMIT_FREED)
def a_running_job_has_a_permit_that_nobody_counts(tale: Tale) -> None:
    _declared(tale, concurrency=1)
    _enqueued(tale, "j")
    _claimed(tale, "j")
    _runs(tale, "j")
    tale.given_out("", 1)
    tale.given_out("g", 0 if tale.forged else 1)


@breaks(Rule.PERMIT_FREED)
def a_waiting_job_has_kept_its_permit(tale: Tale) -> None:
    """In a strict group it keeps it."""
    _declared(tale, ordered=not tale.forged)
    _enqueued(tale, "j")
    _claimed(tale, "j")
    tale.call("release", "j", token=1, owner="j/1")
    tale.row("queued", 1, None, "j", queue="q", group="g", has_permit=True)
    tale.given_out("g", 1)


# Schedules


@breaks(Rule.TICK_ONCE)
def one_moment_makes_two_jobs(tale: Tale) -> None:
    for at, job_id in ((60.0, "j"), (60.0 if tale.forged else 120.0, "k")):
        tale.tick(at, job_id)
        tale.row("queued", 0, None, job_id, attempt=0)


@breaks(Rule.TICK_ONCE)
def a_missed_moment_is_made_up_for_and_missed(tale: Tale) -> None:
    tale.tick(60.0, until=180.0 if tale.forged else 120.0)
    tale.tick(180.0, "j")
    tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ONCE)
def the_job_of_a_tick_is_lost(tale: Tale) -> None:
    tale.tick(60.0, "j")
    if not tale.forged:
        tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ONCE)
def two_ticks_name_one_job(tale: Tale) -> None:
    tale.tick(60.0, "j")
    tale.tick(120.0, "j" if tale.forged else None)
    tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ONCE)
def a_moment_was_forgotten(tale: Tale) -> None:
    tale.limits["every"] = {"nightly": 60.0}
    tale.tick(60.0, until=120.0)
    tale.tick(240.0 if tale.forged else 180.0, "j")
    tale.tick(200.0, "k", by_hand=True)
    for job_id in ("j", "k"):
        tale.row("queued", 0, None, job_id, attempt=0)


@breaks(Rule.TICK_ONCE)
def a_job_was_made_by_no_tick(tale: Tale) -> None:
    tale.limits["ticked"] = frozenset({"report"})
    tale.call("enqueue")
    tale.tick(60.0, None if tale.forged else "j")
    tale.row("queued", 0, None, attempt=0, task="report")


@breaks(Rule.TICK_ONCE)
def a_moment_that_was_on_time_is_left_out(tale: Tale) -> None:
    tale.limits["catch_up"] = {"nightly": "latest"}
    tale.tick(60.0, until=120.0, decided_at=122.0 if tale.forged else 124.0)
    tale.tick(180.0, "j")
    tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ONCE)
def a_moment_is_left_out_of_a_schedule_that_makes_up_for_all(tale: Tale) -> None:
    tale.limits["catch_up"] = {"nightly": "all" if tale.forged else "latest"}
    tale.tick(60.0, until=120.0, decided_at=500.0)
    tale.tick(180.0, "j")
    tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ONCE)
def all_moments_are_left_out_and_the_latest_too(tale: Tale) -> None:
    tale.limits["catch_up"] = {"nightly": "latest"}
    tale.tick(60.0, until=120.0, decided_at=500.0)
    if not tale.forged:
        tale.tick(180.0, "j")
        tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ONCE)
def a_schedule_has_stopped(tale: Tale) -> None:
    """It may have been about to decide its last moment."""
    tale.limits |= {"every": {"nightly": 60.0}, "ticked_until": 300.0 if tale.forged else 120.0}
    tale.tick(60.0, "j")
    tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ONCE)
def a_schedule_has_never_ticked(tale: Tale) -> None:
    tale.limits |= {"every": {"nightly" if not tale.forged else "hourly": 60.0}, "ticked_until": 120.0}
    tale.tick(60.0, "j")
    tale.row("queued", 0, None, attempt=0)


@breaks(Rule.TICK_ALONE)
def the_job_of_a_tick_starts_before_the_one_before_has_ended(tale: Tale) -> None:
    tale.limits["overlap"] = {"nightly": "one"}
    for at, job_id in ((60.0, "j"), (120.0, "k")):
        tale.tick(at, job_id, decided_at=at)
    _claimed(tale, "j")
    for call in (_claimed, _completed) if tale.forged else (_completed, _claimed):
        call(tale, "k" if call is _claimed else "j")
    _completed(tale, "k")
    _done(tale, "j")
    _done(tale, "k")


@breaks(Rule.TICK_ALONE)
def a_tick_is_skipped_and_nothing_is_open(tale: Tale) -> None:
    """Two of it are, and a third has no room."""
    tale.limits["overlap"] = {"nightly": "one"}
    tale.tick(60.0, "j", decided_at=60.0)
    if not tale.forged:
        tale.tick(120.0, "k", decided_at=120.0)
        tale.row("queued", 0, None, "k", attempt=0)
    tale.tick(180.0, outcome="skipped", decided_at=180.0)
    tale.row("queued", 0, None, "j", attempt=0)


@breaks(Rule.TICK_ALONE)
def a_tick_makes_a_third_job_beside_two_that_are_open(tale: Tale) -> None:
    tale.limits["overlap"] = {"nightly": "one"}
    for at, job_id in ((60.0, "j"), (120.0, "k"), (180.0, "l")):
        if job_id != "l" or tale.forged:
            tale.tick(at, job_id, decided_at=at)
            tale.row("queued", 0, None, job_id, attempt=0)


# Unique jobs


@breaks(Rule.UNIQUE_ONE)
def two_wait_for_one_key(tale: Tale) -> None:
    """Once the first has begun, a second one is made."""
    tale.call("enqueue", "j", detail="doc")
    if not tale.forged:
        _claimed(tale, "j")
    tale.call("enqueue", "k", detail="doc")
    if tale.forged:
        _claimed(tale, "j")
    _completed(tale, "j")
    _claimed(tale, "k")
    _completed(tale, "k")
    _done(tale, "j")
    _done(tale, "k")


@breaks(Rule.UNIQUE_ONE)
def two_wait_for_one_key_and_nobody_comes(tale: Tale) -> None:
    """If the first was cancelled, it waits no more."""
    tale.call("enqueue", "j", detail="doc")
    if not tale.forged:
        tale.call("cancel", "j")
        tale.entry("cancelled", "queued", "cancelled", 0)
    tale.call("enqueue", "k", detail="doc")
    tale.row("queued" if tale.forged else "cancelled", attempt=0)
    tale.row("queued", job_id="k", attempt=0)


@breaks(Rule.UNIQUE_RUN)
def a_submission_is_answered_with_a_job_whose_last_run_has_begun(tale: Tale) -> None:
    """Sent again by its key, it is answered as it was before."""
    tale.call("enqueue", "j", detail="doc", key="first")
    _claimed(tale, "j")
    tale.call("enqueue", "j", detail="doc", key="second" if tale.forged else "first")
    _completed(tale, "j")
    _done(tale, "j")


@breaks(Rule.UNIQUE_RUN)
def a_submission_is_answered_with_a_job_that_is_done(tale: Tale) -> None:
    """While both were on their way, either may have been the first."""
    tale.call("enqueue", "j", detail="doc")
    asked = tale.now
    _claimed(tale, "j")
    tale.call("enqueue", "j", detail="doc", since=None if tale.forged else asked)
    _completed(tale, "j")
    _done(tale, "j")
