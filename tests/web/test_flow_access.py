"""Every door to a flow asks for its scope, and a key that is bound to queues finds nothing behind it of other queues."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from faultline import JobState
from faultline.store import verbs
from faultline.store.verbs import streams
from tests.flow.scenes import asked, begun, spawned, suspended
from tests.web.conftest import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.driver import Driver
    from tests.web.conftest import Api

KEY = "order:42"
#: Each door that changes something, with the body it is sent.
CHANGES: dict[str, Any] = {
    "/jobs/{id}/signals": {"name": "approval", "for_call": "1"},
    "/signals": {"name": "approval", "idempotency_key": KEY},
    "/jobs/{id}/fork": {},
    "/jobs/{id}/cancel": {"reason": "r"},
    "/jobs/{id}/retry": {"reason": "r"},
}
READS = ("/jobs/{id}", "/jobs/{id}/flow", "/jobs/{id}/stream?name=tokens")
#: What a refusal must not have changed.
COUNTED = (
    "select count(*), count(*) filter (where state = 'cancelled'), (select count(*) from faultline.signals),"
    " (select count(*) from faultline.journal where job_id is not null) from faultline.jobs"
)


def waiting(db: Driver, queue: str) -> UUID:
    lease = begun(db, queue=queue, idempotency_key=KEY)
    db.run(streams.stream(lease, "tokens", 0, '["secret"]'))
    return suspended(db, lease, "1")


@pytest.mark.parametrize("door", CHANGES)
@pytest.mark.parametrize("scopes", [("read",), ("enqueue",), ("read", "enqueue")])
def test_a_key_without_the_scope_changes_nothing(
    caller: Callable[..., Api], db: Driver, door: str, scopes: tuple[str, ...]
) -> None:
    job_id = waiting(db, "a")
    before = db.execute(COUNTED)

    refused(caller(*scopes).post(door.format(id=job_id), json=CHANGES[door]), 403, "Forbidden")

    assert db.execute(COUNTED) == before


@pytest.mark.parametrize("door", [*READS, "/waiting"])
@pytest.mark.parametrize("scopes", [("enqueue",), ("operate",)])
def test_a_key_that_may_not_read_sees_no_flow(
    caller: Callable[..., Api], db: Driver, door: str, scopes: tuple[str, ...]
) -> None:
    refused(caller(*scopes).get(door.format(id=waiting(db, "a"))), 403, "Forbidden")


@pytest.mark.parametrize("door", CHANGES)
def test_a_key_of_another_queue_changes_nothing_and_cannot_tell_that_there_is_a_job(
    caller: Callable[..., Api], db: Driver, door: str
) -> None:
    job_id, nobody = waiting(db, "b"), "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"
    bound = caller("operate", "read", queues=["a"])
    before = db.execute(COUNTED)

    told = refused(bound.post(door.format(id=job_id), json=CHANGES[door]), 404, "JobNotFound")
    unknown = bound.post(
        door.format(id=nobody), json=CHANGES[door] | ({"idempotency_key": "x"} if door == "/signals" else {})
    )

    assert alike(told, job_id) == alike(unknown.json(), nobody)
    assert db.execute(COUNTED) == before


@pytest.mark.parametrize("door", READS)
def test_a_key_of_another_queue_reads_nothing_and_cannot_tell_that_there_is_a_job(
    caller: Callable[..., Api], db: Driver, door: str
) -> None:
    job_id, nobody = waiting(db, "b"), "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"
    bound = caller("operate", "read", queues=["a"])

    told = refused(bound.get(door.format(id=job_id)), 404, "JobNotFound")

    assert alike(told, job_id) == alike(bound.get(door.format(id=nobody)).json(), nobody)


def alike(members: dict[str, Any], name: object) -> str:
    return str(members).replace(str(name), "…").replace(KEY, "…").replace("'x'", "'…'")


def test_a_key_sees_only_waits_of_its_queues(caller: Callable[..., Api], db: Driver) -> None:
    mine = asked(db, queue="a")
    asked(db, queue="b")
    bound = caller("read", queues=["a"])

    for params in ({}, {"kind": "signal"}, {"name": "approval"}):
        listed = bound.get("/waiting", params=params).json()
        assert [wait["job_id"] for wait in listed["waiting"]] == [str(mine)]


def test_through_a_tree_a_key_sees_no_job_of_another_queue(caller: Callable[..., Api], db: Driver) -> None:
    """Neither below a job of its queue, nor above it: only how many there are, and what its own job called."""
    parent = begun(db, queue="a")
    spawned(db, parent, "1", 2, queue="b", task="hidden")
    suspended(db, parent, "1", kind="children", name="part")
    child = db.claim_one(queue="b")
    spawned(db, child, "1", 1, queue="a", task="seen")
    suspended(db, child, "1", kind="signal", name="secret")
    grandchild = db.claim_one(queue="a")
    bound = caller("read", queues=["a"])

    below = bound.get(f"/jobs/{parent.job_id}/flow")
    above = bound.get(f"/jobs/{grandchild.job_id}/flow")

    assert [job["task"] for job in below.json()["jobs"]] == ["article", "seen"]
    assert below.json()["children"][0]["elsewhere"] == 2
    assert above.json()["parents"] == []
    for shown in (below.text, above.text):
        assert str(child.job_id) not in shown
        assert "secret" not in shown
    refused(bound.get(f"/jobs/{child.job_id}/flow"), 404, "JobNotFound")


def test_a_key_that_two_queues_share_reaches_the_job_of_the_queue_that_it_is_bound_to(
    caller: Callable[..., Api], db: Driver
) -> None:
    """Over HTTP, each API key has idempotency keys of its own."""
    first, second = caller("admin", queues=["a"]), caller("admin", queues=["b"])
    jobs = [
        each.post("/jobs", json={"task": "t", "queue": queue}, headers={"Idempotency-Key": KEY}).json()["id"]
        for each, queue in ((first, "a"), (second, "b"))
    ]

    sent = [each.post("/signals", json={"name": "n", "idempotency_key": KEY}).json()["job_id"] for each in (first, second)]
    everyone = refused(caller("admin").post("/signals", json={"name": "n", "idempotency_key": KEY}), 409, "SeveralJobs")

    assert sent == jobs
    assert sorted(everyone["job_ids"]) == sorted(jobs)


def test_a_flow_that_a_key_may_cancel_is_cancelled_and_retried_whole(caller: Callable[..., Api], db: Driver) -> None:
    """Half a flow would go on without its parent. The key still cannot name a job of another queue."""
    parent = begun(db, queue="a")
    spawned(db, parent, "1", 2, queue="b", task="hidden")
    suspended(db, parent, "1", kind="children", name="part")
    child = db.claim_one(queue="b")
    states = "select state::text, count(*)::integer from faultline.jobs where queue = 'b' group by 1"
    bound = caller("operate", "read", queues=["a"])

    refused(bound.post(f"/jobs/{child.job_id}/cancel"), 404, "JobNotFound")
    assert bound.post(f"/jobs/{parent.job_id}/cancel").status_code == HTTPStatus.OK
    while db.run(verbs.sweep()):
        pass

    assert db.execute(states) == [("cancelled", 2)]
    refused(bound.post(f"/jobs/{child.job_id}/retry"), 404, "JobNotFound")
    assert bound.post(f"/jobs/{parent.job_id}/retry").status_code == HTTPStatus.OK
    assert db.state(parent.job_id) == JobState.QUEUED
