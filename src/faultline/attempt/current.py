"""The job that runs here, for code that is not given it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.running import running

if TYPE_CHECKING:
    from faultline.attempt.attempt import Attempt


def current_job() -> Attempt | None:
    """The job that runs here; None outside a job. In its task, and in the asyncio tasks and threads that this starts.

    It is the task's own `Job` or `BlockingJob` if the task takes one. Otherwise it says which job it is, and can write
    nothing. `asyncio.to_thread` hands it on to its thread; for `threading.Thread`, use `contextvars.copy_context().run`.
    """
    found = running.get()
    if found is None:
        return None
    job: Attempt = found.seen()
    return job
