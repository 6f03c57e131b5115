"""What all pages share: templates that escape all values, the frame around them, and how a refusal is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from faultline import operate
from faultline.explain import formatting
from faultline.web.auth.sessions import COOKIE
from faultline.web.server import assets
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from faultline.web.auth.caller import Caller
    from faultline.web.server.problems import Problem

#: Where an operation was done; it follows the name of the operator.
HERE = ", dashboard"
_UNAUTHORIZED = 401
_UNAVAILABLE = 503

#: What a page says after an operation. A fixed list, so that a foreign link cannot show its own text.
_SAID = {
    "cancelled": "Cancelled. The database refuses every further write of the worker that held it.",
    "undoing": "Requeued to undo its sagas. It ends again as it had ended.",
    "retried": "Requeued. Its attempts start from zero; its token keeps growing.",
    "forked": "Forked. This is the new job; what it shows as done was done by the other.",
    "signalled": "Sent. A job that waits for it goes on at once.",
    "paused": "Paused. Running jobs finish; workers claim nothing more until the queue is resumed.",
    "resumed": "Resumed. Idle workers were woken.",
    "was_not_paused": "The queue was not paused.",
    "limit_set": "Set. It holds for jobs that start from now on; running ones go on.",
    "limit_reset": "Reset. What the code declares holds again.",
    "budget_set": "Set. Jobs that wait for it ask again, if more may be taken now.",
    "budget_reset": "Reset. What the code declares holds again; a budget that no code declares is gone.",
    "budget_kept": "Nothing was changed: nothing was set for it, and the code of a worker that runs declares it.",
    "schedule_paused": "Paused. Its ticks make no jobs until it is resumed, and are not caught up then.",
    "schedule_resumed": "Resumed. Ticks from now on count.",
    "schedule_was_not_paused": "The schedule was not paused.",
    "schedule_run": "Enqueued: see its past ticks.",
    "schedule_reset": "Reset. What the code of workers says holds again.",
    "schedule_was_not_set": "Nothing was set for it. It stays as the code of workers says.",
    "schedule_removed": "Removed. Its jobs stay as they are.",
    "schedule_backfilled": "{n} enqueued.",
    "schedule_backfilled_none": "Nothing to do: there are no ticks in that time, or each has its job.",
    "bulk_cancelled": "{n} cancelled.",
    "bulk_cancelled_some": "{n} cancelled. More match: cancel them, too.",
    "bulk_retried": "{n} requeued.",
    "bulk_nothing": "No job was selected.",
    "failed_retried": "{n} requeued.",
}

environment = Environment(
    loader=PackageLoader("faultline.web", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS = "ago clock count duration given headline moment pretty rate short size stamp times words"
environment.filters |= {name: getattr(formatting, name) for name in _FILTERS.split()} | {"signed": operate.signature}
environment.globals["static"] = assets.address
environment.globals["pages"] = [
    ("/", "overview", "Overview"),
    ("/jobs", "jobs", "Jobs"),
    ("/waiting", "waiting", "Waiting"),
    ("/schedules", "schedules", "Schedules"),
    ("/queues", "queues", "Queues"),
    ("/workers", "workers", "Workers"),
    ("/failures", "failures", "Failures"),
    ("/database", "database", "Database"),
]


def load() -> None:
    """Compile every template, so that the first request need not wait for it."""
    for name in environment.list_templates():
        environment.get_template(name)


def show(request: Request, caller: Caller | None, template: str, *, status: int = 200, **facts: Any) -> HTMLResponse:
    """A page. `template` names its file; `facts` are escaped."""
    page = environment.get_template(f"{template}.html")
    made = datetime.fromtimestamp(service_of(request).host.seconds(), UTC)
    # Pages that do not use the database show an outage too. Others cannot be rendered then.
    fault = service_of(request).readiness.fault if caller is None else None
    if fault is not None and fault.code == getattr(facts.get("problem"), "code", None):
        fault = None  # said already
    frame = {"here": here(request), "at": template, "said": _said(request), "made": f"{made:%H:%M:%S}", "fault": fault}
    text = page.render(who=caller, **frame, **facts)
    return HTMLResponse(text, status)


def here(request: Request) -> str:
    """The requested path with its query."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def go(path: str, *, said: str | None = None, n: int | None = None, **query: str) -> RedirectResponse:
    """Redirect to another page after an operation. `said`: the key of the text to show."""
    asked = query | ({"said": said} if said else {}) | ({"n": str(n)} if n is not None else {})
    return RedirectResponse(f"{path}?{urlencode(asked)}" if asked else path, status_code=303)


def show_problem(request: Request, problem: Problem) -> Response:
    """A refusal as a page. (Programs, under /api, get problem+json.) Without a session it redirects to the sign-in form."""
    if problem.status == _UNAUTHORIZED and request.url.path != "/sign-in":
        wanted = here(request) if request.method == "GET" else "/"
        return RedirectResponse(f"/sign-in?{urlencode({'next': wanted})}", status_code=303)
    # The page reloads itself until the database is back.
    again = problem.status == _UNAVAILABLE and request.method == "GET"
    # The user may want to sign in with another key.
    session = service_of(request).sessions.find(request.cookies.get(COOKIE))
    csrf = None if session is None else session.csrf
    answer = show(request, None, "problem", status=problem.status, problem=problem, again=again, csrf=csrf)
    answer.headers.update(problem.headers)
    return answer


def own_path(text: str) -> str:
    """A path of this site, or the overview: never a redirect to another site."""
    parts = urlsplit(text)
    plain = text.startswith("/") and not text.startswith("//") and "\\" not in text and parts.netloc == ""
    return text if plain and text.isprintable() else "/"


def _said(request: Request) -> str | None:
    said = _SAID.get(request.query_params.get("said", ""))
    number = request.query_params.get("n", "0")
    jobs = "1 job" if number == "1" else f"{int(number):,} jobs" if number.isdecimal() and len(number) < 10 else "Jobs"  # noqa: PLR2004
    return said.format(n=jobs) if said else None
