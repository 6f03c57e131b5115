"""The dashboard and the API inside a program's own web application, behind the program's own sign-in.

    web.mount("/faultline", Dashboard(queue, visitor))

`visitor` says who is asking; nothing is served to others. Pages think that they are at the root: what arrives loses the path
of the mount, and every link that leaves gets it.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from faultline.core.errors import ConfigError
from faultline.store.verbs.access import SCOPES
from faultline.web.app import create_app
from faultline.web.auth.access import VISITOR, VISITOR_NOW
from faultline.web.auth.caller import visiting
from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from faultline.app.application import Faultline
    from faultline.web.auth.caller import Caller
    from faultline.web.server.databases import Limits

_COOKIE = "faultline_form"
_LINK = re.compile(rb'\b(href|src|action|formaction|hx-get|hx-post)="/(?!/)')
_TOKEN_LENGTH = 43


@dataclass(frozen=True, slots=True)
class Visitor:
    """A user of the program who may see the dashboard, or a part of it.

    :param name: Recorded in the journal with what they do.
    :param scopes: What they may do: `read`, `enqueue`, `operate` (cancel, retry, pause, …), `admin` (all of these).
    :param queues: The queues that they are restricted to. Default: all.
    """

    name: str
    scopes: tuple[str, ...] = ("read",)
    queues: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        scopes: Any = self.scopes
        queues: Any = self.queues
        unknown = [scopes] if isinstance(scopes, str) else sorted({*scopes} - {*SCOPES})
        if unknown or isinstance(queues, str):
            raise ConfigError(
                f"a Visitor has scopes=(…) of {', '.join(sorted(SCOPES))}, and queues=(…) or none, not {unknown or queues!r}"
            )


#: Who is asking; None: nobody who may come in; a response: what to send instead, such as a redirect to your sign-in.
Asked = Visitor | Response | None
Ask = Callable[[Request], Asked | Awaitable[Asked]]


class Dashboard:
    """An ASGI application to mount at a path: the dashboard, and the API below `/api/v1`.

    It connects with its first request. Close it with `aclose`, as `faultline.integrations.asgi.lifespan` does.

    :param app: The application whose database it shows.
    :param visitor: Called with each request; says who is asking. A plain function or an async one.
    :param path: Where it is mounted, for a framework that does not say so, such as Litestar.
    :param limits: What one request and one caller may use.
    """

    def __init__(self, app: Faultline, visitor: Ask, *, path: str | None = None, limits: Limits | None = None) -> None:
        if not callable(visitor):
            raise ConfigError("Dashboard needs a function that says who is asking: Dashboard(app, visitor)")
        self._app = app
        self._visitor = visitor
        self._path = path
        self._limits = limits
        self._inner: Any = None
        self._opening: asyncio.Lock | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})  # the dashboard has none
        if scope["type"] != "http":
            return  # a mounted application has no lifespan of its own
        found = await self._asked(Request(scope, receive))
        if isinstance(found, Response):
            await found(scope, receive, send)
        elif isinstance(found, Visitor):
            await self._serve(found, scope, receive, send)
        elif found is None:
            refused = Problem(401, "Unauthorized", "You are not signed in.", next_step="Sign in to this application first.")
            await refused.response()(scope, receive, send)
        else:
            raise ConfigError(f"the visitor of a Dashboard must be a Visitor, a response or None, not {found!r:.80}")

    async def _asked(self, request: Request) -> Any:
        asked = self._visitor(request)
        return await asked if inspect.isawaitable(asked) else asked

    async def aclose(self) -> None:
        """Close its connections and end its streams. The next request opens it again."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.state.service.changes.close()
            inner.state.service.followers.close()
            await inner.state.service.close()

    async def _serve(self, visitor: Visitor, scope: Scope, receive: Receive, send: Send) -> None:
        inner = await self._opened()
        prefix, path = _split(scope, self._path)
        cookie = Request(scope).cookies.get(_COOKIE, "")
        known = len(cookie) == _TOKEN_LENGTH and cookie.isascii()
        token = cookie if known else secrets.token_urlsafe(32)
        caller = visiting(visitor.name, visitor.scopes, visitor.queues, token)
        inside = {
            "client": None,
            **scope,
            "root_path": "",
            "app_root_path": "",
            "path": path,
            "raw_path": quote(path).encode(),
            VISITOR: caller,
        }
        inside.pop("state", None)

        async def again() -> Caller | None:
            """Who follows a stream may have signed out meanwhile."""
            found = await self._asked(Request(scope))
            return visiting(found.name, found.scopes, found.queues, token) if isinstance(found, Visitor) else None

        inside[VISITOR_NOW] = again
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        new = None if known else f"{_COOKIE}={token}; Path={prefix or '/'}; HttpOnly; SameSite=Strict{secure}"
        await inner(inside, receive, _Answer(send, prefix.encode(), new))

    async def _opened(self) -> Any:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._inner is None:
                # An embedded server is started, or a function asked for the DSN: in a thread, because both take time.
                dsn = await asyncio.to_thread(lambda: self._app.dsn)
                inner = create_app(dsn, limits=self._limits, host=self._app.host, visitors=True)
                await inner.state.service.open()
                self._inner = inner
            return self._inner


class _Answer:
    """Sends an answer on, with the path of the mount in its links and redirects."""

    def __init__(self, send: Send, prefix: bytes, cookie: str | None) -> None:
        self._send = send
        self._prefix = prefix
        self._cookie = cookie
        #: The head and the body so far of a page, whose links are changed as a whole; None: passed on as it comes.
        self._head: Message | None = None
        self._page = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [self._moved(name, value) for name, value in message.get("headers", [])]
            if _is_page(message) and self._prefix:
                self._head = message
                if self._cookie is not None:
                    message["headers"].append((b"set-cookie", self._cookie.encode()))
                return
            if self._cookie is not None and _is_page(message):
                message["headers"].append((b"set-cookie", self._cookie.encode()))
        elif message["type"] == "http.response.body" and self._head is not None:
            self._page += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_page(self._head)
            return
        await self._send(message)

    async def _send_page(self, head: Message) -> None:
        page = _LINK.sub(rb'\1="' + self._prefix.replace(b"\\", rb"\\") + b"/", self._page)
        sizes = [(name, value) for name, value in head["headers"] if name.lower() != b"content-length"]
        await self._send({**head, "headers": [*sizes, (b"content-length", str(len(page)).encode())]})
        await self._send({"type": "http.response.body", "body": page})

    def _moved(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        own = name.lower() == b"location" and value.startswith(b"/") and not value.startswith(b"//")
        return name, self._prefix + value if own else value


def _is_page(head: Message) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in head["headers"])


def _split(scope: Scope, at: str | None) -> tuple[str, str]:
    """The path of the mount, for links, and the path inside it.

    Frameworks differ in whether `path` still has the mount in it, and the path of a proxy before that.
    """
    root, path = str(scope.get("root_path", "")).rstrip("/"), str(scope["path"])
    if at is not None:
        # As it was asked for: Litestar adds a slash to the end of `path`.
        root, path = root + at.rstrip("/"), unquote(scope["raw_path"].decode())
    mount = at or root[len(str(scope.get("app_root_path", "")).rstrip("/")) :]
    for head in (root, mount):
        if head and (path == head or path.startswith(f"{head}/")):
            return root, path[len(head) :] or "/"
    return root, path or "/"
