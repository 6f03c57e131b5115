"""Unique and expiring jobs over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from faultline.web.api.shapes import NewJob
from faultline.web.api.submit import given_fields

if TYPE_CHECKING:
    from tests.driver import Driver
    from tests.web.conftest import Api


def test_a_second_job_is_not_made_while_the_first_is_queued(api: Api) -> None:
    job = {"task": "index", "args": {"doc": 7}, "unique": {"key": "doc:7", "while": "queued", "debounce": 5, "at_most": 60}}

    first, second = api.post("/jobs", json=job), api.post("/jobs", json=job)

    assert second.json() == first.json()
    shown = api.get(f"/jobs/{first.json()['id']}").json()
    assert shown["unique_key"] == "doc:7"


def test_a_job_may_expire(api: Api, db: Driver) -> None:
    job_id = api.submit(expires_seconds=60)
    assert api.get(f"/jobs/{job_id}").json()["expires_at"] is not None
    assert api.post("/jobs", json={"task": "t", "expires_at": "2090-01-01T00:00:00Z"}).status_code == 201


@pytest.mark.parametrize(
    "wrong",
    [
        {"expires_seconds": 0},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"expires_at": "2090-01-01T00:00:00Z", "expires_seconds": 5},
        {"expires_seconds": 5, "delay_seconds": 10},
        {"unique": {"key": "x" * 501}},
        {"unique": {"key": "a\u0000"}},
        {"unique": {"while": None}},
        {"unique": {"at_most": 5}},
        {"unique": {"debounce": 5, "at_most": 4}},
        {"unique": {"debounce": 5}, "delay_seconds": 3},
        {"unique": {"period": 0}},
        {"unique": {"keys": "a"}},
        {"unique": "queued"},
    ],
)
def test_what_cannot_be_is_refused_with_a_next_step(api: Api, db: Driver, wrong: dict[str, Any]) -> None:
    answer = api.post("/jobs", json={"task": "t", **wrong})

    assert answer.status_code == 422, answer.text
    assert answer.json()["next_step"]
    assert db.value("select count(*) from faultline.open_jobs") == 0


def test_a_field_that_a_later_release_adds_changes_no_digest_of_a_request() -> None:
    class LaterJob(NewJob):
        added: str | None = None

    assert given_fields(LaterJob(task="t")) == given_fields(NewJob(task="t"))
