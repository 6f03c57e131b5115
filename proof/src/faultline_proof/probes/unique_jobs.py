"""Unique jobs: what stands in for another does its work, whatever becomes of either."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.probes.limit_stage import done, expect_right_accounts, failed, groups, limit, put, take
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.sessions import Session, Sessions

_STATES = "select state from faultline.open_jobs order by created_at, id"


def ask(q: Session, **fields: Any) -> UUID:
    """Enqueue a job that is unique by the key `k`."""
    (made,) = put(q, **{"unique": {"key": "k"}} | fields)
    return made


def states(q: Session) -> list[str]:
    return [state for (state,) in q.execute(_STATES)]


@probe("insert_unique_jobs", "unique_keys")
def a_key_is_one_of_its_task(sessions: Sessions) -> None:
    q = sessions.open()
    first, second = ask(q, task="index"), ask(q, task="notify")
    expect("jobs of two tasks", first != second, wanted=True)
    expect("again", [ask(q, task="index"), ask(q, task="notify")], [first, second])
    jobs = [{"task": task, "unique": {"key": "k", "then": "replace"}} for task in ("notify", "index", "notify")]
    answers = q.execute("select job_id from faultline.enqueue_many(%s::text) order by ordinal", json.dumps(jobs))
    expect("in one submission", [job for (job,) in answers], [second, first, second])


@probe("supersede", "unique_keys")
def a_job_of_another_task_supersedes_nobody(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    ask(q, task="index")
    held = take(q)
    ask(q, task="notify")
    failed(q, *held)
    expect("states", states(q), ["queued", "queued"])


@probe("supersede", "expire")
def what_supersedes_a_job_does_not_expire(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    ask(q)
    held = take(q)
    other = ask(q, expires_seconds=1)
    failed(q, *held)
    expect("states", states(q), ["cancelled", "queued"])
    sessions.clock.advance(5)
    q.execute("select * from faultline.expire()")
    expect("runs", [one.job_id for one in take(q)], [other])


@probe("renew_unique", "expire")
def what_a_submission_lets_live_longer_runs_though_a_claim_passed_over_it(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=5)
    first = ask(q, group="g", expires_seconds=1)
    put(q, "g")
    late.begin()
    expect("queued already", ask(late, group="g"), first)
    sessions.clock.advance(5)
    expect("granted meanwhile", first in [one.job_id for one in take(q)], wanted=False)
    late.commit()
    sessions.clock.advance(1)
    expect("runs", [one.job_id for one in take(q)], [first])


@probe("supersede", "expire")
def what_supersedes_a_job_runs_though_a_claim_passed_over_it(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=5)
    ask(q, group="g")
    held = take(q)
    other = ask(q, group="g", expires_seconds=1)
    put(q, "g")
    late.begin()
    failed(late, *held)
    sessions.clock.advance(5)
    expect("granted meanwhile", other in [one.job_id for one in take(q)], wanted=False)
    late.commit()
    sessions.clock.advance(1)
    expect("runs", [one.job_id for one in take(q)], [other])


@probe("insert_unique_jobs", "has_expired", "expire", "still_stands")
def nobody_is_answered_with_a_job_that_has_expired(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for spec in ({"key": "a", "while": "open"}, {"key": "b", "while": None, "period": 600}):
        first = ask(q, unique=spec, expires_seconds=60)
        expect("before it expires", ask(q, unique=spec, expires_seconds=60), first)
        sessions.clock.advance(70)
        second = ask(q, unique=spec)
        expect("another job", second != first, wanted=True)
        q.execute("select * from faultline.expire()")
        expect("runs", [one.job_id for one in take(q)], [second])


@probe("insert_unique_jobs", "has_expired")
def a_job_that_was_claimed_stands_in_however_late(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    first = ask(q, unique={"key": "k", "while": "open"}, expires_seconds=60)
    # With a step it is not one that starts anew.
    (held,) = take(q)
    q.execute("select * from faultline.step(%s, %s, %s, 's', '1')", held.job_id, held.token, held.owner)
    failed(q, held)
    sessions.clock.advance(70)
    expect("answered", ask(q, unique={"key": "k", "while": "open"}), first)


@probe("supersede", "expire", "wake")
def workers_look_again_for_one_that_no_longer_expires(sessions: Sessions) -> None:
    q = sessions.open()
    ask(q)
    held = take(q)
    ask(q, expires_seconds=60)
    q.execute("listen faultline")
    failed(q, *held)
    expect("hints", len(q.notices()), 1)


@probe("supersede")
def a_job_is_not_superseded_by_one_that_is_due_later(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    first = ask(q)
    held = take(q)
    ask(q, delay_seconds=60)
    failed(q, *held, delay=30)
    expect("states", states(q), ["queued", "queued"])
    sessions.clock.advance(30)
    held = take(q)
    expect("runs", [one.job_id for one in held], [first])
    # Its next attempt would come after the other.
    failed(q, *held, delay=3600)
    expect("states then", states(q), ["cancelled", "queued"])


@probe("supersede", "cancel")
def a_job_is_not_superseded_by_one_that_somebody_is_ending(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    sessions.clock.take()
    ask(q)
    held = take(q)
    second = ask(q)
    other.begin()
    other.execute("select faultline.cancel(%s)", second)
    sessions.at_once(q, lambda one: failed(one, *held))
    other.commit()
    expect("states", states(q), ["queued", "cancelled"])


@probe("renew_unique", "claim_limited", "move_due_jobs_into_groups")
def a_replaced_job_goes_to_its_new_group(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", concurrency=1)
    unique = {"key": "k", "then": "replace"}
    put(q, "b", 1)
    moved = ask(q, group="a", unique=unique)
    expect("answer", ask(q, group="b", unique=unique), moved)
    held = take(q)
    expect("at once", groups(held), ["b"])
    done(q, *held)
    held += (then := take(q))
    expect("then", groups(then), ["b"])
    done(q, *then)
    expect("both", moved in [one.job_id for one in held], wanted=True)
    for group in ("new", None):
        ask(q, group="a", unique=unique)
        ask(q, **({} if group is None else {"group": group}), unique=unique)
        expect("to a new group, and to none", groups(last := take(q)), [str(group)])
        done(q, *last)
    expect_right_accounts(q)


@probe("renew_unique")
def a_job_that_is_replaced_at_the_same_moment_leaves_its_group(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=1)
    unique = {"key": "k", "then": "replace"}
    moved = ask(q, group="a", unique=unique)
    expect("answer", ask(q, group="new", unique=unique), moved)
    expect("granted", [(one.job_id, one.group) for one in take(q)], [(moved, "new")])
    expect_right_accounts(q)


@probe("renew_unique", "free_permits")
def a_replaced_job_gives_back_what_it_kept_of_its_old_group(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "*", ordered=True)
    unique = {"key": "k", "then": "replace"}
    moved = ask(q, group="a", unique=unique)
    put(q, "a", 1)
    failed(q, *take(q))
    expect("answer", ask(q, group="b", unique=unique), moved)
    expect("both groups", groups(take(q)), ["a", "b"])
    expect_right_accounts(q)


@probe("free_keys", "prune", "forget_jobs", "insert_unique_jobs", "prune_failed")
def a_failed_job_counts_for_no_period_also_when_it_is_pruned(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    unique = {"key": "k", "while": None, "period": 86400}
    first = ask(q, unique=unique)
    failed(q, *take(q), then="fail")
    other.begin()
    other.execute("select from faultline.unique_keys for update")
    pruned = sessions.at_once(q, lambda one: one.value("select faultline.prune('failed', '0')"))
    expect("pruned while its key is held", pruned, 0)
    other.rollback()
    expect("pruned", q.value("select faultline.prune('failed', '0')"), 1)
    second = ask(q, unique=unique)
    expect("another", second != first, wanted=True)
    # The same for one of a flow.
    held = take(q)
    q.execute("select faultline.join_flow(%s)", second)
    failed(q, *held, then="fail")
    expect("pruned with its flow", q.value("select faultline.prune('flows', '0')") > 0, wanted=True)
    third = ask(q, unique=unique)
    expect("a third", third != second, wanted=True)
    # One that is done counts.
    done(q, *take(q))
    q.execute("select faultline.prune('ledger', '0')")
    expect("the same", ask(q, unique=unique), third)


@probe("free_keys", "prune", "prune_failed")
def a_key_that_names_another_job_outlives_the_one_before(sessions: Sessions) -> None:
    q = sessions.open()
    ask(q)
    failed(q, *take(q), then="fail")
    second = ask(q)
    expect("pruned", q.value("select faultline.prune('failed', '0')"), 1)
    expect("the same", ask(q), second)


@probe("requeue_ended_jobs", "reclaim_unique_keys", "retry", "retry_failed")
def of_retried_jobs_with_one_key_one_waits(sessions: Sessions) -> None:
    q = sessions.open()
    made = []
    for _ in range(3):
        made.append(ask(q))
        failed(q, *take(q), then="fail")
    retry = "select faultline.retry(%s)"
    expect("retried", [q.value(retry, job) for job in made], ["queued", "cancelled", "cancelled"])
    expect("answer", ask(q), made[0])
    failed(q, *take(q), then="fail")
    expect("all at once", [q.value(retry, job) for job in made[1:]], ["queued", "cancelled"])
    expect("answer then", ask(q), made[1])
    expect("states", sorted(states(q)), ["cancelled", "failed", "queued"])


@probe("reclaim_unique_keys")
def a_retried_job_does_not_take_a_key_that_another_waits_under(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    first = ask(q)
    failed(q, *take(q), then="fail")
    second = ask(q)
    expect("retried", q.value("select faultline.retry(%s)", first), "cancelled")
    expect("answer", ask(q), second)
    # While a submission holds the key, it is left to it.
    failed(q, *take(q), then="fail")
    other.begin()
    third = ask(other)
    expect("meanwhile", sessions.at_once(q, lambda one: one.value("select faultline.retry(%s)", first)), "queued")
    other.commit()
    expect("answer then", ask(q), third)


@probe("prune", "unique_keys", "prune_unique_keys")
def keys_that_are_kept_for_long_keep_no_others(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    put(q, None, 1, unique={"key": "waits"}, delay_seconds=864000)
    put(q, None, 1, unique={"key": "period", "period": 864000})
    sessions.clock.advance(1)
    put(q, None, 1, unique={"key": "dead"})
    done(q, *take(q))
    sessions.clock.advance(7200)
    # Ten times the rows are looked at: copies of the others stand before it.
    sessions.hand.execute(
        "insert into faultline.unique_keys select queue, key || n, task, job_id, at, until from faultline.unique_keys,"
        " generate_series(1, 20) n where key <> 'dead'"
    )
    gone = sum(q.value("select faultline.prune('unique_keys', null, 1)") for _ in range(5))
    expect("gone", (gone, q.value("select count(*) from faultline.unique_keys where key = 'dead'")), (1, 0))
    expect("kept", q.value("select count(*) from faultline.unique_keys"), 42)


@probe("parse_new_jobs", "expiry_problem", "reject_job")
def a_debounce_is_shorter_than_the_expiry(sessions: Sessions) -> None:
    q = sessions.open()
    with refused(q, "FL005", "it expires before it may run"):
        ask(q, unique={"key": "k", "debounce": 60}, expires_seconds=60)
    ask(q, unique={"key": "k", "debounce": 60}, expires_seconds=61)
