"""The dashboard and the API as a blueprint of a Flask application.

web.register_blueprint(blueprint(queue, visitor), url_prefix="/faultline")
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import flask
from a2wsgi import ASGIMiddleware

from faultline.web.mounted import Dashboard, Visitor

if TYPE_CHECKING:
    from faultline.app.application import Faultline
    from faultline.web.server.databases import Limits

_KEY = "faultline.visitor"
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]


def blueprint(
    app: Faultline, visitor: Callable[[], Visitor | Any | None], *, limits: Limits | None = None
) -> flask.Blueprint:
    """A blueprint with the dashboard, and the API below `api/v1`.

    :param app: The application whose database it shows.
    :param visitor: Called in each request; returns a `Visitor`, None for nobody who may come in, or what a view may return,
        such as a redirect to your sign-in.
    :param limits: What one request and one caller may use.
    """
    inside = _PerProcess(lambda: Dashboard(app, lambda request: request.scope["wsgi_environ"][_KEY], limits=limits))
    made = flask.Blueprint("faultline", __name__)

    @made.route("/", defaults={"path": ""}, methods=_METHODS)
    @made.route("/<path:path>", methods=_METHODS)
    def serve(path: str) -> Any:
        found = visitor()
        if found is not None and not isinstance(found, Visitor):
            return found
        request = flask.request
        mount = request.path[: len(request.path) - len(path)].rstrip("/")
        at = {"SCRIPT_NAME": request.root_path.rstrip("/") + mount, "PATH_INFO": f"/{path}"}
        streams = "text/event-stream" in request.headers.get("accept", "")
        # Otherwise as a whole: an answer that is not read to its end would leave its request open.
        return flask.Response.from_app(
            inside, {"REMOTE_PORT": "0", **request.environ, **at, _KEY: found}, buffered=not streams
        )

    return made


class _PerProcess:
    """The dashboard as a WSGI application. Its event loop runs in a thread, which a forked process does not have: servers
    that load a program before they fork would wait forever for the parent's.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: dict[int, Any] = {}

    def __call__(self, *given: Any) -> Any:
        process = os.getpid()
        made = self._made.get(process)
        if made is None:
            made = self._made.setdefault(process, ASGIMiddleware(self._make()))
        return made(*given)
