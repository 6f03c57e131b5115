"""The dashboard as a browser sees it: forms are sent with the fields that the page holds, and markup is read strictly."""

from __future__ import annotations

import contextlib
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import httpx
from fastapi.routing import APIRoute

from faultline.web import pages
from tests.web.conftest import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from httpx import Response

#: Every address of a page, as the routers have them.
PATHS = [
    route.path
    for page in pages.PAGES
    for route in page.router.routes
    if isinstance(route, APIRoute) and "GET" in (route.methods or ())
]
PAGES = tuple(path for path in PATHS if "{" not in path)
_VOID = {"meta", "link", "input", "br", "img", "hr"}
#: Shapes are written without an end tag of their own.
_CLOSED = {"path", "line", "rect", "circle", "ellipse", "polygon", "polyline"}


@contextlib.contextmanager
def browsed(dsn: str) -> Iterator[Site]:
    with running(dsn) as address, httpx.Client(base_url=address, headers={"accept": "text/html"}, timeout=30) as client:
        yield Site(client)


class Site:
    """One browser on a dashboard."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **words: Any) -> Response:
        return self._client.get(path, **words)

    def page(self, path: str) -> Page:
        answer = self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:2000])
        return Page(answer.text)

    def post(self, path: str, fields: dict[str, Any]) -> Response:
        return self._client.post(path, data=fields)

    def send(self, page: str, action: str, **fields: Any) -> Response:
        """Send a form of a page, as its button would: all its hidden fields, and `fields`."""
        hidden = self.page(page).hidden(action)
        assert hidden, f"{page} has no form for {action}"
        return self.post(action, {**hidden, **fields})


class Page(HTMLParser):
    """A page read tag by tag. Every tag is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._words: list[str] = []
        self._open: list[str] = []
        self._form: str | None = None
        self._forms: dict[str, dict[str, str]] = {}
        self.feed(text)
        self.close()
        assert self._open == [], self._open

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self._words))

    def hidden(self, action: str) -> dict[str, str]:
        return self._forms.get(action, {})

    def of(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "form":
            self._form = attributes.get("action")
            self._forms.setdefault(self._form or "", {})
        if tag == "input" and attributes.get("type") == "hidden" and self._form is not None:
            self._forms[self._form].setdefault(attributes["name"] or "", attributes.get("value") or "")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _CLOSED, tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        assert self._open.pop() == tag, (tag, self._open)

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self._words.append(data)
