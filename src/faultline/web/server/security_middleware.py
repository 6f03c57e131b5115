"""What applies to every request and response: a valid host, a limit on bodies, strict security headers.

It is the outermost layer, so that it applies to server errors too. Pure ASGI, so that streams are not buffered.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from faultline.web.auth.proxies import Proxies

#: Nothing inline, nothing from elsewhere, in no frame.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not `no-referrer`: with it, a browser sends `Origin: null` for our own forms too.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]*)(:[0-9]{0,5})?")
#: Of a refused body, so many times the limit is read: closing a connection with unread data resets it, and the client would
#: not see the response.
_READ_TIMES = 16


class Guard:
    def __init__(self, app: ASGIApp, *, body_bytes_max: int, body_seconds: float, proxies: Proxies) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._body_seconds = body_seconds
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        body = _Body(receive, headers, bytes_max=self._body_bytes_max, seconds=self._body_seconds)
        answer = _Answer(send, body, is_head=scope["method"] == "HEAD")
        refusal = _refusal(scope, headers) or body.refusal()
        if refusal is not None:
            await refusal.response()(scope, body.pull, answer.send)
            return
        scope = self._proxies.seen(scope)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the same response, without its body
        await self._app(scope, body.pull, answer.send)


class _Answer:
    def __init__(self, send: Send, body: _Body, *, is_head: bool) -> None:
        self._send = send
        self._body = body
        self._is_head = is_head
        self._is_over = False

    async def send(self, message: Message) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            have = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *((n, v) for n, v in HEADERS if n not in have)]
            if b"cache-control" not in have:
                message["headers"].append((b"cache-control", b"no-store"))
            await self._send(message)
            if not self._is_head:
                return
            message = {"type": "http.response.body", "body": b""}  # a stream would go on forever
        if message.get("more_body", False):
            await self._send(message)
            return
        self._is_over = True
        if self._body.is_unread:
            await self._send({**message, "more_body": True})
            await self._body.drain()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)


class _Body:
    """A chunked body does not give its size in advance, and a slow one may never end."""

    def __init__(self, receive: Receive, headers: dict[bytes, bytes], *, bytes_max: int, seconds: float) -> None:
        self._receive = receive
        self._bytes_max = bytes_max
        self._seconds = seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._said = headers.get(b"content-length", b"0")
        self._seen = 0
        self._more = True
        #: With `Expect: 100-continue` the client has not begun to send.
        self._comes = b"expect" not in headers and (b"transfer-encoding" in headers or self._said != b"0")

    def refusal(self) -> Problem | None:
        said = self._said
        return None if said.isdigit() and int(said) <= self._bytes_max else self._too_large()

    async def pull(self) -> Message:
        self._comes = True
        try:
            # After the body, wait for the client to disconnect, however long that takes.
            async with asyncio.timeout_at(self._until if self._more else None):
                message = await self._take()
        except TimeoutError:
            raise self._too_slow() from None
        if self._seen > self._bytes_max:
            raise self._too_large()
        return message

    @property
    def is_unread(self) -> bool:
        return self._comes and self._more

    async def drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._until):
                while self._more and self._seen <= _READ_TIMES * self._bytes_max:
                    await self._take()

    async def _take(self) -> Message:
        message = await self._receive()
        self._more = bool(message.get("more_body", False))
        self._seen += len(message.get("body", b""))
        return message

    def _too_slow(self) -> Problem:
        return Problem(
            408,
            "BodyTooSlow",
            f"The body did not arrive within {self._seconds:g} s.",
            next_step="Send it again.",
            headers={"Connection": "close"},
        )

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "BodyTooLarge",
            f"The body has more than {self._bytes_max} bytes.",
            next_step="Send fewer jobs at once, or store large values elsewhere and pass a reference.",
            headers={"Connection": "close"},
        )


def _refusal(scope: Scope, headers: dict[bytes, bytes]) -> Problem | None:
    """Requests that no part of the server could understand."""
    if b"content-length" in headers and b"transfer-encoding" in headers:
        return Problem(
            400,
            "TwoLengths",
            "The request has both a Content-Length and a Transfer-Encoding.",
            next_step="Send only one of them.",
            # Its end is ambiguous, and so is what follows.
            headers={"Connection": "close"},
        )
    if not _is_host(headers.get(b"host", b"")):
        return Problem(400, "BadHost", "Invalid Host header.", next_step="Send a name or an address, and a port.")
    if not scope["path"].startswith("/"):
        return Problem(400, "BadTarget", "Invalid request target.", next_step="Request a path, such as /api/v1/jobs.")
    return None


def _is_host(host: bytes) -> bool:
    if not _HOST.fullmatch(host):
        return False
    try:
        urlsplit(f"//{host.decode()}").port  # noqa: B018 - raises
    except ValueError:
        return False
    return True
