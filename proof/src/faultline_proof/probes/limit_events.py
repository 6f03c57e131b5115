"""What happened to groups is heard, whatever commits late, is locked, or happens in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.probes.limit_stage import done, expect_right_accounts, given_back, groups, limit, put, take
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


@probe("open_xids", "hear")
def an_event_that_is_committed_late_is_heard(sessions: Sessions) -> None:
    q, late = sessions.open(), sessions.open()
    limit(q, "a", concurrency=1)
    late.begin()
    put(late, "a", 1)
    for group in "bc":
        put(q, group, 1)
        expect("granted meanwhile", groups(take(q)), [group])
    late.commit()
    expect("heard though it committed late", groups(take(q)), ["a"])


@probe("open_xids", "hear")
def an_event_of_the_claims_own_transaction_is_heard_by_the_next(sessions: Sessions) -> None:
    q = sessions.open()
    limit(q, "a", concurrency=1)
    put(q, "a", 2)
    q.begin()
    done(q, *take(q))
    q.commit()
    expect("granted then", groups(take(q)), ["a"])
    expect_right_accounts(q)


@probe("pick_groups")
def a_row_that_somebody_has_locked_is_not_forgotten(sessions: Sessions) -> None:
    q, user = sessions.open(), sessions.open()
    sessions.clock.take()
    limit(q, "*", concurrency=5)
    job_ids = put(q, "a", 3)
    user.begin()
    user.execute("select from faultline.open_jobs where id = %s for update", job_ids[0])
    held = take(q)
    expect("granted beside it", len(held), 2)
    user.rollback()
    sessions.clock.advance(0.2)
    expect("granted then", [one.job_id for one in take(q)], [job_ids[0]])
    given_back(q, *held)
    expect("given back", len(take(q)), 2)
    expect_right_accounts(q)
