"""Tales that are told twice: as they should be, and forged in one thing. Each names the one rule that the forgery breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.faults import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.tales import Tale

    Telling = Callable[[Tale], None]

FORGERIES: dict[str, tuple[Rule, Telling]] = {}


def breaks(rule: Rule) -> Callable[[Telling], Telling]:
    def keep(tell: Telling) -> Telling:
        FORGERIES[tell.__name__] = (rule, tell)
        return tell

    return keep


# No acknowledged job is lost


@breaks(Rule.KEPT)
def only_a_lost_answer_allows_a_lost_job(tale: Tale) -> None:
    tale.call("enqueue", outcome="ok" if tale.forged else "unknown")


@breaks(Rule.KEPT)
def what_a_client_gave_its_caller_is_gone(tale: Tale) -> None:
    tale.call("enqueue", outcome="unknown")
    if tale.forged:
        tale.call("saw", detail="queued")


@breaks(Rule.KEPT)
def only_what_has_ended_can_have_been_pruned(tale: Tale) -> None:
    tale.limits["pruned"] = True
    tale.claimed()
    tale.by("a/1", 1, "renew" if tale.forged else "complete")


# A job succeeds at most once


@breaks(Rule.ONCE)
def two_leases_complete_one_job(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "complete", outcome="ok" if tale.forged else "unknown")
    tale.by("b/1", 2, "claim")
    tale.by("b/1", 2, "complete")
    tale.row("succeeded", 2, "b/1")


@breaks(Rule.ONCE)
def another_lease_than_the_ledgers_completes_the_job(tale: Tale) -> None:
    """The same one may do it twice."""
    tale.claimed()
    tale.by("a/1", 1, "complete", outcome="unknown")
    tale.by("a/1", 1, "complete")
    tale.row("succeeded", 1, "b/1" if tale.forged else "a/1")


@breaks(Rule.ONCE)
def the_ledger_holds_a_job_twice(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "complete")
    for _ in range(2 if tale.forged else 1):
        tale.row("succeeded", 1, "a/1")


@breaks(Rule.ONCE)
def a_completed_job_is_still_open(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "complete", outcome="ok" if tale.forged else "unknown")
    tale.row("running", 1, "a/1")


# An accepted write carries the newest token


@breaks(Rule.NEWEST_TOKEN)
def a_stale_completion_is_accepted(tale: Tale) -> None:
    """It may have come first if it was under way before the other was granted the job."""
    tale.claimed()
    sent = tale.now
    tale.call("claim", None, outcome="unknown", owner="x/1")
    tale.by("b/1", 2, "claim")
    tale.by("a/1", 1, "renew", since=None if tale.forged else sent)
    tale.row("running", 2, "b/1")


@breaks(Rule.NEWEST_TOKEN)
def a_stale_completion_is_in_the_ledger(tale: Tale) -> None:
    tale.claimed()
    if tale.forged:
        tale.by("b/1", 2, "claim")
    tale.by("a/1", 1, "complete", outcome="unknown")
    tale.row("succeeded", 1, "a/1")


@breaks(Rule.NEWEST_TOKEN)
def somebody_else_writes_with_a_good_token(tale: Tale) -> None:
    tale.claimed()
    tale.by("b/1" if tale.forged else "a/1", 1, "progress")
    tale.row("running", 1, "a/1")


@breaks(Rule.NEWEST_TOKEN)
def a_token_that_nobody_was_granted_is_accepted(tale: Tale) -> None:
    """A claim without an answer may have been granted it."""
    tale.call("enqueue")
    if not tale.forged:
        tale.call("claim", None, outcome="unknown", owner="a/1")
    tale.by("a/1", 1, "renew")
    tale.row("running", 1, "a/1")


# Tokens grow


@breaks(Rule.TOKENS_GROW)
def one_token_is_granted_twice(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/2" if tale.forged else "a/1", 1, "claim" if tale.forged else "claimed_by")
    tale.row("running", 1, "a/1")


@breaks(Rule.TOKENS_GROW)
def a_smaller_token_is_granted_later(tale: Tale) -> None:
    """Two claims at the same time may have been granted it in either order."""
    tale.claimed(token=2)
    tale.by("b/1", 1, "claim", since=None if tale.forged else 2.5)
    tale.row("running", 2, "a/1")


@breaks(Rule.TOKENS_GROW)
def the_job_holds_a_smaller_token_than_was_granted(tale: Tale) -> None:
    tale.claimed(token=2)
    tale.row("queued", 1 if tale.forged else 2)


@breaks(Rule.TOKENS_GROW)
def a_step_carries_a_greater_token_than_its_job(tale: Tale) -> None:
    tale.claimed()
    tale.step("paid", 2 if tale.forged else 1)
    tale.row("running", 1, "a/1")


@breaks(Rule.TOKENS_GROW)
def the_journal_goes_back_to_a_smaller_token(tale: Tale) -> None:
    tale.call("enqueue")
    tale.entry("attempt_failed", "running", "queued", 2)
    tale.entry("lease_reaped", "running", "queued", 1 if tale.forged else 3)
    tale.row("queued", 3)


# Effects exist exactly once


@breaks(Rule.EFFECT_ONCE)
def a_succeeded_job_has_no_effect(tale: Tale) -> None:
    tale.limits["effects_of"] = frozenset({"t"})
    tale.claimed()
    tale.by("a/1", 1, "complete")
    tale.row("succeeded", 1, "a/1")
    if not tale.forged:
        tale.effect(1)


@breaks(Rule.EFFECT_ONCE)
def a_job_has_two_effects(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "complete", outcome="unknown")
    tale.row("succeeded", 1, "a/1")
    for _ in range(2 if tale.forged else 1):
        tale.effect(1)


@breaks(Rule.EFFECT_ONCE)
def a_job_that_is_not_done_has_an_effect(tale: Tale) -> None:
    tale.limits["effects_of"] = frozenset({"t"})
    tale.claimed()
    tale.row("running", 1, "a/1")
    if tale.forged:
        tale.effect(1)


@breaks(Rule.EFFECT_ONCE)
def the_effect_is_an_earlier_attempts(tale: Tale) -> None:
    tale.taken_over()
    tale.by("b/1", 2, "complete")
    tale.row("succeeded", 2, "b/1", key="order:1")
    tale.effect(1 if tale.forged else 2, key="order:1")


@breaks(Rule.EFFECT_ONCE)
def an_effect_belongs_to_no_job(tale: Tale) -> None:
    tale.limits["pruned"] = not tale.forged
    tale.effect(1)


# Only legal changes


@breaks(Rule.LEGAL)
def a_released_lease_completes(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "release", outcome="ok" if tale.forged else "unknown")
    tale.by("a/1", 1, "complete")
    tale.row("succeeded", 1, "a/1")


@breaks(Rule.LEGAL)
def a_reaped_lease_is_renewed(tale: Tale) -> None:
    """Unless the renewal was under way before the reaper's answer."""
    tale.claimed()
    sent = tale.now
    tale.by("a/1", 1, "reap")
    tale.by("a/1", 1, "renew", since=None if tale.forged else sent)
    tale.entry("lease_reaped", "running", "queued", 1)
    tale.row("queued", 1)


@breaks(Rule.LEGAL)
def a_cancelled_job_makes_progress(tale: Tale) -> None:
    tale.claimed()
    sent = tale.now
    tale.call("cancel")
    tale.by("a/1", 1, "progress", since=None if tale.forged else sent)
    tale.entry("cancelled", "running", "cancelled", 1)
    tale.row("cancelled", 1)


@breaks(Rule.LEGAL)
def a_failed_job_succeeds_though_nobody_retried_it(tale: Tale) -> None:
    tale.claimed()
    tale.entry("attempt_failed", "running", "failed", 1)
    if not tale.forged:
        tale.entry("retried", "failed", "queued", 1)
    tale.by("a/2", 2, "claim")
    tale.by("a/2", 2, "complete")
    tale.row("succeeded", 2, "a/2")


@breaks(Rule.LEGAL)
def a_job_fails_and_the_journal_is_silent(tale: Tale) -> None:
    tale.claimed()
    if not tale.forged:
        tale.entry("attempt_failed", "running", "failed", 1)
    tale.row("failed", 1)


@breaks(Rule.LEGAL)
def an_epoch_that_was_reaped_is_in_the_ledger(tale: Tale) -> None:
    tale.claimed()
    if tale.forged:
        tale.entry("lease_reaped", "running", "queued", 1)
    tale.by("a/1", 1, "complete", outcome="unknown")
    tale.row("succeeded", 1, "a/1")


@breaks(Rule.LEGAL)
def a_waiting_job_is_reaped(tale: Tale) -> None:
    tale.call("enqueue")
    tale.entry("lease_reaped", "queued" if tale.forged else "running", "queued", 1)
    tale.row("queued", 1)


@breaks(Rule.LEGAL)
def a_job_runs_without_a_lease(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, None if tale.forged else "a/1")


@breaks(Rule.LEGAL)
def a_job_has_more_attempts_than_it_may(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1", attempt=4 if tale.forged else 3, max_attempts=3)


# One truth


@breaks(Rule.ONE_TRUTH)
def a_job_is_open_and_done(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "complete", outcome="unknown")
    if tale.forged:
        tale.row("running", 1, "a/1")
    tale.row("succeeded", 1, "a/1")


@breaks(Rule.ONE_TRUTH)
def a_refused_job_is_there(tale: Tale) -> None:
    tale.call("enqueue", outcome="failed" if tale.forged else "unknown")
    tale.row("queued")


@breaks(Rule.ONE_TRUTH)
def a_job_is_there_that_nobody_enqueued(tale: Tale) -> None:
    """Unless somebody's enqueue without an answer left the id to the database."""
    if not tale.forged:
        tale.call("enqueue", None, outcome="unknown")
    tale.row("queued")


@breaks(Rule.ONE_TRUTH)
def a_refused_completion_is_in_the_ledger(tale: Tale) -> None:
    """Sent again while the first was still under way, it may be refused as busy, and the first is accepted."""
    tale.claimed()
    tale.by("a/1", 1, "complete", outcome="failed" if tale.forged else "unknown")
    tale.by("a/1", 1, "complete", outcome="failed")
    tale.row("succeeded", 1, "a/1")


@breaks(Rule.ONE_TRUTH)
def a_job_is_done_that_nobody_completed(tale: Tale) -> None:
    tale.limits["whole"] = tale.forged
    tale.claimed()
    tale.row("succeeded", 1, "a/1")


@breaks(Rule.ONE_TRUTH)
def one_key_has_made_two_jobs(tale: Tale) -> None:
    tale.call("enqueue", key="k", outcome="unknown")
    tale.call("enqueue", "other", key="k" if tale.forged else "another")
    tale.row("queued", key="k")
    tale.row("queued", job_id="other", key="k" if tale.forged else "another")


@breaks(Rule.ONE_TRUTH)
def one_key_was_answered_with_two_jobs(tale: Tale) -> None:
    tale.call("enqueue", key="k")
    tale.call("enqueue", "other" if tale.forged else "j", key="k")
    tale.row("queued", key="k")
    if tale.forged:
        tale.row("queued", job_id="other")


@breaks(Rule.ONE_TRUTH)
def an_accepted_step_is_forgotten(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "step", detail="paid")
    tale.step("sent" if tale.forged else "paid", 1)
    tale.row("running", 1, "a/1")


@breaks(Rule.ONE_TRUTH)
def an_accepted_failure_is_not_in_the_journal(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "fail")
    if not tale.forged:
        tale.entry("attempt_failed", "running", "queued", 1)
    tale.row("queued", 1)


@breaks(Rule.ONE_TRUTH)
def an_answered_reap_is_not_in_the_journal(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "reap")
    if not tale.forged:
        tale.entry("lease_reaped", "running", "queued", 1)
    tale.row("queued", 1)


@breaks(Rule.ONE_TRUTH)
def an_answered_cancel_is_undone(tale: Tale) -> None:
    tale.call("enqueue")
    tale.call("cancel")
    if not tale.forged:
        tale.entry("cancelled", "queued", "cancelled", 0)
    tale.row("queued" if tale.forged else "cancelled")


@breaks(Rule.ONE_TRUTH)
def an_answered_cancel_of_one_that_was_superseded_is_undone(tale: Tale) -> None:
    """It was cancelled already, so nothing was written."""
    tale.call("enqueue")
    tale.call("cancel")
    if not tale.forged:
        tale.entry("superseded", "queued", "cancelled", 0)
    tale.row("queued" if tale.forged else "cancelled")


@breaks(Rule.ONE_TRUTH)
def an_answered_retry_is_undone(tale: Tale) -> None:
    tale.call("enqueue")
    tale.entry("cancelled", "queued", "cancelled", 0)
    tale.call("retry")
    if not tale.forged:
        tale.entry("retried", "cancelled", "queued", 0)
    tale.row("cancelled" if tale.forged else "queued")


@breaks(Rule.ONE_TRUTH)
def a_success_that_was_seen_is_undone(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "complete", outcome="unknown")
    tale.call("saw", detail="succeeded" if tale.forged else "running")
    tale.row("running", 1, "a/1")


# In time


@breaks(Rule.IN_TIME)
def a_job_ends_too_late(tale: Tale) -> None:
    tale.claimed()
    tale.by("a/1", 1, "complete")
    tale.limits |= {"faults_stopped_at": 3.0, "seconds_to_end": lambda _: 2.9 if tale.forged else 3.0}
    tale.row("succeeded", 1, "a/1", finished_at=6.0)


@breaks(Rule.IN_TIME)
def a_job_never_ends(tale: Tale) -> None:
    tale.call("enqueue")
    tale.limits |= {"faults_stopped_at": 0.0 if tale.forged else 1.0, "seconds_to_end": lambda _: 1.0}
    tale.row("queued")


@breaks(Rule.IN_TIME)
def a_job_that_is_due_is_not_run(tale: Tale) -> None:
    tale.call("enqueue")
    tale.limits |= {"faults_stopped_at": 0.0, "seconds_to_end": lambda _: 1.0}
    tale.row("queued", due_at=0.0 if tale.forged else 1.5)


# Only its task or the loss of its worker uses up an attempt


@breaks(Rule.SPARED)
def an_innocent_job_has_failed(tale: Tale) -> None:
    tale.limits["own_failures"] = lambda _: 0 if tale.forged else 1
    tale.claimed()
    tale.by("a/1", 1, "fail")
    tale.entry("attempt_failed", "running", "failed", 1)
    tale.row("failed", 1, max_attempts=1)


@breaks(Rule.SPARED)
def an_attempt_is_gone_though_its_worker_lived(tale: Tale) -> None:
    tale.limits["own_failures"] = lambda _: 0
    tale.limits["was_lost"] = lambda grant, _: grant.token == 1 and not tale.forged
    tale.taken_over()
    tale.by("b/1", 2, "complete")
    tale.row("succeeded", 2, "b/1", attempt=2)
