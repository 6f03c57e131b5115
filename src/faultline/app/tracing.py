"""Trace with OpenTelemetry if the program uses it.

`faultline.integrations.otel` is imported by name, and only if the program itself has imported OpenTelemetry.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from faultline.core.model import Submission


def integration() -> Any:
    """The module, or None: a program that never imported OpenTelemetry, or blocks its import, has not configured it."""
    return import_module("faultline.integrations.otel") if sys.modules.get("opentelemetry.trace") else None


def enqueuing(submissions: list[Submission]) -> AbstractContextManager[list[Submission]]:
    """A span around an enqueue. Yields the jobs with the context of that span."""
    otel = integration() if submissions else None
    if otel is None:
        return nullcontext(submissions)
    span: AbstractContextManager[list[Submission]] = otel.enqueuing(submissions)
    return span
