"""Who is calling, and what they may do. Every route takes a `Caller`; each row is checked against what it may see.

For the API: `caller: Annotated[Caller, Depends(needs("read"))]`. The key comes as `Authorization: Bearer fl_...`, or in the
cookie of a dashboard session. While no key exists and only this machine can reach the server, everybody has every scope.

For the dashboard: `needs("read")` likewise. Without a session it raises `Problem` 401 `Unauthorized`, which
`pages.show_problem` turns into a redirect to the sign-in form. That form posts the pasted key to a route that calls
`sign_in(request, response, text)`; `sign_out` ends the session. An unsafe request by cookie, or without a key, must carry
`caller.csrf` as the form field `csrf` or the header `X-CSRF-Token`: `needs` checks it.

Scopes: read, enqueue, operate (cancel, retry, pause, resume), admin (all of these, and what concerns the whole server).
A key that is restricted to queues sees and changes only their jobs: pass `caller.only_queues` to every statement.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from fastapi import Request, Security
from fastapi.security import HTTPBearer

from faultline.core.errors import FaultlineError
from faultline.store.verbs import access
from faultline.web.auth.caller import LOOPBACK, Caller
from faultline.web.auth.proxies import limited_as
from faultline.web.auth.sessions import COOKIE
from faultline.web.server.forms import form_of
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

    from faultline.store.verbs.access import ApiKey

_SAFE = {"GET", "HEAD", "OPTIONS"}
_ADMITTED = "faultline.admitted"
#: Where a mounted dashboard finds the caller, in the scope of a request.
VISITOR = "faultline.visitor"
#: What asks again who it is: a stream lasts longer than a session of the program.
VISITOR_NOW = "faultline.visitor_now"
_EVERY_SCOPE = frozenset(access.SCOPES)
_bearer = HTTPBearer(auto_error=False, scheme_name="api_key", description="An API key: `fl_...`")


def needs(scope: str | None) -> Callable[..., Awaitable[Caller]]:
    """A dependency: the caller, with this scope (None: no scope needed) and within the rate limit."""

    async def ask(request: Request, _: Annotated[object, Security(_bearer)]) -> Caller:
        caller = request.scope.pop(_ADMITTED, None) or await who(request)
        service_of(request).bucket.take(caller.id)
        if scope is not None and not caller.may(scope):
            raise Problem(
                403,
                "Forbidden",
                f"This key lacks the `{scope}` scope.",
                next_step=f"Use a key with the `{scope}` scope; `faultline api-keys create` creates one.",
            )
        return caller

    return ask


async def admit(request: Request) -> None:
    """Check who is calling before reading the body, so that a stranger's body costs nothing."""
    caller = await who(request)
    service_of(request).bucket.look(caller.id)
    request.scope[_ADMITTED] = caller


async def who(request: Request) -> Caller:
    """Check who is calling. Raises a `Problem` for an unknown key, and for a browser request from another site."""
    service = service_of(request)
    if service.visitors:
        return await _visitor(request)
    shown = request.headers.get("authorization")
    if shown is not None:
        return _caller(await _holder(request, shown))
    session = service.sessions.find(request.cookies.get(COOKIE))
    if session is not None:
        refuse_other_sites(request)
        key = await service.keys.holder(session.digest)
        if key is not None:
            await _check_form(request, session.csrf)
            return _caller(key, session.csrf)
        service.sessions.close(session.id)
    if await service.keys.needed():
        raise unauthorized("No API key was sent.")
    refuse_strangers(request)
    refuse_other_sites(request)
    if not request.url.path.startswith("/api/"):
        await _check_form(request, service.loopback_csrf)
    return Caller(LOOPBACK, "everyone on this machine", _EVERY_SCOPE, csrf=service.loopback_csrf)


async def _visitor(request: Request) -> Caller:
    """The program that the dashboard is mounted in has said who is asking. A browser sends its cookies by itself, so a
    request that changes something must come from our own pages; a program's request has no origin.
    """
    caller: Caller = request.scope[VISITOR]
    refuse_other_sites(request)
    if not request.url.path.startswith("/api/"):
        await _check_form(request, caller.csrf or "")
    return caller


async def sign_in(request: Request, response: Response, text: str) -> Caller:
    """Open a session for this key, and set its cookie."""
    service = service_of(request)
    refuse_other_sites(request)
    key = await _holder(request, f"Bearer {text.strip()}")
    service.sessions.close(request.cookies.get(COOKIE))
    session = service.sessions.open(access.digest_of(text.strip()) or b"")
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, session.id, path="/", secure=secure, httponly=True, samesite="strict")
    return _caller(key, session.csrf)


def sign_out(request: Request, response: Response) -> None:
    service_of(request).sessions.close(request.cookies.get(COOKIE))
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


def unauthorized(why: str) -> Problem:
    return Problem(
        401,
        "Unauthorized",
        why,
        next_step="Send `Authorization: Bearer fl_...`; `faultline api-keys create` creates a key.",
        headers={"WWW-Authenticate": 'Bearer realm="faultline"'},
    )


def refuse_strangers(request: Request) -> None:
    """Without keys only this machine may ask, under its own name and directly.

    Under another name, a foreign page could ask by DNS rebinding; through a proxy, everybody could.
    """
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""  # the guard has checked it
    client = request.client.host if request.client else ""
    proxied = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip"))
    if not (is_loopback(host) and is_loopback(client)) or proxied:
        raise Problem(
            403,
            "NotLoopback",
            "Without API keys the server answers only this machine, and only under a local name such as localhost.",
            next_step="Create a key with `faultline api-keys create`, and send it.",
        )


def refuse_other_sites(request: Request) -> None:
    """Browsers say where a request comes from. Links from other sites are allowed, all else only from our own pages."""
    site = request.headers.get("sec-fetch-site", "none")
    following = request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"
    origin = request.headers.get("origin")
    foreign = origin is not None and origin.partition("://")[2] != request.headers.get("host", "")
    if (site not in ("none", "same-origin") or foreign) and not following:
        raise Problem(403, "CrossSite", "The request comes from another site.", next_step="Use an API key in programs.")


def is_loopback(host: str) -> bool:
    if host in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _holder(request: Request, shown: str) -> ApiKey:
    address = limited_as(request.client.host) if request.client else ""
    kind, _, text = shown.partition(" ")
    digest = access.digest_of(text.strip()) if kind.lower() == "bearer" else None
    key = None if digest is None else await service_of(request).keys.holder(digest, address=address)
    if key is None:
        raise unauthorized("This API key is unknown, expired or revoked.")
    return key


async def _check_form(request: Request, wanted: str) -> None:
    if request.method in _SAFE:
        return
    sent = request.headers.get("x-csrf-token") or (await form_of(request)).one("csrf") or ""
    if not hmac.compare_digest(sent.encode(), wanted.encode()):
        raise Problem(403, "FormToken", "The form's CSRF token is missing or expired.", next_step="Load the page again.")


def _caller(key: ApiKey, csrf: str | None = None) -> Caller:
    return Caller(key.id.hex, key.name, key.scopes, key.queues, csrf)


async def still_let_in(request: Request, caller: Caller) -> bool:
    """Whether who follows something may go on: keys are revoked, and sessions end. An outage is not the caller's fault."""
    try:
        now: Caller | None = await (request.scope[VISITOR_NOW]() if service_of(request).visitors else who(request))
    except FaultlineError as error:
        return getattr(error, "status", 503) >= 500  # noqa: PLR2004 - server errors
    return now is not None and now.queues == caller.queues and now.may("read")
