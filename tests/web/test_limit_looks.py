"""How the pages of limits, groups and schedules look in a real browser: readable in both themes, at any width."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from faultline import operate
from faultline.store import verbs
from tests.limits.test_reads import claim, enqueue, limit
from tests.web.conftest import running
from tests.web.schedule_scenes import hours, made, ticked
from tests.web.test_looks import CHROMIUM, CONTRAST_MIN, FAINT, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.driver import Clock, Driver

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]
__all__ = ["chromium"]
LONG = "customer-" + "0198c2e45d3a7b119f602a54c0de7f01" * 3
PAGES = (
    "/queues",
    "/queues/mail",
    "/queues/plain",
    "/schedules",
    "/schedules?by=day",
    "/schedules/report",
    f"/schedules/{LONG}",
)


def crowded(queue: Driver, clock: Clock) -> None:
    """A queue with all kinds of limits and groups, and schedules in all states."""
    declared = {"queue": {"concurrency": 12}, "each_group": {"concurrency": 4}, "groups": {"in order": {"ordered": True}}}
    queue.connection.execute("select faultline.declare_queue('mail', %s::jsonb)", (json.dumps(declared),))
    limit(queue, "mail", "", rate=300, per=60, burst=30)
    limit(queue, "mail", "slow", rate=1, per=60, burst=1)
    limit(queue, "mail", LONG, concurrency=2, weight=2.5)
    for group, jobs in (("tenant-7", 40), ("slow", 3), (LONG, 5), ("in order", 3), ("tenant-8", 1)):
        enqueue(queue, "mail", group, jobs)
    clock.advance(90)
    claim(queue, "mail", 12)
    queue.enqueue("t", queue="plain")
    queue.run(verbs.sample())
    task = "shop.reports.send_monthly_statement"
    made(queue, "report", task=task, overlap="skip")
    made(queue, LONG, task=task, every=7.0)
    made(queue, "paused", task=task)
    made(queue, "failing", task=task)
    queue.run(operate.pause_schedule("paused", by="ada", reason="the bank is closed"))
    hours(queue, clock, 3)
    clock.advance(6 * 3600)
    queue.connection.execute(
        "select faultline.schedule_failed(name, revision, 'JobRejected: its args have 2000000 bytes, more than the limit')"
        " from faultline.schedules where name = 'failing'"
    )
    ticked(queue)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read_and_no_page_is_wider_than_the_screen(
    dsn: str, queue: Driver, clock: Clock, chromium: Browser, theme: Any, width: int
) -> None:
    crowded(queue, clock)
    size = {"width": width, "height": 800}

    with running(dsn) as address, chromium.new_context(base_url=address, color_scheme=theme, viewport=size) as context:  # type: ignore[arg-type]
        page = context.new_page()
        faint: dict[str, Any] = {}
        wide: dict[str, int] = {}
        for path in PAGES:
            page.goto(path)
            faint |= {f"{path} {place}": found for place, found in page.evaluate(FAINT, CONTRAST_MIN).items()}
            wide[path] = page.evaluate("document.documentElement.scrollWidth")

    assert faint == {}
    assert {path: found for path, found in wide.items() if found > width} == {}
