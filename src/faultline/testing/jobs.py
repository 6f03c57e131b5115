"""Check what was enqueued. A failed assertion shows which jobs there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline import values
from faultline.app.tasks import Task
from faultline.core.errors import ConfigError
from faultline.core.model import JobState
from faultline.store import jsontext
from faultline.store.testing import jobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.app.application import Faultline
    from faultline.core.model import JobRecord

_SHOWN_MAX = 20


def enqueued(
    app: Faultline,
    task: Task[..., Any] | str | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    idempotency_key: str | None = None,
    state: JobState | None = JobState.QUEUED,
) -> list[JobRecord]:
    """The matching jobs, oldest first. What is not given may be anything, including arguments that are not in `args`.

    Only queued jobs match, due or not; `state=None` matches jobs in every state.
    """
    name = None if task is None else registered(app, task)
    wanted = jsontext.decode_args(values.args_text(args or {}, "args"))
    return [
        job
        for job in app.database.run(jobs(task=name, queue=queue, state=state))
        if priority in (None, job.priority)
        and idempotency_key in (None, job.idempotency_key)
        and wanted.items() <= _arguments(job).items()
    ]


def assert_enqueued(
    app: Faultline,
    task: Task[..., Any] | str,
    *,
    args: Mapping[str, Any] | None = None,
    count: int | None = None,
    queue: str | None = None,
    priority: int | None = None,
    idempotency_key: str | None = None,
    state: JobState | None = JobState.QUEUED,
) -> list[JobRecord]:
    """Fail unless such a job is queued; with `count`, unless exactly that many are. The filters are those of `enqueued`."""
    named = {"args": args, "queue": queue, "priority": priority, "idempotency_key": idempotency_key}
    found = enqueued(app, task, args=args, queue=queue, priority=priority, idempotency_key=idempotency_key, state=state)
    if len(found) == count or (count is None and found):
        return found
    asked = ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None)
    claim = f"{'at least one' if count is None else count} x {registered(app, task)}({asked})"
    raise AssertionError(f"expected {claim} {state or 'in any state'}, found {len(found)}. {_shown(app)}")


def registered(app: Faultline, task: Task[..., Any] | str) -> str:
    """The name of a registered task. A misspelt name would match no job, which might look like a success."""
    name = task.name if isinstance(task, Task) else task
    if name not in app.tasks:
        raise ConfigError(
            f"no task named {name} is registered in this application; registered: {', '.join(sorted(app.tasks)) or 'none'}"
        )
    return name


def _arguments(job: JobRecord) -> dict[str, Any]:
    return job.args if isinstance(job.args, dict) else {}


def _shown(app: Faultline) -> str:
    found = app.database.run(jobs())
    if not found:
        return "There are no jobs."
    lines = [f"  {job.task}({_text(job)}) {job.state} in queue {job.queue}, priority {job.priority}" for job in found]
    left_out = [f"  and {len(lines) - _SHOWN_MAX} older ones"] if len(lines) > _SHOWN_MAX else []
    return "\n".join(["There are:", *lines[-_SHOWN_MAX:], *left_out])


def _text(job: JobRecord) -> str:
    key = [] if job.idempotency_key is None else [f"idempotency_key={job.idempotency_key!r}"]
    return ", ".join([*(f"{name}={value!r}" for name, value in _arguments(job).items()), *key])
