"""Signing in to the dashboard: a key is pasted once, and a cookie stands for it while it is good."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Annotated

import pytest
from fastapi import Depends, FastAPI, Request, Response

from faultline.store.database import run_on
from faultline.store.verbs import access
from faultline.web.auth.access import needs, sign_in, sign_out
from faultline.web.auth.caller import Caller  # noqa: TC001 - FastAPI looks at it
from faultline.web.auth.proxies import Proxies
from faultline.web.auth.sessions import COOKIE
from faultline.web.server.forms import form_of
from faultline.web.server.server import server
from tests.web.conftest import QUICK, Api, refused, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.driver import Driver


def with_forms(app: FastAPI) -> None:
    """The few routes that a dashboard needs for this."""

    @app.post("/try/in")
    async def enter(request: Request, response: Response) -> dict[str, str | None]:
        key = (await form_of(request)).one("key") or ""
        return {"csrf": (await sign_in(request, response, key)).csrf}

    @app.post("/try/out")
    async def leave(request: Request, response: Response, _: Annotated[Caller, Depends(needs("read"))]) -> str:
        sign_out(request, response)
        return "out"

    @app.get("/try/who")
    async def who(caller: Annotated[Caller, Depends(needs("read"))]) -> str:
        return caller.name


@pytest.fixture
def address(dsn: str) -> Iterator[str]:
    ready = server(dsn, port=0, limits=QUICK, proxies=Proxies.of("127.0.0.1"))
    with_forms(ready.config.app)  # type: ignore[arg-type]
    with running(dsn, ready=ready) as found:
        yield found


@pytest.fixture
def browser(api: Api, stranger: Api) -> tuple[Api, str]:
    """A browser that has signed in with the key, and the token that its forms must carry."""
    answer = stranger.http.post("/try/in", data={"key": f" {api.key}\n"})
    assert answer.status_code == 200, answer.text
    return stranger, answer.json()["csrf"]


def test_a_session_stands_for_its_key(browser: tuple[Api, str]) -> None:
    client, _ = browser

    assert client.http.get("/try/who").json() == "test"
    assert client.get("/jobs").status_code == 200


def test_the_cookie_is_for_this_site_and_no_script(api: Api, stranger: Api) -> None:
    plain = stranger.http.post("/try/in", data={"key": api.key or ""})
    safe = stranger.http.post("/try/in", data={"key": api.key or ""}, headers={"X-Forwarded-Proto": "https"})

    words = plain.headers["set-cookie"].lower()
    assert "httponly" in words
    assert "samesite=strict" in words
    assert "secure" not in words
    assert "secure" in safe.headers["set-cookie"].lower()
    assert (api.key or "?") not in words


def test_a_wrong_key_opens_no_session(api: Api, stranger: Api) -> None:
    refused(stranger.http.post("/try/in", data={"key": "fl_nonsense"}), 401, "Unauthorized")
    assert COOKIE not in stranger.http.cookies


def test_an_unsafe_request_by_cookie_needs_the_forms_token(browser: tuple[Api, str]) -> None:
    client, token = browser

    refused(client.post("/jobs", json={"task": "t"}), 403, "FormToken")
    refused(client.post("/jobs", json={"task": "t"}, headers={"X-CSRF-Token": "x"}), 403, "FormToken")
    refused(client.http.post("/try/out", data={"csrf": token[:-1]}), 403, "FormToken")
    assert client.post("/jobs", json={"task": "t"}, headers={"X-CSRF-Token": token}).status_code == 201
    assert client.http.post("/try/out", data={"csrf": token}).status_code == 200


def test_a_page_of_another_site_cannot_use_the_session(browser: tuple[Api, str]) -> None:
    client, token = browser

    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        refused(client.post("/jobs", json={"task": "t"}, headers={"X-CSRF-Token": token, **headers}), 403, "CrossSite")
        refused(client.get("/jobs", headers=headers), 403, "CrossSite")
    followed = client.http.get("/try/who", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert followed.status_code == 200


def test_signing_out_ends_the_session_whoever_kept_the_cookie(browser: tuple[Api, str]) -> None:
    client, token = browser
    kept = client.http.cookies[COOKIE]

    client.http.post("/try/out", data={"csrf": token})
    client.http.cookies.set(COOKIE, kept)

    refused(client.http.get("/try/who"), 401, "Unauthorized")


def test_a_revoked_key_takes_its_sessions_with_it(api: Api, browser: tuple[Api, str], db: Driver) -> None:
    client, _ = browser
    assert api.key_id is not None

    run_on(db.connection, access.revoke(api.key_id))

    refused(client.http.get("/try/who"), 401, "Unauthorized")


def test_signing_in_leads_back_to_what_was_asked_for_with_its_query(api: Api, stranger: Api) -> None:
    page = {"Accept": "text/html"}
    asked = stranger.http.get("/jobs?state=failed&queue=a+b", headers=page)

    form = stranger.http.get(asked.headers["location"], headers=page).text
    wanted = html.unescape(re.findall(r'name="next" value="([^"]*)"', form)[0])
    answer = stranger.http.post("/sign-in", data={"key": api.key or "", "next": wanted}, headers=page)

    assert answer.headers["location"] == "/jobs?state=failed&queue=a+b"


def test_a_key_that_may_only_enqueue_can_sign_out_again(caller: Callable[..., Api], stranger: Api) -> None:
    page = {"Accept": "text/html"}
    stranger.http.post("/sign-in", data={"key": caller("enqueue").key or ""})
    refused_page = stranger.http.get("/", headers=page)
    assert refused_page.status_code == 403
    token = re.findall(r'action="/sign-out"><input type="hidden" name="csrf" value="([^"]+)"', refused_page.text)[0]

    out = stranger.http.post("/sign-out", data={"csrf": token}, headers=page)

    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert stranger.http.get("/", headers=page).status_code == 303
