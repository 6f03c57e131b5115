"""The dashboard in a real browser: live, by keyboard, and on a phone's screen."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from faultline.core.model import JobState
from tests.web.conftest import away, running
from tests.web.site import PAGES, PATHS

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.driver import Driver

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]
PATIENCE = 30_000
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(dsn: str, chromium: Browser) -> Iterator[Page]:
    """A page of the dashboard on which nothing went wrong: no error, and nothing that the policy forbids."""
    wrong: list[str] = []
    with running(dsn) as address:
        context = chromium.new_context(base_url=address)
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE)
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        yield opened
        context.close()
    assert wrong == []


def said(page: Page, text: str) -> None:
    sync_api.expect(page.locator("#page")).to_contain_text(text, timeout=PATIENCE)


def test_a_job_is_followed_live_from_its_submission_through_a_lease_race_into_the_ledger(page: Page, queue: Driver) -> None:
    job_id = queue.enqueue("settle", {"batch": 7}, lease_seconds=0.5)
    page.goto("/jobs")
    page.get_by_role("link", name="settle").click()
    said(page, "No worker has claimed this job yet")

    stalled = queue.claim_one(worker="a")
    said(page, "Worker A claimed the job")
    said(page, "another worker may take over now")

    queue.reap()
    second = queue.claim_one(worker="b")
    said(page, "Worker B took over")

    queue.complete(stalled)
    said(page, "The database refused")
    assert page.locator("svg.mark-refused").count() == 1

    queue.complete(second)
    queue.renew(stalled)
    said(page, "The ledger has one row for the job, under token 2")
    assert page.locator("svg.mark-ledger").count() == 1
    assert queue.state(job_id) is JobState.SUCCEEDED


def test_the_pause_button_stops_the_page_and_lets_it_go_on(page: Page, queue: Driver) -> None:
    page.goto("/jobs")
    live = page.locator("#live")
    sync_api.expect(live).to_have_attribute("data-live", "live")
    page.get_by_role("button", name="Pause").click()
    sync_api.expect(live).to_have_attribute("data-live", "paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    queue.enqueue("unseen")
    # Longer than an event or a poll would take.
    page.wait_for_timeout(2600)
    assert asked == []

    page.get_by_role("button", name="Resume").click()
    said(page, "unseen")


def test_seven_tabs_of_one_browser_are_all_alive(page: Page, queue: Driver) -> None:
    """A browser has six connections to a server. Tabs that each keep one leave none for the seventh."""
    tabs = [page, *(page.context.new_page() for _ in range(6))]
    for tab in tabs:
        tab.goto("/jobs")

    queue.enqueue("seen_by_all")

    for tab in tabs:
        said(tab, "seen_by_all")


def test_a_tab_that_nobody_looks_at_asks_for_nothing(page: Page, queue: Driver) -> None:
    page.goto("/jobs")
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    queue.enqueue("later")
    page.wait_for_timeout(2600)  # longer than it waits between two questions
    assert asked == []

    page.evaluate(hide, False)
    said(page, "later")


def test_while_the_database_is_away_the_page_says_since_when_it_is_stale(dsn: str, queue: Driver, chromium: Browser) -> None:
    queue.enqueue("seen")
    with running(dsn) as address, chromium.new_context(base_url=address) as context:
        page = context.new_page()
        page.goto("/jobs")
        live, notice = page.locator("#live"), page.locator("#standing")
        sync_api.expect(live).to_have_attribute("data-live", "live")
        sync_api.expect(notice).to_be_hidden()

        with away(dsn):
            sync_api.expect(live).to_have_attribute("data-live", "stale", timeout=PATIENCE)
            sync_api.expect(page.locator("#live-word")).to_have_text(re.compile(r"Stale since \d\d:\d\d:\d\d UTC"))
            sync_api.expect(notice).to_contain_text("the database has not answered since")
            said(page, "seen")
            told = notice.text_content()
            page.wait_for_timeout(2600)
            assert notice.text_content() == told  # the last good look does not move

        sync_api.expect(live).to_have_attribute("data-live", "live", timeout=PATIENCE)
        sync_api.expect(notice).to_be_hidden()


def test_every_open_page_says_that_the_database_is_away_and_since_when(dsn: str, queue: Driver, chromium: Browser) -> None:
    job_id = str(queue.enqueue())
    with running(dsn) as address, chromium.new_context(base_url=address) as context:
        # There is no schedule whose page could be open.
        paths = [path for path in PATHS if path != "/sign-in" and "{name" not in path]
        tabs = [context.new_page() for _ in paths]
        for tab, path in zip(tabs, paths, strict=True):
            tab.goto(path.replace("{job_id}", job_id).replace("{queue_name:path}", "default"))

        with away(dsn):
            for tab in tabs:
                sync_api.expect(tab.locator("#live")).to_have_attribute("data-live", "stale", timeout=PATIENCE)
                since = re.compile(r"the database has not answered since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
                sync_api.expect(tab.locator("#standing")).to_contain_text(since, timeout=PATIENCE)


def test_a_server_that_answers_no_more_makes_the_page_stale(page: Page) -> None:
    page.goto("/jobs")
    sync_api.expect(page.locator("#live")).to_have_attribute("data-live", "live")

    page.route("**/jobs", lambda _: None)  # asked, and never answered

    sync_api.expect(page.locator("#live")).to_have_attribute("data-live", "stale", timeout=PATIENCE)


def test_a_page_opened_while_the_database_is_away_comes_back_by_itself(dsn: str, chromium: Browser) -> None:
    with running(dsn) as address, chromium.new_context(base_url=address) as context:
        page = context.new_page()
        with away(dsn):
            page.goto("/jobs")
            sync_api.expect(page.locator("#page")).to_contain_text("Database unavailable")

        sync_api.expect(page.locator("#live")).to_have_attribute("data-live", "live", timeout=PATIENCE)


def test_while_jobs_are_ticked_the_page_holds_still_and_says_so(page: Page, queue: Driver) -> None:
    first = queue.enqueue("first")
    page.goto("/jobs")
    box = page.locator(f"#tick-{first}")
    box.check()
    before = box.bounding_box()
    sync_api.expect(page.locator("#standing")).to_contain_text("while 1 job is selected")

    queue.enqueue("second")
    page.wait_for_timeout(2600)  # longer than it waits between two questions

    assert box.is_checked()
    assert box.bounding_box() == before
    assert "second" not in (page.locator("#page").text_content() or "")
    sync_api.expect(page.locator("#live")).to_have_attribute("data-live", "held")

    box.uncheck()
    said(page, "second")
    sync_api.expect(page.locator("#live")).to_have_attribute("data-live", "live")


def test_cancel_and_retry_by_keyboard_while_the_page_is_live(page: Page, queue: Driver) -> None:
    job_id = queue.enqueue("charge")
    page.goto(f"/jobs/{job_id}")
    page.get_by_text("Cancel…").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("not needed")
    with page.expect_response(lambda answer: answer.request.method == "GET" and "/jobs/" in answer.url):
        pass  # the page is made anew, and the focus stays where it was, with what was typed
    page.keyboard.press("Enter")
    said(page, "Cancelled.")
    assert queue.state(job_id) is JobState.CANCELLED
    assert queue.job(job_id).last_error == "cancelled: not needed"

    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == "Retry job":
            break
    page.keyboard.press("Enter")

    said(page, "Requeued")
    assert queue.state(job_id) is JobState.QUEUED


def test_enter_behind_the_reason_cancels_the_ticked_jobs_and_retries_none(page: Page, queue: Driver) -> None:
    failed = queue.enqueue("broken")
    queue.fail(queue.claim_one(), then="fail")
    waiting = queue.enqueue("charge")
    page.goto("/jobs")
    for job_id in (failed, waiting):
        page.locator(f"#tick-{job_id}").check()

    page.get_by_text("Cancel selected…").click()
    page.get_by_label("Why the jobs are cancelled").fill("not needed")
    page.keyboard.press("Enter")

    said(page, "1 job cancelled.")
    assert [queue.state(job_id) for job_id in (failed, waiting)] == [JobState.FAILED, JobState.CANCELLED]


def test_what_was_typed_outlives_a_refresh(page: Page, queue: Driver) -> None:
    page.goto("/jobs")
    page.locator("#task").fill("half a wo")

    queue.enqueue("second")
    said(page, "second")

    assert page.locator("#task").input_value() == "half a wo"


def test_no_page_scrolls_sideways_on_a_phone(page: Page, queue: Driver) -> None:
    long = "a-very-long-name-without-any-place-to-break-" * 2
    job_id = queue.enqueue(long, {"text": "x" * 400}, queue=long[:90], idempotency_key="k" * 300)
    queue.fail(queue.claim_one(queue=long[:90]), error="e" * 400)
    queue.complete(queue.claim_one(queue=long[:90]), result="y" * 400)
    queue.enqueue(long, queue=long[:90])
    queue.fail(queue.claim_one(queue=long[:90]), then="fail", error="e" * 400)
    queue.sample()
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]

    for path in (*PAGES, f"/jobs/{job_id}"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
