"""The dashboard by HTTP: every page empty and full, hostile text, forms without their token, and nothing inline."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.verbs import access
from faultline.web.pages.job import percent
from faultline.web.server.security_middleware import POLICY
from tests.web.site import PAGES, Page, Site, browsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Clock, Driver

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;{{ 7*7 }}"


@pytest.fixture
def site(dsn: str) -> Iterator[Site]:
    with browsed(dsn) as opened:
        yield opened


def race(queue: Driver, clock: Clock, **fields: Any) -> UUID:
    """A stalls past its lease, B takes over and finishes, A comes back and is refused."""
    job_id = queue.enqueue("settle", {"batch": 7}, **fields)
    clock.advance(1)
    stalled = queue.claim_one(worker="a")
    queue.renew(stalled)
    clock.advance(31)
    queue.reap()
    clock.advance(1)
    second = queue.claim_one(worker="b")
    clock.advance(2)
    queue.complete(stalled)
    clock.advance(1)
    queue.complete(second, result={"settled": 7})
    return job_id


def fill(queue: Driver, clock: Clock) -> list[UUID]:
    """Jobs in every state, a race, a paused queue, a worker and some history."""
    raced = race(queue, clock)
    failing = queue.enqueue("charge", {"order": 1}, max_attempts=1, queue="mail")
    queue.fail(queue.claim_one(queue="mail"), then="fail", error="ValueError: no such order\n  File x")
    waiting = queue.enqueue("charge", {"order": 2}, queue="mail", delay_seconds=600)
    taken_back = queue.enqueue("reaped", queue="lost")
    queue.claim_one(queue="lost")
    clock.advance(31)
    queue.reap()
    cancelled = queue.enqueue("charge", {"order": 3}, queue="mail")
    queue.run(verbs.cancel(cancelled, "not wanted"))
    running = queue.enqueue("report", {"month": 3}, queue="reports", idempotency_key="report:3")
    lease = queue.claim_one(queue="reports")
    queue.renew(lease)
    queue.run(verbs.step(lease, "fetch", {"rows": 3}))
    queue.run(verbs.progress(lease, {"done": 1, "total": 4}))
    queue.run(verbs.pause("mail", "the provider is down"))
    queue.sample()
    queue.connection.execute(
        "insert into faultline.workers (id, started_at, heartbeat_at, watched, pid, host, version, queues, sleeping, leases)"
        " values ('w1', faultline.now(), faultline.now(), true, 1, 'host', '1', '{mail}', '{}', 1)"
    )
    return [raced, failing, waiting, cancelled, taken_back, running]


def test_every_page_shows_an_empty_database(site: Site) -> None:
    for path in PAGES:
        assert site.page(path).text


def test_every_page_shows_a_full_database(site: Site, queue: Driver, clock: Clock) -> None:
    jobs = fill(queue, clock)

    for path in (*PAGES, *(f"/jobs/{job_id}" for job_id in jobs)):
        site.page(path)

    assert "the provider is down" in site.page("/queues").text
    queue.enqueue(queue="paper")
    paused = queue.enqueue("charge", {"order": 4}, queue="mail")
    queue.sample()
    served = site.page("/queues").text
    assert re.search(r"paper\W+no worker serves it", served)
    assert not re.search(r"mail\W+no worker", served)
    assert "Its queue to be resumed (paused " in site.page(f"/jobs/{paused}").text
    assert "ValueError: no such order" in site.page("/failures").text
    assert "complete refused" in site.page("/").text
    running = site.page(f"/jobs/{jobs[-1]}").text
    assert "report:3" in running
    assert re.search(r"fetch 1 .{0,40} \{ \"rows\": 3 \}", running)


def test_the_lease_race_is_drawn_and_told(site: Site, queue: Driver, clock: Clock) -> None:
    page = site.page(f"/jobs/{race(queue, clock)}")

    drawn = [attributes.get("class") for attributes in page.of("svg")]
    assert drawn.count("mark-refused") == 1
    assert drawn.count("mark-ledger") == 1
    assert drawn.count("mark-claim") == 2
    assert "The database refused" in page.text
    assert "token 1 was no longer the current one, 2 was" in page.text
    assert "The ledger has one row for the job, under token 2 ." in page.text


def test_hostile_text_in_every_field_stays_text(site: Site, queue: Driver, clock: Clock) -> None:
    """A queue, a task, arguments, a key, an error, a step, progress, a result, an owner, a reason, a worker: all markup."""
    words: dict[str, Any] = {"queue": HOSTILE[:100], "max_attempts": 2}
    failed = queue.enqueue(HOSTILE, {HOSTILE: HOSTILE}, idempotency_key=HOSTILE, **words)
    lease = queue.claim_one(worker=HOSTILE, queue=HOSTILE[:100])
    queue.run(verbs.step(lease, HOSTILE, HOSTILE))
    queue.run(verbs.progress(lease, {HOSTILE: HOSTILE}))
    queue.fail(lease, then="fail", error=HOSTILE)
    queue.complete(lease)
    cancelled = queue.enqueue(HOSTILE, **words)
    queue.run(verbs.cancel(cancelled, HOSTILE))
    done = queue.enqueue(HOSTILE, **words)
    queue.complete(queue.claim_one(worker=HOSTILE, queue=HOSTILE[:100]), result=HOSTILE)
    queue.run(verbs.pause(HOSTILE[:100], HOSTILE))
    queue.sample()
    queue.connection.execute(
        "insert into faultline.workers (id, started_at, heartbeat_at, watched, pid, host, version, queues, sleeping)"
        " values (%s, faultline.now(), faultline.now(), true, 1, %s, %s, array[%s], '{}')",
        (HOSTILE.replace("/", "")[:99], HOSTILE, HOSTILE, HOSTILE[:100]),
    )

    shown = 0
    for path in (*PAGES, *(f"/jobs/{job_id}" for job_id in (failed, cancelled, done))):
        page = site.page(path)
        assert not any(tag == "img" for tag, _ in page.tags), path
        assert all((attributes.get("src") or "").startswith("/static/") for attributes in page.of("script")), path
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes), path
        shown += HOSTILE in page.text
    assert shown >= 6  # as text, braces and ampersands untouched


def test_hostile_text_in_an_address_stays_text(site: Site) -> None:
    for path in ("/jobs", "/jobs/cancel", "/failures", "/failures/retry", "/sign-in"):
        names = ("queue", "task", "state", "span", "key", "error", "next", "said", "n")
        page = Page(site.get(path, params=dict.fromkeys(names, HOSTILE)).text)
        assert not any(tag == "img" for tag, _ in page.tags), path
    assert "No job" in Page(site.get("/jobs/<img>").text).text


def test_no_page_holds_anything_inline(site: Site, queue: Driver, clock: Clock) -> None:
    jobs = fill(queue, clock)

    for path in (*PAGES, *(f"/jobs/{job_id}" for job_id in jobs), "/nothing/here"):
        answer = site.get(path)
        page = Page(answer.text)
        assert answer.headers["content-security-policy"] == POLICY
        assert "'unsafe" not in POLICY
        assert not any(tag == "style" for tag, _ in page.tags)
        for tag, attributes in page.tags:
            assert "style" not in attributes, (path, tag)
            assert tag != "script" or (attributes.get("src") or "").startswith("/static/"), path
            assert not any(name.startswith("on") for name in attributes), (path, tag)
            address = attributes.get("href") or attributes.get("src") or attributes.get("action") or ""
            assert not address.startswith(("http", "//", "javascript")), address


def test_no_get_changes_anything(site: Site, queue: Driver, clock: Clock) -> None:
    jobs = fill(queue, clock)
    tables = ("open_jobs", "ledger", "journal", "steps", "keys", "workers", "queues", "samples", "tallies", "api_keys")

    def everything() -> list[Any]:
        return [queue.value(f"select md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from faultline.{name} t")
                for name in tables]  # fmt: skip

    before = everything()
    actions = ("cancel", "retry")
    # The last two are the pages of queues with these names.
    for path in (*PAGES, *(f"/jobs/{job_id}" for job_id in jobs), "/queues/pause", "/queues/resume"):
        site.get(path)
    for path in (
        *(f"/jobs/{jobs[1]}/{do}" for do in actions),
        "/jobs/ticked",
        "/sign-out",
    ):
        assert site.get(path).status_code in (404, 405), path

    assert everything() == before


def test_whatever_is_done_on_a_page_can_be_given_a_reason(site: Site, queue: Driver, clock: Clock) -> None:
    jobs = fill(queue, clock)
    queue.enqueue(queue="open")
    forms = [
        form
        for path in (*PAGES, *(f"/jobs/{job_id}" for job_id in jobs))
        for form in re.findall(r'<form[^>]*method="post".*?</form>', site.page(path).html, re.DOTALL)
        if "/sign-" not in form
    ]

    assert len({re.sub(r"/jobs/[-0-9a-f]{36}", "", form)[:80] for form in forms}) >= 5
    for form in forms:
        assert '<input name="reason"' in form, form


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_a_form_without_its_token_does_nothing(site: Site, queue: Driver, token: str | None) -> None:
    job_id = queue.enqueue()
    fields = {"id": str(job_id), "do": "cancel", "queue": "default"} | ({} if token is None else {"csrf": token})

    for path in (f"/jobs/{job_id}/cancel", "/jobs/ticked", "/jobs/cancel", "/queues/pause", "/failures/retry"):
        assert site.post(path, fields).status_code == 403, path

    assert queue.state(job_id) is JobState.QUEUED
    assert queue.value("select count(*) from faultline.queues") == 0


def test_cancel_and_retry_by_their_forms(site: Site, queue: Driver) -> None:
    job_id = queue.enqueue()
    page = f"/jobs/{job_id}"

    cancelled = site.send(page, f"{page}/cancel", reason="not needed")
    assert (cancelled.status_code, queue.state(job_id)) == (303, JobState.CANCELLED)
    assert "The database refuses" in site.page(cancelled.headers["location"]).text

    assert site.send(page, f"{page}/retry").status_code == 303
    assert queue.state(job_id) is JobState.QUEUED


def test_why_a_job_was_cancelled_is_a_reason_and_no_error(site: Site, queue: Driver) -> None:
    job_id = queue.enqueue(queue="mail")
    queue.run(verbs.cancel(job_id, "not wanted"))

    page = site.page(f"/jobs/{job_id}").text

    assert "Last error" not in page
    assert "cancelled: not wanted" in page


def test_ticked_jobs_are_cancelled_and_those_that_moved_on_left_alone(site: Site, queue: Driver) -> None:
    ids = [queue.enqueue(queue="mail") for _ in range(3)]
    fields = {"id": [*map(str, ids), str(uuid4()), "nonsense"], "do": "cancel", "reason": "not needed"}

    answer = site.send("/jobs?queue=mail", "/jobs/ticked", **fields)

    assert answer.headers["location"] == "/jobs?queue=mail&said=bulk_cancelled&n=3"
    assert "3 jobs cancelled." in site.page(answer.headers["location"]).text
    assert {queue.state(job_id) for job_id in ids} == {JobState.CANCELLED}


def test_a_queue_is_paused_with_a_reason_and_resumed(site: Site, queue: Driver) -> None:
    queue.enqueue(queue="mail")
    queue.sample()

    site.send("/queues", "/queues/pause", queue="mail", reason="provider is down")
    assert queue.claim(queue="mail") == []
    assert "provider is down" in site.page("/queues").text

    site.send("/queues", "/queues/resume", queue="mail")
    assert len(queue.claim(queue="mail")) == 1


def test_retrying_failed_jobs_says_how_many_first_and_takes_only_those(site: Site, queue: Driver) -> None:
    for error in ("order 1 is gone", "order 22 is gone", "order is gone"):
        queue.enqueue("charge")
        queue.fail(queue.claim_one(), then="fail", error=error)
    (path,) = [str(link["href"]) for link in site.page("/failures").of("a") if "%E2%80%A6" in str(link["href"])]
    assert "Retry 2 jobs?" in site.page(path).text
    hidden = site.page(path).hidden("/failures/retry")
    queue.enqueue("charge")
    queue.fail(queue.claim_one(), then="fail", error="order 333 is gone")

    answer = site.post("/failures/retry", hidden)

    assert "2 jobs requeued" in site.page(answer.headers["location"]).text
    assert len(queue.claim()) == 2


def test_jobs_are_listed_a_page_at_a_time_without_repeats_or_gaps(site: Site, queue: Driver) -> None:
    ids = {str(queue.enqueue()) for _ in range(120)}

    seen: list[str] = []
    path: str | None = "/jobs"
    while path:
        page = site.page(path)
        seen += [box["value"] or "" for box in page.of("input") if box.get("name") == "id"]
        path = next((link["href"] for link in page.of("a") if link.get("rel") == "next"), None)

    assert len(seen) == 120
    assert set(seen) == ids


def test_filters_narrow_the_list(site: Site, queue: Driver) -> None:
    wanted = queue.enqueue("charge", queue="mail", idempotency_key="order:1")
    queue.enqueue("charge", queue="other")
    queue.enqueue("ship", queue="mail")

    def listed(query: str) -> list[str | None]:
        return [box["value"] for box in site.page(f"/jobs?{query}").of("input") if box.get("name") == "id"]

    assert listed("queue=mail&task=charge&state=queued&span=1h") == [str(wanted)]
    assert listed("key=order:1") == [str(wanted)]
    assert listed("state=failed") == []
    assert site.get(f"/jobs?key={wanted}").headers["location"] == f"/jobs/{wanted}"


def test_the_first_digits_of_an_id_lead_to_its_job_unless_they_are_a_key_or_begin_several(site: Site, queue: Driver) -> None:
    first, second = UUID("019a3f00-1111-7000-8000-000000000001"), UUID("019a3f00-2222-7000-8000-000000000002")
    queue.run(verbs.enqueue_many([Submission("t", id=first), Submission("t", id=second, idempotency_key="019a3f00-1")]))

    def found(digits: str) -> Any:
        return site.get(f"/jobs?key={digits}").headers.get("location")

    assert found("019a3f00-2") == f"/jobs/{second}"
    assert found("019a3f00-11") == f"/jobs/{first}"
    assert found("019a3f00-1") is None
    assert found("019a3f00") is None
    assert found("019c0000") is None


def key_for_mail(queue: Driver, *scopes: str) -> str:
    key_id, text = access.new_key(random.Random(1))
    digest = access.digest_of(text)
    assert digest is not None
    queue.run(access.add(key_id, digest, name="mail team", scopes=scopes, queues=["mail"]))
    return text


def test_with_keys_one_signs_in_and_sees_only_what_the_key_may(dsn: str, queue: Driver, clock: Clock) -> None:
    hidden, seen = queue.enqueue(queue="secret"), queue.enqueue(queue="mail")
    raced = race(queue, clock)  # in another queue, too
    queue.sample()
    text = key_for_mail(queue, "read")
    with browsed(dsn) as site:
        for path in PAGES[:-1]:
            assert site.get(path).headers["location"].startswith("/sign-in"), path
        assert site.post("/sign-in", {"key": "fl_wrong"}).status_code == 401

        assert site.post("/sign-in", {"key": text, "next": "//elsewhere"}).headers["location"] == "/"

        assert site.get(f"/jobs/{seen}").status_code == 200
        assert site.get(f"/jobs/{hidden}").status_code == 404
        assert site.get("/database").status_code == 403
        for path in ("/", "/queues", "/jobs"):
            assert "secret" not in site.get(path).text, path
        assert site.get(f"/jobs?key={str(seen)[:-1]}").status_code == 200
        assert str(raced) not in site.get("/").text
        assert "Cancel job" not in site.page(f"/jobs/{seen}").text
        site.send("/", "/sign-out")
        assert site.get("/").status_code == 303


def test_a_key_that_is_bound_to_queues_changes_nothing_of_others(dsn: str, queue: Driver) -> None:
    theirs, failed, mine = (queue.enqueue(queue=name) for name in ("secret", "lost", "mail"))
    queue.fail(queue.claim_one(queue="lost"), then="fail")
    text = key_for_mail(queue, "read", "operate")
    with browsed(dsn) as site:
        site.post("/sign-in", {"key": text})
        csrf = {"csrf": site.page("/").hidden("/sign-out")["csrf"]}

        site.post("/jobs/ticked", {**csrf, "id": [str(theirs), str(mine)], "do": "cancel", "reason": "x"})
        site.post("/failures/retry", csrf)
        answers = [
            site.post(f"/jobs/{theirs}/cancel", csrf),
            site.post(f"/jobs/{failed}/retry", csrf),
            site.post("/queues/pause", {**csrf, "queue": "secret"}),
            site.post("/queues/resume", {**csrf, "queue": "secret"}),
        ]

    assert [answer.status_code for answer in answers] == [404] * 4
    assert [queue.state(job_id) for job_id in (theirs, failed, mine)] == ["queued", "failed", "cancelled"]
    assert queue.value("select count(*) from faultline.queues where paused_at is not null") == 0


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        ({"page": 3, "of": 12}, 25),
        ({"done": 3, "total": 12}, 25),
        ({"done": 3, "total": 12, "errors": 1}, 25),
        ({"rows": 30, "total": 40, "file": "a.csv"}, 75),
        ({"percent": 40}, 40),
        (0.5, 50),
        ({"page": 3}, None),
        ({"page": 3, "row": 7, "of": 12}, None),
        ({"page": 3, "of": 0}, None),
        ({"page": True, "of": 12}, None),
        (True, None),
    ],
)
def test_progress_is_shown_as_a_bar_where_it_says_how_far(progress: Any, shown: float | None) -> None:
    assert percent(progress) == shown


def test_a_queue_of_which_nothing_is_done_is_stalled_and_not_growing(dsn: str, queue: Driver) -> None:
    queue.enqueue()
    queue.connection.execute(
        "insert into faultline.samples (queue, minute, sampled_at, due, delayed, running, failed, oldest_due_at)"
        " select 'default', m, m, 1, 0, 0, 0, m from generate_series(date_trunc('minute', now()) - interval '5 minutes',"
        " date_trunc('minute', now()), '1 minute') m"
    )
    with browsed(dsn) as site:
        text = site.page("/").text

    assert "Time to drain stalled nothing completed for five minutes" in text
    assert "growing" not in text


def test_a_limit_of_the_login_or_the_database_is_shown_with_what_counts_against_it(dsn: str, queue: Driver) -> None:
    name = queue.value("select current_database()::text")
    queue.connection.execute(f"alter database {name} connection limit 50")
    with browsed(dsn) as site:
        text = site.page("/database").text
        sessions = queue.value("select count(*) from pg_stat_activity where datname = current_database()")

    shown = re.search(rf"Connections of the database {name} (\d+) of 50", text)
    assert shown is not None, text
    assert 1 <= int(shown[1]) <= sessions + 10


def test_what_nobody_counted_is_not_shown_as_nothing(site: Site, queue: Driver) -> None:
    queue.connection.execute("select pg_advisory_lock(hashtextextended('faultline sample', 0))")  # nobody counts
    queue.connection.execute("update faultline.sampling set sampled_at = '-infinity'")
    queue.connection.execute("insert into faultline.tallies (queue, minute, worker) values ('mail', now(), 'w')")

    overview, queues = site.page("/"), site.page("/queues")

    assert "nothing is waiting" not in overview.text
    assert "some queues are not counted yet" in overview.text
    assert "not counted" in queues.text
