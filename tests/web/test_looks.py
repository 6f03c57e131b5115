"""How pages look in a real browser: text that can be read in both themes, and labels that do not lie on each other."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from faultline.store import verbs
from faultline.store.verbs import flow
from tests.flow.scenes import begun, done, spawned, suspended
from tests.web.conftest import running
from tests.web.site import PAGES

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from playwright.sync_api import Browser

    from tests.driver import Clock, Driver

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]
CONTRAST_MIN = 4.5  # WCAG 2.2, level AA

#: Every text that is seen, with the contrast of its colour to what lies behind it: the colours of all that it lies in, laid
#: over each other. In a picture, text has a rim of the panel's colour.
FAINT = """least => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const channels = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const behind = element => {
    if (!element) return channels(getComputedStyle(document.body).backgroundColor);
    return over(channels(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  };
  const light = colour => {
    const [r, g, b] = colour.slice(0, 3).map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = {};
  const judge = (element, text, colour) => {
    const ground = behind(element), a = light(over(channels(colour), ground)), b = light(ground);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least) found[`${element.tagName}.${element.className?.baseVal ?? element.className}`] = [text, contrast];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest("title, desc, script, option, :disabled")) continue;
    judge(element, text, getComputedStyle(element)[element.closest("svg") ? "fill" : "color"]);
  }
  for (const field of document.querySelectorAll("input[placeholder]")) {
    judge(field, field.placeholder, getComputedStyle(field, "::placeholder").color);
  }
  return found;
}"""

#: Pairs of labels in the picture of a job that lie on each other.
TOUCHING = """() => {
  const boxes = [...document.querySelectorAll("svg.lanes text")].filter(text => text.checkVisibility())
    .map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], place) => boxes.slice(place + 1)
    .filter(([_, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
    .map(([other]) => [one, other]));
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def raced(queue: Driver, clock: Clock, *seconds: float) -> UUID:
    """A job of many epochs: taken over again and again, late writes refused, and done in the end."""
    job_id = queue.enqueue("settle", {"batch": 7}, lease_seconds=1)
    stale = []
    for number, wait in enumerate(seconds):
        stale.append(queue.claim_one(worker=f"w{number}"))
        clock.advance(wait)
        queue.reap()
        clock.advance(wait / 50)
    last = queue.claim_one(worker="last")
    for lease in stale:
        queue.complete(lease)
        queue.renew(lease)
        clock.advance(0.003)
    queue.complete(last)
    return job_id


def waiting_flow(queue: Driver, clock: Clock) -> UUID:
    """A job that has called, and waits for a signal: one was sent, and others are kept."""
    lease = begun(queue)
    done(queue, lease, "1", tries=3, result={"text": "…"})
    done(queue, lease, "2", outcome="failed", error="RateLimited: slow down")
    spawned(queue, lease, "3", 80)
    clock.advance(5)
    suspended(queue, lease, "4")
    for number in range(3):
        clock.advance(1)
        queue.run(flow.signal(lease.job_id, f"extra-{number}"))
    return lease.job_id


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(dsn: str, queue: Driver, clock: Clock, chromium: Browser, theme: Any) -> None:
    job_id = raced(queue, clock, 1.5)
    flow_id = waiting_flow(queue, clock)
    queue.enqueue("charge", idempotency_key="k")
    queue.fail(queue.claim_one(), then="fail", error="ValueError: no")
    queue.enqueue("later", delay_seconds=60)
    queue.enqueue("mail", queue="mail")
    queue.run(verbs.pause("mail", "maintenance"))
    queue.run(verbs.sample())

    with running(dsn) as address, chromium.new_context(base_url=address, color_scheme=theme) as context:
        page = context.new_page()
        faint: dict[str, Any] = {}
        for path in (*PAGES, f"/jobs/{job_id}", f"/jobs/{flow_id}", "/waiting?kind=all", "/nowhere"):
            page.goto(path)
            faint |= {f"{path} {place}": found for place, found in page.evaluate(FAINT, CONTRAST_MIN).items()}
        page.goto("/jobs")
        page.evaluate("document.body.dataset.live = document.getElementById('live').dataset.live = 'stale'")
        faint |= page.evaluate(FAINT, CONTRAST_MIN)

    assert faint == {}


@pytest.mark.parametrize("seconds", [(1.5,), (1.01, 1.01), (1.2, 30, 1.2), (1.001, 1.001, 1.001), (600, 1.1), (1.2,) * 14])
def test_no_label_of_a_picture_lies_on_another(
    dsn: str, queue: Driver, clock: Clock, chromium: Browser, seconds: tuple[float, ...]
) -> None:
    job_id = raced(queue, clock, *seconds)

    with running(dsn) as address, chromium.new_context(base_url=address) as context:
        page = context.new_page()
        page.goto(f"/jobs/{job_id}")
        for width in (1280, 900, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(TOUCHING) == [], width


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_of_a_flow_fits_any_width(dsn: str, queue: Driver, clock: Clock, chromium: Browser, width: int) -> None:
    job_id = waiting_flow(queue, clock)

    with (
        running(dsn) as address,
        chromium.new_context(base_url=address, viewport={"width": width, "height": 800}) as context,
    ):
        page = context.new_page()
        for path in (f"/jobs/{job_id}", "/waiting"):
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert page.evaluate(TOUCHING) == []
