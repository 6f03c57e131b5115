"""The pages on hooks and observability tell the truth: their programs run as printed, with the real libraries."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import sentry_sdk
import structlog
from opentelemetry import trace
from sentry_sdk.transport import Transport

from faultline.testing import drain
from tests.integrations.test_otel import named, spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from sentry_sdk.envelope import Envelope

    from faultline import Faultline

__all__ = ["spans"]

PAGES = Path(__file__).parents[2] / "docs/how-to"


def program(page: str, shown: str, **words: Any) -> dict[str, Any]:
    """Run the one block of the page that shows this."""
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if shown in block)
    exec(compile(block, page, "exec"), words)  # noqa: S102 - it is our own page
    return words


class Recording(Transport):
    """What would be sent to Sentry."""

    sent: list[Envelope]

    def __init__(self) -> None:
        super().__init__()
        self.sent = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent.append(envelope)

    def events(self) -> list[dict[str, Any]]:
        found = [envelope.get_event() for envelope in self.sent]
        return [dict(event) for event in found if event is not None]

    def transactions(self) -> list[dict[str, Any]]:
        found = [envelope.get_transaction_event() for envelope in self.sent]
        return [dict(event) for event in found if event is not None]


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    transport, init = Recording(), sentry_sdk.init
    address = "https://key@sentry.example/1"
    monkeypatch.setattr(
        sentry_sdk,
        "init",
        lambda: init(
            dsn=address,
            transport=transport,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
        ),
    )
    yield transport
    sentry_sdk.get_client().close()
    sentry_sdk.Scope.get_global_scope().set_client(None)


def test_sentry_hears_once_of_a_job_that_has_failed_and_knows_the_job(app: Faultline, sentry: Recording) -> None:
    program("observability", "sentry_sdk.init()", app=app)

    @app.task(max_attempts=2, backoff=lambda _: 0)
    async def doomed() -> None:
        sentry_sdk.capture_message("looked at")
        raise ValueError("no such order")

    @app.task
    def fine() -> None:
        sentry_sdk.capture_message("fine too")

    job, other = doomed.enqueue(), fine.enqueue()
    drain(app)

    messages = [event for event in sentry.events() if "exception" not in event]
    (error,) = [event for event in sentry.events() if "exception" in event]
    assert error["exception"]["values"][0]["value"] == "no such order"
    assert error["exception"]["values"][0]["stacktrace"]["frames"][-1]["function"] == "doomed"
    assert error["tags"]["task"] == "doomed"
    assert error["contexts"]["job"] == {"id": str(job.id), "attempt": 2, "queue": "default"}
    assert sorted((event["message"], event["contexts"]["job"]["id"]) for event in messages) == sorted(
        [("looked at", str(job.id)), ("looked at", str(job.id)), ("fine too", str(other.id))]
    )
    assert sorted(event["transaction"] for event in sentry.transactions()) == ["doomed", "doomed", "fine"]


def test_structlog_says_which_job(app: Faultline, capsys: pytest.CaptureFixture[str]) -> None:
    program("observability", "structlog.configure")
    log = structlog.get_logger()

    @app.task
    async def on_loop() -> None:
        log.info("hello")

    @app.task
    def blocking() -> None:
        log.info("from a thread")

    first, second = on_loop.enqueue(), blocking.enqueue()
    try:
        drain(app)
        log.info("outside")
    finally:
        structlog.reset_defaults()

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"event": "hello", "job_id": str(first.id), "task": "on_loop", "attempt": 1},
        {"event": "from a thread", "job_id": str(second.id), "task": "blocking", "attempt": 1},
        {"event": "outside"},
    ]


def test_log_records_say_which_job(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    handler = program("observability", "JobFilter")["handler"]

    @app.task
    async def noisy() -> None:
        logging.getLogger("shop").warning("sold out")

    handle = noisy.enqueue()
    drain(app)
    logging.getLogger().removeHandler(handler)

    assert f"sold out job={handle.id} task=noisy attempt=1" in stream.getvalue().splitlines()


def test_spans_of_hooks_and_tasks_belong_to_the_attempt(app: Faultline, spans: InMemorySpanExporter) -> None:
    program("observability", "with_tenant", app=app, trace=trace)

    @app.task
    def blocking() -> None:
        with trace.get_tracer("shop").start_as_current_span("inside"):
            pass

    blocking.options(group="acme").enqueue()
    drain(app)

    (run,), (inside,) = named(spans, "run blocking"), named(spans, "inside")
    assert run.attributes is not None
    assert run.attributes["tenant"] == "acme"
    assert inside.parent is not None
    assert run.context is not None
    assert inside.parent.span_id == run.context.span_id


def test_the_page_on_hooks_runs_as_printed(app: Faultline, capsys: pytest.CaptureFixture[str]) -> None:
    program("hooks", "@app.middleware", app=app)
    program("hooks", "@app.on_failure", app=app)
    audit = program("hooks", "def audit")["audit"]

    @app.task(max_attempts=1)
    async def doomed() -> None:
        audit("sold")
        raise ValueError("no such order")

    handle = doomed.enqueue()
    drain(app)
    audit("bought")

    first, second, third, last = capsys.readouterr().out.splitlines()
    assert first == f"sold by {handle.id}"
    assert re.fullmatch(rf"doomed {handle.id}, attempt 1: 0\.\d+ s", second)
    assert third == f"doomed {handle.id} has failed after 1 attempts: ValueError('no such order')"
    assert last == "bought by a person"


def test_the_lifespan_of_the_page_runs_as_printed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_DSN", dsn)
    answers = httpx.MockTransport(lambda _: httpx.Response(418))
    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **words: client(transport=answers, **words))
    words = program("hooks", "@app.lifespan")

    with words["app"] as app:
        handle = words["fetch"].enqueue("http://shop.example")
        drain(app)
        assert handle.result() == 418
