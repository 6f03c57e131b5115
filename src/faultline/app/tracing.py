"""Find what a program traces with. Without OpenTelemetry nothing is loaded and nothing is done.

What knows OpenTelemetry is `faultline.integrations.otel`. It is looked up by its name, and only once the program itself has
imported OpenTelemetry.
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
    """The module, or None: a program that never imported OpenTelemetry has not configured it. One may also have forbidden to
    import it, which Python keeps as a None.
    """
    return import_module("faultline.integrations.otel") if sys.modules.get("opentelemetry.trace") else None


def enqueuing(submissions: list[Submission]) -> AbstractContextManager[list[Submission]]:
    """A span around an enqueue; the jobs as they are to be sent, with the context of that span."""
    otel = integration() if submissions else None
    if otel is None:
        return nullcontext(submissions)
    span: AbstractContextManager[list[Submission]] = otel.enqueuing(submissions)
    return span
