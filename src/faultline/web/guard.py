"""What holds for every request and every answer: a limit on bodies, and headers that leave browsers no freedom.

Pure ASGI, so that a stream is passed on as it comes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.web.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Nothing inline, nothing from elsewhere, in no frame.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not `no-referrer`: with that a browser hides where our own forms come from as well (`Origin: null`).
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


class Guard:
    def __init__(self, app: ASGIApp, *, body_bytes_max: int, body_seconds: float) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *((n, v) for n, v in _HEADERS if n not in have)]
                if b"cache-control" not in have:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        said = dict(scope["headers"]).get(b"content-length", b"0")
        if not said.isdigit() or int(said) > self._body_bytes_max:
            await self._too_large().response()(scope, receive, answer)
            return
        await self._app(scope, self._counted(receive), answer)

    def _counted(self, receive: Receive) -> Receive:
        """A body that is sent in pieces says nothing of its size beforehand, and one that trickles in may never end."""
        seen, more = 0, True
        until = asyncio.get_running_loop().time() + self._body_seconds

        async def pull() -> Message:
            nonlocal seen, more
            try:
                # Behind the body, what is waited for is that they hang up: for as long as it takes.
                async with asyncio.timeout_at(until if more else None):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            more = bool(message.get("more_body", False))
            seen += len(message.get("body", b""))
            if seen > self._body_bytes_max:
                raise self._too_large()
            return message

        return pull

    def _too_slow(self) -> Problem:
        return Problem(
            408,
            "BodyTooSlow",
            f"The body did not come within {self._body_seconds:g} s.",
            next_step="Send it again.",
            headers={"Connection": "close"},
        )

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "BodyTooLarge",
            f"The body has more than {self._body_bytes_max} bytes.",
            next_step="Send fewer jobs at once, or keep large values elsewhere and pass a reference.",
            # The rest of the body is not read, so the connection cannot be used again.
            headers={"Connection": "close"},
        )
