"""The dashboard inside a program's own web application: at a path, behind the program's own sign-in."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import flask
import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from faultline import ConfigError, Faultline, JobState
from faultline.integrations.asgi import lifespan
from faultline.web.flask import blueprint
from faultline.web.mounted import Dashboard, Visitor
from faultline.web.server.databases import Limits

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request

ADA = Visitor("ada", scopes=("read", "operate"))
BOB = Visitor("bob")
EVE = Visitor("eve", scopes=("read", "operate"), queues=("other",))
VISITORS = {"ada": ADA, "bob": BOB, "eve": EVE}


def visitor(request: Request) -> Visitor | RedirectResponse | None:
    """The program's own sign-in: a header stands in for its session."""
    user = request.headers.get("x-user")
    return RedirectResponse("/login", 303) if user == "nobody" else VISITORS.get(user or "")


async def async_visitor(request: Request) -> Visitor | RedirectResponse | None:
    return visitor(request)


def in_fastapi(queue: Faultline) -> Any:
    dashboard = Dashboard(queue, visitor)
    web = FastAPI(lifespan=lifespan(queue, dashboard=dashboard))
    web.mount("/faultline", dashboard)
    return web


def in_starlette(queue: Faultline) -> Any:
    dashboard = Dashboard(queue, async_visitor)
    below = Starlette(routes=[Mount("/faultline", dashboard)])
    return Starlette(routes=[Mount("/deep", below)], lifespan=lifespan(queue, dashboard=dashboard))


def in_litestar(queue: Faultline) -> Any:
    dashboard = Dashboard(queue, visitor, path="/faultline")

    @asgi("/faultline", is_mount=True, copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await dashboard(scope, receive, send)

    return Litestar([mounted], lifespan=[lifespan(queue, dashboard=dashboard)], openapi_config=None)


MOUNTS: dict[str, tuple[Callable[[Faultline], Any], str]] = {
    "fastapi": (in_fastapi, "/faultline"),
    "starlette": (in_starlette, "/deep/faultline"),
    "litestar": (in_litestar, "/faultline"),
}
EACH = pytest.mark.parametrize("framework", MOUNTS)


def visit(app: Faultline, framework: str, story: Callable[[httpx.AsyncClient, str], Any]) -> None:
    make, at = MOUNTS[framework]

    async def main() -> None:
        web = make(app)
        over = httpx.ASGITransport(web)
        async with _running(web), httpx.AsyncClient(transport=over, base_url="http://shop.example") as to:
            await story(to, at)

    asyncio.run(main())


def _running(web: Any) -> Any:
    """Its lifespan, as a server would run it."""
    return web.lifespan() if isinstance(web, Litestar) else web.router.lifespan_context(web)


@EACH
def test_nothing_is_served_to_those_who_are_not_signed_in(app: Faultline, framework: str) -> None:
    job = app.enqueue("charge")

    async def story(to: httpx.AsyncClient, at: str) -> None:
        for path in ("/", "/jobs", f"/jobs/{job.id}", "/api/v1/jobs", "/metrics", "/openapi.json"):
            assert (await to.get(at + path)).status_code == 401
        assert (await to.post(f"{at}/jobs/{job.id}/cancel")).status_code == 401
        sent = await to.get(f"{at}/jobs", headers={"x-user": "nobody"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/login")

    visit(app, framework, story)

    assert app.job(job.id).state is JobState.QUEUED


@EACH
def test_every_link_leads_into_the_mount(app: Faultline, framework: str) -> None:
    job = app.enqueue("charge", {"note": '<a href="/x">"/y" href="/z"'})

    async def story(to: httpx.AsyncClient, at: str) -> None:
        to.headers["x-user"] = "ada"
        seen: set[str] = set()
        waiting = [f"{at}/", f"{at}/jobs/{job.id}"]
        while waiting and len(seen) < 60:
            path = waiting.pop()
            seen.add(path)
            answer = await to.get(path)
            assert answer.status_code == 200, path
            if "text/html" not in answer.headers["content-type"]:
                continue
            assert int(answer.headers["content-length"]) == len(answer.content)
            links = re.findall(r'(?:href|src|action|hx-get|hx-post|formaction)="(/[^"]*)"', answer.text)
            assert links
            for link in links:
                assert link.startswith(f"{at}/"), (path, link)
            safe = re.findall(r'(?:href|src)="(/[^"#]*)"', answer.text)
            waiting += [link.replace("&amp;", "&") for link in safe if link not in seen and link not in waiting]
        assert len(seen) > 10
        page = (await to.get(f"{at}/jobs/{job.id}")).text
        assert at not in page[page.index("/z") - 40 : page.index("/z") + 4]  # the argument is shown as it is

    visit(app, framework, story)


@EACH
def test_a_visitor_operates_by_a_form_of_our_own_pages_only(app: Faultline, framework: str) -> None:
    job, other = app.enqueue("charge"), app.enqueue("charge")

    async def story(to: httpx.AsyncClient, at: str) -> None:
        to.headers["x-user"] = "ada"
        page = await to.get(f"{at}/jobs/{job.id}")
        cookie = page.headers["set-cookie"]
        assert f"Path={at};" in cookie
        assert "HttpOnly; SameSite=Strict" in cookie
        (token, *_) = re.findall(r'name="csrf" value="([^"]+)"', page.text)
        cancel, form = f"{at}/jobs/{job.id}/cancel", {"csrf": token, "reason": "enough"}

        assert (await to.post(cancel, data={"reason": "enough"})).status_code == 403
        assert (await to.post(cancel, data=form, headers={"origin": "http://evil.example"})).status_code == 403
        assert (await to.post(cancel, data=form, headers={"x-user": ""})).status_code == 401
        assert (await to.post(cancel, data=form, headers={"x-user": "bob"})).status_code == 403
        assert (await to.post(cancel, data=form, headers={"x-user": "eve"})).status_code == 404
        to.cookies.clear()
        assert (await to.post(cancel, data=form)).status_code == 403
        to.cookies.set("faultline_form", token)
        done = await to.post(cancel, data=form, headers={"origin": "http://shop.example"})
        assert done.status_code == 303
        assert done.headers["location"].startswith(f"{at}/jobs/{job.id}")

        api = f"{at}/api/v1/jobs/{other.id}/cancel"
        assert (await to.post(api, json={}, headers={"origin": "http://evil.example"})).status_code == 403
        assert (await to.post(api, json={"reason": "enough"})).status_code == 200
        listed = (await to.get(f"{at}/api/v1/jobs", headers={"x-user": "eve"})).json()
        assert listed["jobs"] == []

    visit(app, framework, story)

    assert app.job(job.id).state is app.job(other.id).state is JobState.CANCELLED
    with app.database.connect() as connection:
        (by,) = connection.execute(
            "select detail->>'by' from faultline.journal where job_id = %s and event = 'cancelled'", (job.id,)
        ).fetchall()
    assert by == ("ada (signed in, dashboard)",)


def test_a_stream_ends_when_its_visitor_signs_out(app: Faultline) -> None:
    signed_in = [True]

    async def main() -> list[str]:
        limits = Limits(heartbeat_seconds=0.2, connections_ready=0)
        dashboard = Dashboard(app, lambda _: BOB if signed_in[0] else None, limits=limits)
        sent: list[str] = []
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/api/v1/events",
        }
        scope |= {"query_string": b"", "headers": [(b"host", b"shop.example")], "client": None, "server": ("shop", 80)}

        async def send(message: Any) -> None:
            sent.append(message["type"])
            signed_in[0] = len(sent) < 4

        asked = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return asked.pop() if asked else await asyncio.sleep(60)

        async with app, asyncio.timeout(30):
            await dashboard(scope, receive, send)
            await dashboard.aclose()
        return sent

    assert asyncio.run(main())[0] == "http.response.start"


def test_a_flask_application_mounts_it_as_a_blueprint(app: Faultline) -> None:
    job = app.enqueue("charge")
    web = flask.Flask("shop")

    def who() -> Any:
        user = flask.request.headers.get("x-user", "")
        return flask.redirect("/login") if user == "nobody" else VISITORS.get(user)

    web.register_blueprint(blueprint(app, who), url_prefix="/faultline")
    to = web.test_client()
    ada = {"x-user": "ada"}

    assert to.get("/faultline/jobs").status_code == 401
    assert to.get("/faultline/jobs", headers={"x-user": "nobody"}).location == "/login"
    page = to.get(f"/faultline/jobs/{job.id}", headers=ada)
    assert page.status_code == 200
    assert all(link.startswith("/faultline/") for link in re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text))
    (token, *_) = re.findall(r'name="csrf" value="([^"]+)"', page.text)
    cancel = f"/faultline/jobs/{job.id}/cancel"
    assert to.post(cancel, data={"reason": "enough"}, headers=ada).status_code == 403
    assert to.post(cancel, data={"csrf": token, "reason": "enough"}, headers=ada).status_code == 303
    listed: Any = to.get("/faultline/api/v1/jobs", headers=ada).json
    assert listed["jobs"][0]["state"] == "cancelled"


def test_a_process_that_is_forked_after_the_blueprint_was_made_serves_it(app: Faultline) -> None:
    """As servers do that load a program before they fork."""
    web = flask.Flask("shop")
    web.register_blueprint(blueprint(app, lambda: ADA), url_prefix="/faultline")
    assert web.test_client().get("/faultline/jobs").status_code == 200

    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(web.test_client().get("/faultline/jobs").status_code != 200)

    assert os.waitpid(child, 0)[1] == 0
    assert web.test_client().get("/faultline/jobs").status_code == 200


def test_a_websocket_is_refused_without_an_error(app: Faultline) -> None:
    web = FastAPI()
    web.mount("/faultline", Dashboard(app, visitor))

    with pytest.raises(WebSocketDisconnect), TestClient(web).websocket_connect("/faultline/x", headers={"x-user": "ada"}):
        pytest.fail("opened")


def test_a_lifespan_runs_a_worker_and_the_programs_own_lifespan(app: Faultline) -> None:
    told: list[str] = []

    @app.task
    async def note(text: str) -> str:
        told.append(text)
        return text

    @asynccontextmanager
    async def own(_: Any) -> Any:
        told.append("began")
        yield {"pool": 1}
        told.append("ended")

    async def main() -> None:
        around = lifespan(app, worker={"default": 2}, inside=own, grace_seconds=5)
        async with around(None) as state:
            assert state == {"pool": 1}
            assert await (await note.aenqueue("ran")).aresult(30) == "ran"

    asyncio.run(main())

    assert told == ["began", "ran", "ended"]


def test_a_visitor_is_checked_where_it_is_made(app: Faultline) -> None:
    mistakes: list[dict[str, Any]] = [{"scopes": ("reed",)}, {"scopes": "read"}, {"queues": "mail"}]
    for wrong in mistakes:
        with pytest.raises(ConfigError, match="a Visitor has scopes"):
            Visitor("ada", **wrong)
    with pytest.raises(ConfigError, match="who is asking"):
        Dashboard(app, None)  # type: ignore[arg-type]


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")
def test_a_browser_uses_it_inside_the_shop(app: Faultline, tmp_path: Path) -> None:
    """Styles, scripts, the live page and a form: all from below the path of the mount."""
    job = app.enqueue("charge")
    wrong: list[str] = []
    with _served(app) as address, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(base_url=address, extra_http_headers={"x-user": "ada"}).new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto("/faultline/")
        page.get_by_role("link", name="Jobs", exact=True).click()
        later = app.enqueue("later")
        sync_api.expect(page.locator("#page")).to_contain_text("later")  # asked for by itself
        page.goto(f"/faultline/jobs/{job.id}")
        page.screenshot(path=tmp_path / "job.png")
        page.locator("summary", has_text="Cancel").click()
        page.get_by_label("Why the job is cancelled").fill("enough")
        page.locator("#cancel button").click()
        sync_api.expect(page.locator("#page")).to_contain_text("Cancelled.")
        assert page.url.startswith(f"{address}/faultline/jobs/{job.id}")
        page.screenshot(path=tmp_path / "cancelled.png")
        browser.close()

    assert wrong == []
    assert app.job(job.id).state is JobState.CANCELLED
    assert app.job(later.id).state is JobState.QUEUED


@contextmanager
def _served(app: Faultline) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(in_fastapi(app), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
