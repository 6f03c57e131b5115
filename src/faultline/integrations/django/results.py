"""What Django calls the result of a task, from what the database has of its job.

Django knows four states. A cancelled job has failed there, with `faultline.JobCancelled` as its error. An error has the path
of its class, which can be imported: that of the exception, or `faultline.JobFailed` where no exception was the cause.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone

from faultline.core import errors
from faultline.core.journal import JournalEvent
from faultline.core.model import JobState
from faultline.integrations.django.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_backends,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.model import JobRecord, JournalEntry

_STATUS = {
    JobState.QUEUED: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
#: An error as it is stored: its class, its message, its frames.
_STORED = re.compile(
    r"(?:its result cannot be stored: )?(?P<kind>[A-Za-z_][\w.]*)(?P<text>: .*?|)(?P<frames>\n  File \".*|)", re.DOTALL
)
#: What is known of an attempt whose entry in the journal was pruned.
_UNKNOWN = "unknown"


def result_of(record: JobRecord, journal: Sequence[JournalEntry], task: Any) -> Any:
    """The result of a task whose job and journal these are."""
    attempts = _since_retry(journal)
    given = record.args if isinstance(record.args, dict) else {}
    result = TaskResult(
        task=_as_enqueued(task, record, given),
        id=str(record.id),
        status=_STATUS[record.state],
        enqueued_at=moment(record.created_at),
        started_at=_started_at(record, attempts),
        last_attempted_at=moment(record.claimed_at),
        finished_at=moment(record.finished_at),
        args=given.get("args", []),
        kwargs=given.get("kwargs", {}),
        backend=given.get("backend", DEFAULT_TASK_BACKEND_ALIAS),
        errors=_errors(record, attempts),
        worker_ids=_worker_ids(record, attempts),
    )
    if record.state is JobState.SUCCEEDED:
        object.__setattr__(result, "_return_value", record.result)
    return result


def error_of(text: str) -> Any:
    """A stored error. It has the form that `running.described` writes, or is a message of the engine."""
    found = _STORED.fullmatch(text)
    path = None if found is None else _path_of(found["kind"])
    if found is None or path is None:
        return TaskError(exception_class_path="faultline.JobFailed", traceback=text)
    head = "Traceback (most recent call last):" if found["frames"] else ""
    lines = [head + found["frames"], found["kind"] + found["text"]]
    return TaskError(exception_class_path=path, traceback="\n".join(line.strip("\n") for line in lines if line) + "\n")


def moment(at: datetime | None) -> datetime | None:
    """A time as Django has it: without a time zone if it uses none."""
    if at is None or settings.USE_TZ or timezone.is_naive(at):
        return at
    naive: datetime = timezone.make_naive(at, timezone.get_default_timezone())
    return naive


def _as_enqueued(task: Any, record: JobRecord, given: dict[str, Any]) -> Any:
    """The task with the options with which it was enqueued. They were valid then: the settings may have changed since, and
    such a job runs and is read all the same.
    """
    run_after, backend = given.get("run_after"), given.get("backend", DEFAULT_TASK_BACKEND_ALIAS)
    options = {field.name: getattr(task, field.name) for field in fields(task)} | {
        # Django's larger numbers run first, ours last.
        "priority": -record.priority,
        "queue_name": record.queue,
        "run_after": None if run_after is None else moment(datetime.fromisoformat(run_after)),
        "backend": backend if backend in task_backends.settings else task.backend,
    }
    # Not by its class, which checks it by the settings of now; a copy is made by its class, too.
    found = object.__new__(type(task))
    for name, value in options.items():
        object.__setattr__(found, name, value)
    return found


def _since_retry(journal: Sequence[JournalEntry]) -> list[JournalEntry]:
    """The ends of attempts since somebody retried the job, which begins them anew."""
    retried = [n for n, entry in enumerate(journal) if entry.event == JournalEvent.RETRIED]
    ends = (JournalEvent.ATTEMPT_FAILED, JournalEvent.LEASE_REAPED, JournalEvent.CANCELLED)
    return [entry for entry in journal[retried[-1] + 1 if retried else 0 :] if entry.event in ends]


def _worker_ids(record: JobRecord, attempts: Sequence[JournalEntry]) -> list[str]:
    """One worker for each attempt, in order."""
    owners = {entry.detail.get("attempt"): entry.owner for entry in attempts if entry.owner is not None}
    if record.owner is not None:
        owners[record.attempt] = record.owner
    return [owners.get(number, _UNKNOWN).partition("/")[0] for number in range(1, record.attempt + 1)]


def _started_at(record: JobRecord, attempts: Sequence[JournalEntry]) -> datetime | None:
    first = attempts[0].detail.get("claimed_at") if attempts else None
    return moment(record.claimed_at if first is None else datetime.fromisoformat(first))


def _errors(record: JobRecord, attempts: Sequence[JournalEntry]) -> list[Any]:
    if record.state is JobState.SUCCEEDED and record.attempt <= 1:
        return []
    found = [error_of(_text_of(entry)) for entry in attempts if entry.event != JournalEvent.CANCELLED]
    if record.state is JobState.CANCELLED:
        text = record.last_error or "the job was cancelled"
        found.append(TaskError(exception_class_path="faultline.JobCancelled", traceback=text))
    elif record.state is JobState.FAILED and not found and record.last_error is not None:
        found.append(error_of(record.last_error))  # its journal was pruned
    return found


def _text_of(entry: JournalEntry) -> str:
    if entry.event == JournalEvent.LEASE_REAPED:
        return f"StaleLease: the worker was lost, or its lease expired ({entry.detail.get('reason', 'lease_expired')})"
    return str(entry.detail.get("error"))


def _path_of(kind: str) -> str | None:
    """Where a class of exceptions can be imported; None: it is none."""
    if "." in kind:
        return kind
    if kind == "TimedOut":
        return "builtins.TimeoutError"
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        return f"builtins.{kind}"
    return f"faultline.{kind}" if hasattr(errors, kind) else None
