"""What is refused when a lease is lost: one table of stale writes for every verb."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from faultline.core.errors import JobRejected, StaleLease
from faultline.core.model import JobState, Reason, Settled
from faultline.store.translation import translated
from tests.driver import reasons
from tests.schema.losses import LOSSES, taken_by_another
from tests.schema.writes import VERBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Clock, Driver


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("lose", "reason"), LOSSES, ids=[lose.__name__ for lose, _ in LOSSES])
def test_a_stale_write_changes_nothing_and_is_on_record(
    queue: Driver, clock: Clock, verb: str, lose: Callable[..., None], reason: Reason
) -> None:
    job_id = queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    lose(queue, clock, stale)
    before = (queue.job(job_id), queue.value("select count(*) from faultline.steps"))

    settled = VERBS[verb](queue, stale)

    assert reasons(settled) == [reason]
    assert (queue.job(job_id), queue.value("select count(*) from faultline.steps")) == before
    assert queue.refusals(job_id) == [(verb, reason.value)]
    assert queue.broken_invariants() == []


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("forged", ["token", "owner"])
def test_a_forged_token_or_owner_is_refused(queue: Driver, verb: str, forged: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    forgery = replace(lease, fencing_token=2) if forged == "token" else replace(lease, owner="w/forged")
    before = queue.job(job_id)

    assert reasons(VERBS[verb](queue, forgery)) == [Reason.TOKEN_MISMATCH]

    assert queue.job(job_id) == before


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "renew", "mark_started"])
def test_a_refusal_tells_the_stale_and_the_current_token(queue: Driver, clock: Clock, verb: str) -> None:
    job_id = queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    taken_by_another(queue, clock, stale)

    (refusal,) = VERBS[verb](queue, stale).stale

    assert (refusal.lease, refusal.current_token) == (stale, 2)
    (entry,) = [entry for entry in queue.journal(job_id) if entry.event == "stale_write_blocked"]
    assert (entry.fencing_token, entry.owner) == (1, stale.owner)
    assert entry.detail == {"verb": verb, "reason": "token_mismatch", "stale_token": 1, "current_token": 2}


def test_a_stale_and_a_good_lease_of_one_job_in_one_batch_are_told_apart(queue: Driver, clock: Clock) -> None:
    job_id = queue.enqueue()
    stale = queue.claim_one(worker="frozen")
    clock.advance(31)
    queue.reap()
    good = queue.claim_one(worker="second")

    for verb in (queue.renew, queue.mark_started, queue.complete):
        assert [refusal.lease for refusal in verb(stale, good).stale] == [stale]

    assert queue.state(job_id) is JobState.SUCCEEDED
    assert len(queue.refusals(job_id)) == 3


def test_two_leases_with_one_token_in_one_batch_are_told_apart_by_their_owners(queue: Driver) -> None:
    """As after a failover that took tokens back: the worker holds a grant of the lost history and one of this one."""
    job_id = queue.enqueue()
    good = queue.claim_one()
    forgotten = replace(good, owner="w/before")

    for verb in (queue.renew, queue.mark_started, queue.complete):
        assert [refusal.lease for refusal in verb(forgotten, good).stale] == [forgotten]

    assert queue.state(job_id) is JobState.SUCCEEDED


def test_a_lease_that_stands_twice_in_a_batch_is_written_once(queue: Driver) -> None:
    queue.enqueue()
    lease = queue.claim_one()

    assert queue.renew(lease, lease) == Settled()
    assert queue.complete(lease, lease) == Settled()
    assert queue.value("select count(*) from faultline.journal") == 0


@pytest.mark.parametrize(
    "arrays", ["array[]::bigint[], array['w/1']", "array[null]::bigint[], array['w/1']", "array[1], array[null]"]
)
@pytest.mark.parametrize("verb", ["renew", "complete", "release", "mark_started"])
def test_half_a_lease_is_bad_input(queue: Driver, verb: str, arrays: str) -> None:
    job_id = queue.enqueue()
    queue.claim_one()

    with pytest.raises(JobRejected, match="arrays of one length without nulls"), translated():
        queue.connection.execute(f"select faultline.{verb}(array['{job_id}']::uuid[], {arrays})".encode())


def test_a_fence_without_a_token_is_refused(queue: Driver) -> None:
    job_id = queue.enqueue()
    queue.claim_one()

    with pytest.raises(StaleLease, match="token_mismatch"), translated():
        queue.connection.execute("select faultline.fence(%s, null, 'w/1')", (job_id,))
