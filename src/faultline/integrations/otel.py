"""Traces from enqueue to run, across processes, if the program has configured OpenTelemetry.

The job's column `trace` carries the context, 55 characters in the W3C format: not the arguments, which would change what the
task sees and what its idempotency key means. A claim does not return it; a worker that traces reads the contexts of what it
has claimed, so that others do not pay for them. Spans never contain arguments or results.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from faultline.attempt.outcomes import Outcome
from faultline.core import events
from faultline.store.reads import views
from faultline.worker.write.endings import Failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from opentelemetry.trace import Span, Tracer

    from faultline.core.model import Lease, Submission
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.write.endings import Ending

_NAME = "faultline"


def _tracer() -> Tracer | None:
    """The program's tracer; None: not configured."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    found: Tracer = provider.get_tracer(_NAME)
    return found


@contextlib.contextmanager
def enqueuing(submissions: list[Submission]) -> Iterator[list[Submission]]:
    """A span around an enqueue. Yields the jobs with the context of that span."""
    tracer = _tracer()
    if tracer is None:
        yield submissions
        return
    first = submissions[0]
    attributes: dict[str, str | int] = {
        "messaging.system": _NAME,
        "messaging.destination.name": first.queue or "default",
        "messaging.batch.message_count": len(submissions),
        "faultline.task": first.task,
    }
    with tracer.start_as_current_span(f"enqueue {first.task}", kind=trace.SpanKind.PRODUCER, attributes=attributes) as span:
        text = _text_of(span)
        yield submissions if text is None else [replace(job, trace=job.trace or text) for job in submissions]


def configured() -> Tracing | None:
    """What a worker traces with. None: it does not trace."""
    tracer = _tracer()
    return None if tracer is None else Tracing(tracer)


class Tracing:
    """The spans of one worker's attempts."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._contexts: dict[UUID, str] = {}
        self._spans: dict[HeldLease, Span] = {}

    async def fetch(self, database: AsyncDatabase, leases: Sequence[Lease]) -> None:
        """Read the contexts of claimed jobs. If that fails, their traces begin anew; the jobs run."""
        try:
            found = await database.run(views.traces([lease.job_id for lease in leases]))
            self._contexts.update(found)
        except Exception as error:  # noqa: BLE001 - leases are held, so the jobs must run
            events.emit("traces_unknown", error=str(error))

    def begin(self, hold: HeldLease) -> None:
        """Begin the span of an attempt and make it current in the attempt's asyncio task."""
        lease = hold.lease
        carrier = {"traceparent": self._contexts.pop(lease.job_id, "")}
        parent = TraceContextTextMapPropagator().extract(carrier, context=context.Context())
        attributes: dict[str, str | int] = {
            "messaging.system": _NAME,
            "messaging.message.id": str(lease.job_id),
            "faultline.task": lease.task,
            "faultline.attempt": lease.attempt,
            "faultline.fencing_token": lease.fencing_token,
        }
        span = self._tracer.start_span(
            f"run {lease.task}", context=parent, kind=trace.SpanKind.CONSUMER, attributes=attributes
        )
        self._spans[hold] = span
        context.attach(trace.set_span_in_context(span))

    def end(self, hold: HeldLease, ending: Ending | None, raised: BaseException | None = None) -> None:
        """End the span of an attempt, with the exception that the task raised."""
        self._contexts.pop(hold.lease.job_id, None)
        span = self._spans.pop(hold, None)
        if span is None:
            return
        outcome = type(ending).__name__.lower() if ending is not None else "completed" if hold.completed else "lost"
        span.set_attribute("faultline.outcome", outcome)
        if isinstance(ending, Failed) and ending.failure.then != "cancel":
            # Recorded with its type and traceback. An outcome is not an error.
            if raised is not None and not isinstance(raised, Outcome):
                with contextlib.suppress(Exception):  # one whose own text raises
                    span.record_exception(raised)
            span.set_status(trace.Status(trace.StatusCode.ERROR, ending.failure.error.partition("\n")[0][:200]))
        span.end()


def _text_of(span: Span) -> str | None:
    """The context of a span in the W3C format; None: it is not recorded."""
    found = span.get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
