"""A trace goes on where the job runs, in whichever process that is; and who does not trace pays nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util._once import Once

from faultline.store.reads import views
from faultline.worker.run import tracing
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from faultline.app.application import Faultline
    from tests.driver import Driver


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """OpenTelemetry can be configured once in a process, and not taken back: so its own tests reset it like this."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()
    trace._TRACER_PROVIDER_SET_ONCE = Once()  # noqa: SLF001 - other tests of this process trace nothing
    trace._TRACER_PROVIDER = None  # noqa: SLF001 - likewise


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_run_is_part_of_the_trace_that_enqueued_it(app: Faultline, spans: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("test")

    @app.task(queue="mail")
    async def send(to: str) -> None:
        with tracer.start_as_current_span("inside"):
            await asyncio.sleep(0)

    @app.task(queue="mail")
    def send_blocking() -> None:
        with tracer.start_as_current_span("inside a thread"):
            pass

    with tracer.start_as_current_span("request"):
        handles: list[Any] = [send.enqueue("a secret address"), send_blocking.enqueue()]
    results(app, handles, queues={"mail": 5})

    (request,), (enqueue,), (run,) = (named(spans, name) for name in ("request", "enqueue send", "run send"))
    (inside,), (run_blocking,), (in_thread,) = (
        named(spans, name) for name in ("inside", "run send_blocking", "inside a thread")
    )
    assert request.context is not None
    assert run.context is not None
    assert enqueue.context is not None
    assert run_blocking.context is not None
    assert run.parent is not None
    assert inside.parent is not None
    assert in_thread.parent is not None
    assert run.context.trace_id == request.context.trace_id
    assert run.parent.span_id == enqueue.context.span_id
    assert inside.parent.span_id == run.context.span_id
    assert in_thread.parent.span_id == run_blocking.context.span_id
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert run.attributes is not None
    assert run.attributes["messaging.message.id"] == str(handles[0].id)
    assert run.attributes["faultline.outcome"] == "completed"
    assert "secret" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_every_attempt_has_a_span_and_a_failed_one_says_so(app: Faultline, spans: InMemorySpanExporter) -> None:
    @app.task(max_attempts=2, backoff=lambda _: 0.0)
    async def doomed() -> None:
        raise ValueError("no such order")

    results(app, [doomed.enqueue()])

    attempts = named(spans, "run doomed")
    assert [span.attributes["faultline.attempt"] for span in attempts if span.attributes] == [1, 2]
    assert {span.context.trace_id for span in attempts if span.context} == {
        span.context.trace_id for span in named(spans, "enqueue doomed") if span.context
    }
    assert [(span.status.status_code, span.status.description) for span in attempts] == [
        (StatusCode.ERROR, "ValueError: no such order")
    ] * 2
    for span in attempts:
        (recorded,) = span.events
        assert recorded.attributes is not None
        assert recorded.attributes["exception.type"] == "ValueError"
        assert 'raise ValueError("no such order")' in str(recorded.attributes["exception.stacktrace"])


def test_a_job_keeps_its_first_trace_its_key_and_its_arguments(
    app: Faultline, queue: Driver, spans: InMemorySpanExporter
) -> None:
    @app.task
    async def send(to: str) -> None: ...

    with_key = send.options(idempotency_key="k")
    first = with_key.enqueue("a")
    second = with_key.enqueue("a")  # another trace, the same job

    assert (first.id, second.created) == (second.id, False)
    contexts = queue.run(views.traces([first.id]))
    (span, _) = named(spans, "enqueue send")
    assert span.context is not None
    assert contexts == {
        first.id: f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
    }
    assert queue.job(first.id).args == {"to": "a"}


def test_a_program_without_opentelemetry_traces_nothing() -> None:
    program = (
        "import sys, faultline, faultline.worker.worker\n"
        "from faultline.app.tracing import enqueuing\n"
        "from faultline.worker.run.tracing import configured\n"
        "from faultline.core.model import Submission\n"
        "jobs = [Submission('t')]\n"
        "with enqueuing(jobs) as traced: assert traced is jobs\n"
        "assert configured() is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "import opentelemetry.trace\n"
        "assert configured() is None\n"
    )

    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_trace_that_makes_no_sense_begins_anew(app: Faultline, queue: Driver, spans: InMemorySpanExporter) -> None:
    @app.task
    async def plain() -> None: ...

    job_id = queue.enqueue("plain", trace="no trace at all")
    handle = plain.enqueue()
    results(app, [handle])
    results(app, [plain.enqueue()])

    assert queue.state(job_id) == "succeeded"
    assert tracing.configured() is not None
    assert len(named(spans, "run plain")) == 3


def test_a_program_that_forbids_to_import_opentelemetry_enqueues(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)

    @app.task
    def note() -> None: ...

    assert note.enqueue().id is not None
