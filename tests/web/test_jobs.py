"""Submitting, looking at and operating jobs over HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from faultline.core.model import JobState
from faultline.store import verbs
from tests.web.conftest import Api, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver


def test_a_submitted_job_is_as_it_was_asked_for(api: Api, db: Driver) -> None:
    asked = {"task": "mail", "args": {"to": "ada"}, "queue": "post", "priority": -5, "max_attempts": 2, "lease_seconds": 10}

    answer = api.post("/jobs", json=asked)

    assert answer.status_code == 201
    job = api.get(f"/jobs/{answer.json()['id']}").json()
    assert {name: job[name] for name in ("task", "args", "queue", "priority", "max_attempts", "state")} == {
        "task": "mail", "args": {"to": "ada"}, "queue": "post", "priority": -5, "max_attempts": 2, "state": "queued",
    }  # fmt: skip
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert db.claim_one(queue="post").args == {"to": "ada"}


def test_a_whole_number_is_one_however_it_is_written(api: Api) -> None:
    """JavaScript and Lua write 5 as they like."""
    job_id = api.submit(priority=-5.0, max_attempts=2.0)

    job = api.get(f"/jobs/{job_id}").json()
    assert (job["priority"], job["max_attempts"]) == (-5, 2)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("2030-01-01T00:00:00+22:01", "2029-12-31T01:59:00Z"), ("2030-01-01T00:00:00.5-23:59", "2030-01-01T23:59:00.500000Z")],
)
def test_a_time_may_be_said_in_any_time_zone(api: Api, text: str, meant: str) -> None:
    job_id = api.submit(run_at=text)

    assert api.get(f"/jobs/{job_id}").json()["next_run_at"] == meant
    for name in ("created_after", "created_before"):
        for year in ("0001-01-01", "2000-01-01", "9999-12-31"):
            assert api.get("/jobs", params={name: f"{year}{text[10:]}"}).status_code == 200


def test_a_batch_is_submitted_in_order_all_or_none(api: Api, db: Driver) -> None:
    answer = api.post("/jobs/batch", json={"jobs": [{"task": "a"}, {"task": "b"}, {"task": "c"}]})
    bad = api.post("/jobs/batch", json={"jobs": [{"task": "a"}, {"task": "b", "args": {"x": "\x00"}}]})

    assert [api.get(f"/jobs/{one['id']}").json()["task"] for one in answer.json()["jobs"]] == ["a", "b", "c"]
    assert "job 2 of 2" in refused(bad, 422, "JobRejected")["detail"]
    assert len(db.claim()) == 3


@pytest.mark.parametrize("depth", [90, 300, 900])
def test_a_job_is_shown_however_deeply_its_values_are_nested(api: Api, db: Driver, depth: int) -> None:
    nested, result = json.loads("[" * depth + "]" * depth), json.loads("[" * min(depth, 200) + "]" * min(depth, 200))
    job_id = db.value("select faultline.enqueue('t', %s::text)", json.dumps({"x": nested}))
    db.complete(db.claim_one(), result=result)

    job = api.get(f"/jobs/{job_id}").json()

    expected: tuple[Any, Any] = ({"x": nested}, result)
    assert (job["args"], job["result"]) == (expected if depth < 100 else tuple(map(json.dumps, expected)))


def test_one_job_tells_its_whole_story(api: Api, db: Driver) -> None:
    job_id = api.submit(max_attempts=3)
    first = db.claim_one(worker="first")
    db.fail(first, error="ValueError: boom")
    second = db.claim_one(worker="second")
    db.run(verbs.step(second, "quote", {"price": 5}))
    db.complete(first)
    db.complete(second, result={"ok": True})

    job = api.get(f"/jobs/{job_id}").json()

    assert (job["state"], job["result"], job["fencing_token"]) == ("succeeded", {"ok": True}, 2)
    assert [(epoch["token"], epoch["end"], len(epoch["refusals"])) for epoch in job["epochs"]] == [
        (1, "failed", 1),
        (2, "succeeded", 0),
    ]
    assert [entry["event"] for entry in job["journal"]] == ["attempt_failed", "stale_write_blocked"]
    assert [(step["name"], step["fencing_token"], step["result"]) for step in job["steps"]] == [("quote", 2, {"price": 5})]
    assert (job["ledger"]["fencing_token"], job["ledger"]["owner"]) == (2, second.owner)


@pytest.mark.parametrize("body", [{"task": "t", "args": {"a": 1}}, {"jobs": [{"task": "t"}, {"task": "u"}]}])
def test_the_same_key_and_body_give_the_same_answer(api: Api, db: Driver, body: dict[str, Any]) -> None:
    path = "/jobs/batch" if "jobs" in body else "/jobs"

    first, second = (api.post(path, json=body, headers={"Idempotency-Key": "order:42"}) for _ in range(2))

    assert (first.status_code, first.json()) == (second.status_code, second.json()) == (201, first.json())
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert len(db.claim()) == len(body.get("jobs", [1]))


@pytest.mark.parametrize(
    "other",
    [
        {"task": "u"},
        {"task": "t", "args": {"a": 1}},
        {"task": "t", "queue": "other"},
        {"task": "t", "priority": 1},
        {"task": "t", "max_attempts": 4},
    ],
)
def test_the_same_key_and_another_body_is_a_conflict(api: Api, db: Driver, other: dict[str, Any]) -> None:
    api.post("/jobs", json={"task": "t"}, headers={"Idempotency-Key": "k"})

    conflict = api.post("/jobs", json=other, headers={"Idempotency-Key": "k"})

    assert refused(conflict, 409, "KeyConflict")["sqlstate"] == "FL003"
    assert len(db.claim()) == 1


def test_a_longer_batch_under_the_same_key_leaves_nothing_behind(api: Api, db: Driver) -> None:
    api.post("/jobs/batch", json={"jobs": [{"task": "t"}]}, headers={"Idempotency-Key": "k"})

    conflict = api.post("/jobs/batch", json={"jobs": [{"task": "t"}, {"task": "t"}]}, headers={"Idempotency-Key": "k"})

    refused(conflict, 409, "KeyConflict")
    assert len(db.claim()) == 1


def test_many_at_once_with_one_key_make_one_job(api: Api, db: Driver) -> None:
    def submit(_: int) -> tuple[int, str]:
        answer = api.post("/jobs", json={"task": "t"}, headers={"Idempotency-Key": "k"})
        return answer.status_code, answer.text

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(submit, range(24)))

    assert len(answers) == 1
    assert len(db.claim()) == 1


def test_two_callers_with_one_key_do_not_meet(caller: Callable[..., Api], db: Driver) -> None:
    one, other = caller("enqueue", queues=["a"]), caller("enqueue", "read", queues=["b"])

    first = one.post("/jobs", json={"task": "t", "queue": "a"}, headers={"Idempotency-Key": "k"})
    second = other.post("/jobs", json={"task": "u", "queue": "b"}, headers={"Idempotency-Key": "k"})

    assert (first.status_code, second.status_code) == (201, 201)
    assert [job["id"] for job in other.get("/jobs?key=k").json()["jobs"]] == [second.json()["id"]]


def test_cancel_and_retry_change_the_state_and_say_when_they_cannot(api: Api, db: Driver) -> None:
    job_id = api.submit()

    cancelled = api.post(f"/jobs/{job_id}/cancel", json={"reason": "not needed"})
    retried = api.post(f"/jobs/{job_id}/retry")
    again = api.post(f"/jobs/{job_id}/retry")

    assert (cancelled.json()["state"], retried.json()["state"]) == ("cancelled", "queued")
    refused(again, 409, "IllegalTransition")
    refused(api.post("/jobs/00000000-0000-0000-0000-000000000001/cancel"), 404, "JobNotFound")
    assert db.job(UUID(job_id)).state is JobState.QUEUED


def test_failed_jobs_are_grouped_previewed_and_retried_together(api: Api, db: Driver) -> None:
    for task, error in [("a", "Timeout: fine\nsecond line")] * 3 + [("a", "Refused")] + [("b", "Timeout: fine")]:
        api.submit(task)
        db.fail(db.claim_one(), then="fail", error=error)

    groups = api.get("/failures").json()["groups"]
    body = {"task": "a", "error_prefix": "Timeout"}
    preview = api.post("/jobs/retry", json={**body, "preview": True}).json()
    some = api.post("/jobs/retry", json={**body, "max_jobs": 2}).json()
    rest = api.post("/jobs/retry", json={**body, "cursor": some["next_cursor"]}).json()

    assert [(group["task"], group["error_kind"], group["jobs"]) for group in groups] == [
        ("a", "Timeout: fine", 3),
        ("b", "Timeout: fine", 1),
        ("a", "Refused", 1),
    ]
    assert (preview["jobs"], preview["at_least"]) == (3, False)
    assert (some["jobs"], rest["jobs"], rest["next_cursor"]) == (2, 1, None)
    assert len(db.claim()) == 3


def test_jobs_are_counted_and_cancelled_together(api: Api, db: Driver) -> None:
    wanted = [api.submit("a", queue="mail") for _ in range(3)]
    other = api.submit("b", queue="mail")
    body = {"queue": "mail", "task": "a"}

    preview = api.post("/jobs/cancel", json={**body, "preview": True}).json()
    since = api.submit("a", queue="mail")
    some = api.post("/jobs/cancel", json={**body, "max_jobs": 2, "cursor": preview["next_cursor"], "reason": "x"}).json()
    rest = api.post("/jobs/cancel", json={**body, "cursor": some["next_cursor"]}).json()

    assert (preview["preview"], preview["jobs"], preview["at_least"]) == (True, 3, False)
    assert (some["preview"], some["jobs"], some["at_least"]) == (False, 2, True)
    assert (rest["jobs"], rest["next_cursor"]) == (1, None)
    assert {db.state(UUID(job_id)) for job_id in wanted} == {JobState.CANCELLED}
    assert {db.state(UUID(job_id)) for job_id in (other, since)} == {JobState.QUEUED}


def test_what_to_cancel_must_be_said(api: Api) -> None:
    problem = refused(api.post("/jobs/cancel", json={"reason": "all of them"}), 422, "JobRejected")

    assert problem["detail"] == "say which jobs to cancel: by queue, task, group or state"
    refused(api.post("/jobs/cancel", json={"state": "failed"}), 422, "InvalidRequest")


def test_errors_that_differ_by_an_id_are_one_group_and_its_retry_takes_what_was_counted(api: Api, db: Driver) -> None:
    def fail(error: str) -> str:
        job_id = api.submit()
        db.fail(db.claim_one(), then="fail", error=error)
        return job_id

    ids = [fail(f"NoSuchOrder: order {n} of 'customer {n}' ({uuid4()})\n  File x, line {n}") for n in range(12)]
    other = fail("NoSuchOrder: order of 'customer 1'")

    first, second = api.get("/failures").json()["groups"]
    body = {"task": first["task"], "error_kind": first["error_kind"]}
    preview = api.post("/jobs/retry", json={**body, "preview": True}).json()
    since = fail("NoSuchOrder: order 99 of 'customer 99' (7)")
    done = api.post("/jobs/retry", json={**body, "cursor": preview["next_cursor"]}).json()

    assert (first["error_kind"], first["jobs"]) == ("NoSuchOrder: order … of … (…)", 12)
    assert (second["error_kind"], second["jobs"]) == ("NoSuchOrder: order of …", 1)
    assert (preview["jobs"], preview["at_least"]) == (12, False)
    assert (done["jobs"], done["next_cursor"]) == (12, None)
    assert {str(lease.job_id) for lease in db.claim()} == set(ids)
    assert [db.state(UUID(job_id)) for job_id in (other, since)] == [JobState.FAILED] * 2


def test_failures_say_when_they_stopped_looking_also_where_nothing_fits(api: Api, db: Driver) -> None:
    """10,000 newer ones of other queues stand before the only one that fits."""
    api.submit(queue="rare")
    db.fail(db.claim_one(queue="rare"), then="fail")
    with db.connection.transaction():
        db.connection.execute("set local session_replication_role = replica")
        db.connection.execute(
            "insert into faultline.open_jobs (id, created_at, next_run_at, lease_seconds, priority, max_attempts, keep_args,"
            " queue, task, args, state, finished_at, last_error) select gen_random_uuid(), now(), now(), 30, 0, 5, true,"
            " 'q', 't', '{}', 'failed', now() + interval '1 second', 'order ' || n from generate_series(1, 10000) n"
        )

    assert api.get("/failures?queue=rare").json() == {"groups": [], "at_least": True}
    (group,) = api.get("/failures").json()["groups"]
    assert (group["error_kind"], group["jobs"]) == ("order …", 10_000)


def test_a_paused_queue_grants_nothing_until_it_is_resumed(api: Api, db: Driver) -> None:
    api.submit(queue="a/b c")

    api.post("/queues/a%2Fb%20c/pause", json={"reason": "maintenance"})

    (line,) = api.get("/queues").json()["queues"]
    assert (line["name"], line["paused_reason"]) == ("a/b c", "maintenance")
    assert db.claim(queue="a/b c") == []
    assert api.post("/queues/a%2Fb%20c/resume").json()["was_paused"] is True
    assert len(db.claim(queue="a/b c")) == 1


def test_workers_are_listed_with_what_they_told(api: Api, db: Driver) -> None:
    db.run(verbs.heartbeat("w1", host="h", pid=1, version="1", queues=["a"], sleeping=[], watched=False))

    db.run(verbs.announce("w1", ["t"], 24))

    (worker,) = api.get("/workers").json()["workers"]
    assert (worker["id"], worker["alive"], worker["queues"]) == ("w1", True, ["a"])
    assert worker["connections_max"] == 24
    assert api.get("/ready?workers=1").json()["workers_alive"] == 1


def test_the_invariants_are_judged_and_the_judgement_is_kept_for_a_while(api: Api, db: Driver) -> None:
    first = api.get("/invariants").json()
    db.connection.execute("set session_replication_role = replica")
    db.connection.execute("insert into faultline.steps values (gen_random_uuid(), 'orphan', 1, now(), null)")
    second = api.get("/invariants").json()

    assert first["holds"] is True
    assert (second["checked_at"], second["holds"]) == (first["checked_at"], True)
