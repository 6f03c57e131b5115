"""Cancelling all jobs that match the filter of a page: how many first, then exactly those."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from faultline.core.model import JobState
from tests.web.site import Site, browsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver


@pytest.fixture
def site(dsn: str) -> Iterator[Site]:
    with browsed(dsn) as opened:
        yield opened


def test_all_jobs_that_match_are_cancelled_after_their_count_and_no_later_ones(site: Site, queue: Driver) -> None:
    ids = [queue.enqueue("charge", queue="mail") for _ in range(60)]
    others = [queue.enqueue("charge", queue="other"), queue.enqueue("ship", queue="mail")]
    queue.claim_one(queue="mail")
    listed = site.page("/jobs?queue=mail&task=charge")
    (path,) = [str(link["href"]) for link in listed.of("a") if str(link["href"]).startswith("/jobs/cancel?")]
    page = site.page(path)
    assert "Cancel 60 jobs?" in page.text
    assert "59 queued, 1 running" in page.text
    hidden = page.hidden("/jobs/cancel")
    later = queue.enqueue("charge", queue="mail")

    without = site.post("/jobs/cancel", hidden)
    untouched = {queue.state(job_id) for job_id in ids}
    answer = site.post("/jobs/cancel", hidden | {"reason": "wrong addresses"})

    assert (without.status_code, untouched) == (422, {JobState.QUEUED, JobState.RUNNING})
    assert answer.headers["location"] == "/jobs?queue=mail&task=charge&said=bulk_cancelled&n=60"
    assert {queue.state(job_id) for job_id in ids} == {JobState.CANCELLED}
    assert {queue.state(job_id) for job_id in (*others, later)} == {JobState.QUEUED}
    why = queue.execute(
        "select distinct detail ->> 'by', detail ->> 'reason' from faultline.journal where event = 'cancelled'"
    )
    assert [(by.endswith("dashboard)"), reason) for by, reason in why] == [(True, "wrong addresses")]


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ("queue=mail", True),
        ("task=charge&state=queued", True),
        ("state=running", False),  # there is none
        ("", False),
        ("queue=mail&state=failed", False),
        ("queue=mail&span=1h", False),
        ("queue=mail&key=order:1", False),
    ],
)
def test_cancelling_all_is_offered_only_where_the_filter_says_exactly_which(
    site: Site,
    queue: Driver,
    query: str,
    offered: bool,  # noqa: FBT001
) -> None:
    queue.enqueue("charge", queue="mail")

    assert ("Cancel all that match" in site.page(f"/jobs?{query}").text) is offered


@pytest.mark.parametrize("changed", [{"queue": ""}, {"span": "1h"}, {"key": "order:1"}, {"state": "failed"}])
def test_a_filter_that_does_not_say_exactly_which_jobs_cancels_none(
    site: Site, queue: Driver, changed: dict[str, str]
) -> None:
    job_id = queue.enqueue()
    hidden = site.page("/jobs/cancel?queue=default").hidden("/jobs/cancel")

    page = site.page("/jobs/cancel?" + urlencode({"queue": "default"} | changed))
    answer = site.post("/jobs/cancel", hidden | {"reason": "all"} | changed)

    assert "Which jobs?" in page.text
    assert answer.status_code == 422
    assert queue.state(job_id) is JobState.QUEUED


def test_jobs_that_match_are_counted_behind_many_that_do_not(site: Site, queue: Driver) -> None:
    queue.enqueue("charge", queue="mail")
    queue.execute("select faultline.enqueue('other', '{}') from generate_series(1, 10001)")

    page = site.page("/jobs/cancel?task=charge")

    assert "Cancel 1 job?" in page.text
