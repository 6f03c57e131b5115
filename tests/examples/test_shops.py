"""The shops run with their real frameworks, and the how-to pages show their text."""

from __future__ import annotations

import asyncio
import re
import runpy
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar

from faultline import JobState
from faultline.testing import drain

ROOT = Path(__file__).parents[2]


def loaded(name: str, dsn: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("FAULTLINE_DSN", dsn)
    return runpy.run_path(str(ROOT / f"examples/{name}.py"))


async def ordered(web: Any, **words: Any) -> Any:
    """Start it, order a lamp, wait for its job, and look at the dashboard."""
    running = web.lifespan() if isinstance(web, Litestar) else web.router.lifespan_context(web)
    over = httpx.ASGITransport(web)
    async with running, httpx.AsyncClient(transport=over, base_url="http://shop.example") as to:
        job = (await to.post("/orders?item=lamp")).json()["job"]
        refused = await to.get("/faultline/jobs")
        page = await to.get(f"/faultline/jobs/{job}", **words)
        for _ in range(300):
            if "succeeded" in page.text:
                break
            await asyncio.sleep(0.1)
            page = await to.get(f"/faultline/jobs/{job}", **words)
        first = await to.get("/orders/1")
        return job, refused.status_code, page, first


def test_the_shop_on_fastapi(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = loaded("shop", dsn, monkeypatch)

    job, refused, page, first = asyncio.run(ordered(shop["web"], auth=("ada", "analytical")))

    assert (refused, page.status_code) == (401, 200)
    assert first.json() == {"item": "lamp", "parcel": "parcel-1"}
    with shop["queue"] as queue:
        assert queue.job(job).result == "parcel-1"


def test_the_shop_on_litestar(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = loaded("shop_litestar", dsn, monkeypatch)

    job, refused, page, _ = asyncio.run(ordered(shop["web"], headers={"cookie": "shop_user=ada"}))

    assert (refused, page.status_code) == (401, 200)
    with shop["queue"] as queue:
        assert queue.job(job).result == "a parcel with a lamp"


def test_the_shop_on_flask(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = loaded("shop_flask", dsn, monkeypatch)
    to = shop["web"].test_client()

    job = to.post("/orders?item=lamp").json["job"]
    with shop["queue"] as queue:
        drain(queue)
        assert (queue.job(job).state, queue.job(job).result) == (JobState.SUCCEEDED, "a parcel with a lamp")

        assert to.get("/faultline/jobs").status_code == 401
        with to.session_transaction() as session:
            session["user"] = "ada"
        assert to.get(f"/faultline/jobs/{job}").status_code == 200
    shop["engine"].dispose()


@pytest.mark.parametrize("page", ["web-frameworks", "sqlalchemy"])
def test_the_pages_show_what_the_examples_do(page: str) -> None:
    text = (ROOT / f"docs/how-to/{page}.md").read_text()
    programs = [path.read_text() for path in sorted((ROOT / "examples").glob("shop*.py"))]
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if not block.startswith("# alembic")]

    assert blocks
    for block in blocks:
        assert any(block in program for program in programs), f"no example has this:\n{block}"
