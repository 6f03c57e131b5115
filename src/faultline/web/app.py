"""The application: `create_app(dsn)` is all of the HTTP service, ready for uvicorn.

    /health, /ready      for orchestrators                                web/server/health_routes.py
    /metrics             for Prometheus                                   web/server/metrics_route.py
    /api/v1/...          for programs; described at /openapi.json         web/api/
    /, /static           for people                                       web/pages/, web/server/assets.py

Every request passes `server/security_middleware` (size of bodies, headers); every route asks `auth.access.needs(scope)` who
is calling; every refusal is a `Problem`. `app.state.service` is the `Service` that all of them share.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from faultline.core import events
from faultline.core.build import version
from faultline.core.errors import FaultlineError, JobNotFound
from faultline.web import pages
from faultline.web.api.router import router as api_router
from faultline.web.api.shapes import JSON_OBJECT, JSON_VALUE, PATTERNS_IN_WORDS
from faultline.web.auth.proxies import Proxies
from faultline.web.server import assets, health_routes, metrics_route
from faultline.web.server.databases import Limits
from faultline.web.server.problems import Problem, problem_of
from faultline.web.server.security_middleware import Guard
from faultline.web.server.service import Service, service_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi.responses import Response
    from starlette.types import ASGIApp

    from faultline.core.host import Host


def create_app(
    dsn: str,
    *,
    limits: Limits | None = None,
    loopback_only: bool = False,
    metrics_at: tuple[str, int] | None = None,
    proxies: Proxies | None = None,
    host: Host | None = None,
    visitors: bool = False,
) -> FastAPI:
    """The service on this database. `loopback_only`: only this machine can reach the server. `visitors`: see `mounted`."""
    service = Service(dsn, limits=limits, loopback_only=loopback_only, metrics_at=metrics_at, host=host, visitors=visitors)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        try:
            if service.limits.connections_ready:
                pages.load()
                app.openapi()
            yield
        finally:
            await service.close()

    app = App(
        title="Faultline",
        version=version(),
        description="Background jobs on PostgreSQL that stay correct when things go wrong.",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.proxies = proxies or Proxies()
    _describe_arguments(app)
    for kind in (FaultlineError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refuse)
    app.include_router(health_routes.router)
    app.include_router(metrics_route.router)
    app.include_router(api_router)
    app.include_router(pages.router)
    app.include_router(assets.router)
    return app


class App(FastAPI):
    def build_middleware_stack(self) -> ASGIApp:
        """Wrapped in the guard: Starlette would put it inside its own error handler."""
        limits = self.state.service.limits
        return Guard(
            super().build_middleware_stack(),
            body_bytes_max=limits.body_bytes_max,
            body_seconds=limits.request_seconds,
            proxies=self.state.proxies,
        )


def _describe_arguments(app: FastAPI) -> None:
    """Describe arguments in /openapi.json: a recursive schema, which is checked elsewhere."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        found = describe()
        shapes = found["components"]["schemas"]
        shapes |= {"JsonValue": JSON_VALUE, "JsonObject": JSON_OBJECT}
        for name in ("NewJob", "NewSchedule"):
            shapes[name]["properties"]["args"] |= JSON_OBJECT
        shapes["Fork"]["properties"]["args"]["anyOf"][0] = {"$ref": "#/components/schemas/JsonObject"}
        for name in ("NewSignal", "NewSignalByKey"):
            shapes[name]["properties"]["payload"] |= {"$ref": "#/components/schemas/JsonValue"}
        return found

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


async def _refuse(request: Request, error: Exception) -> Response:
    """Return a problem: as JSON for programs, as a page for people. Server errors are logged."""
    problem = service_of(request).readiness.with_time(_problem(error))
    if problem.code == "NotFound" and _JOB_PATH.fullmatch(request.url.path):
        whole = "Send the whole id, such as 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01."
        problem = Problem(404, "JobNotFound", "Invalid job id.", next_step=whole, sqlstate=JobNotFound.sqlstate)
    if problem.status == 405:  # noqa: PLR2004 - method not allowed
        problem.headers["Allow"] = ", ".join(sorted(_methods(request)))
    if problem.status >= 500:  # noqa: PLR2004 - server errors
        events.emit("request_failed", method=request.method, path=request.url.path, code=problem.code, error=_why(error))
    wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
    return pages.show_problem(request, problem) if wants_page else problem.response()


def _methods(request: Request) -> set[str]:
    """The methods of this path, over all routes."""
    found: set[str] = set()
    for method in ("GET", "POST", "PUT", "DELETE"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            found |= {"GET", "HEAD"} if method == "GET" else {method}
    return found


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


_PATHS = "/openapi.json lists every path and its methods."
_PLAIN = {
    404: ("NotFound", _PATHS),
    405: ("MethodNotAllowed", _PATHS),
    400: ("BadRequest", "Correct the request."),
    401: ("Unauthorized", "Send an API key."),
    403: ("Forbidden", "Use a key that may do this."),
}
#: Paths with a job's id. An invalid id would match no route.
_JOB_PATH = re.compile(r"/api/v1/jobs/[^/]+(/cancel|/retry|/signals|/fork|/flow|/stream)?")


def _problem(error: Exception) -> Problem:
    match error:
        case RequestValidationError():
            return Problem(
                422,
                "InvalidRequest",
                "The request does not match the description at /openapi.json.",
                next_step="Correct the fields listed in `errors`.",
                errors=[_fault(found) for found in error.errors()[:20]],
            )
        case HTTPException(__cause__=Problem() as cause):
            return cause  # FastAPI calls every error while reading a body a bad body
        case HTTPException():
            code, next_step = _PLAIN.get(error.status_code, ("Refused", "Correct the request."))
            headers = dict(error.headers or {})
            return Problem(error.status_code, code, str(error.detail), next_step=next_step, headers=headers)
        case _:
            return problem_of(error)


def _fault(found: dict[str, Any]) -> dict[str, str]:
    """Where and what, without the value: it may be secret or large."""
    fault = str(found["msg"])[:300]
    if found["type"] == "string_pattern_mismatch":
        fault = PATTERNS_IN_WORDS.get(found["ctx"]["pattern"], "It has characters that are not allowed here.")
    return {"place": ".".join(str(part) for part in found["loc"])[:200], "fault": fault}
