"""The backend for `TASKS`. It enqueues through Django's own connection: a task and the rows it is about commit together."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.apps import apps
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.utils import timezone

from faultline.attempt.options import Options, check_queue
from faultline.core.bounds import TASK_LENGTH_MAX
from faultline.core.errors import JobRejected, OutcomeUnknown
from faultline.core.model import Submission
from faultline.integrations.django.applications import application, find, is_own
from faultline.integrations.django.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from faultline.integrations.django.results import result_of
from faultline.integrations.django.running import reads
from faultline.store import jsontext
from faultline.store.external_sessions import joined
from faultline.store.external_sessions.translation import as_psycopg
from faultline.store.translation import connection_was_lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_APP = "faultline.integrations.django"
#: What OPTIONS may say.
_OPTIONS = ("database", "max_attempts", "timeout")


class FaultlineBackend(BaseTaskBackend):
    """Runs Django's tasks with Faultline: each enqueued task is a job.

    OPTIONS: `database`, the alias of a PostgreSQL database, default `default`; `max_attempts`, after how many failed
    attempts a task has failed, default 5; `timeout`, how many seconds an attempt may take, default no limit.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.faultline_database = self.options.get("database", DEFAULT_DB_ALIAS)
        self.max_attempts = self.options.get("max_attempts")

    def validate_task(self, task: Any) -> None:
        """Refuse a task that no worker could run. Called when the task is declared, and when it is enqueued.

        :param task: Django's task.
        """
        super().validate_task(task)
        name, module = task.func.__qualname__, task.func.__module__
        if "." in name:
            raise InvalidTask(
                f"Task function must be defined at a module level: {name} is a method of a class, which a worker cannot "
                f"import. Define a function in {module} that calls it, and pass what identifies the object."
            )
        if name == "<lambda>" or module == "__main__":
            raise InvalidTask(
                f"Task function must be defined at a module level, in a module that a worker can import: {module}.{name} "
                "cannot be imported."
            )
        if len(task.module_path) > TASK_LENGTH_MAX:
            raise InvalidTask(f"The path of the task is longer than {TASK_LENGTH_MAX} characters: {task.module_path}")
        try:
            check_queue(task.queue_name)
        except JobRejected as error:
            raise InvalidTask(f"Queue {task.queue_name!r} is not valid for backend: {error}") from error

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a job in Django's transaction. Called by `task.enqueue`.

        :param task: Django's task.
        :param args: Positional arguments of its function, without the context.
        :param kwargs: Named arguments of its function.
        """
        self.validate_task(task)
        _refuse_unfound(task)
        submission = self._submission(task, args, kwargs)
        with self._all_or_nothing():
            [handle] = application(self.faultline_database).using(self._connection).enqueue_many([submission])
            result = self._found(handle.id, task)
            task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result of a task, whoever enqueued it. It sees what Django's transaction sees.

        :param result_id: The id of the job.
        """
        try:
            job_id = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        return self._found(job_id, None)

    def check(self, **_: Any) -> Iterable[Any]:
        """Django's system checks: what is wrong with TASKS, before a task is enqueued."""
        where, database = f"TASKS[{self.alias!r}]", self.faultline_database
        unknown = sorted(set(self.options) - set(_OPTIONS))
        if unknown:
            hint = f"The options are {', '.join(_OPTIONS)}."
            yield checks.Error(f"{where} has unknown OPTIONS: {', '.join(unknown)}.", hint, id="faultline.E001")
        try:
            Options(max_attempts=self.max_attempts, delay=self.options.get("timeout"))
            for name in self.queues:
                check_queue(name)
        except JobRejected as error:
            yield checks.Error(f"{where} is not valid: {error}".replace("delay", "timeout"), id="faultline.E002")
        if database not in connections:
            hint = f"The databases are {', '.join(connections)}."
            yield checks.Error(f"{where} names the database {database!r}, which DATABASES lacks.", hint, id="faultline.E003")
        elif connections[database].vendor != "postgresql":
            vendor, hint = connections[database].vendor, 'Name a PostgreSQL database with OPTIONS = {"database": …}.'
            wrong = f"{where} uses the database {database!r}, which is {vendor}; Faultline needs PostgreSQL."
            yield checks.Error(wrong, hint, id="faultline.E004")
        if not apps.is_installed(_APP):
            hint = f"Add {_APP!r} to INSTALLED_APPS."
            yield checks.Error(
                f"{where} is Faultline's, but without its app nothing installs its schema.", hint, id="faultline.E005"
            )

    @property
    def _connection(self) -> Any:
        return connections[self.faultline_database]

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A transaction, unless one is open: whatever raises in it, a receiver say, there is no job that its caller does not
        know of.
        """
        if not self._connection.get_autocommit():
            yield
            return
        ends = False
        try:
            with transaction.atomic(using=self.faultline_database):
                yield
                ends = True
        except Error as error:
            if ends and connection_was_lost(as_psycopg(error)):
                raise OutcomeUnknown("the answer to the commit was lost: the task is enqueued, or it is not") from error
            raise

    def _submission(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Submission:
        path = task.module_path
        try:
            inspect.signature(task.func).bind(*([None] if task.takes_context else []), *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{path}: {error}") from None
        given: dict[str, Any] = {"args": normalize_json(args), "kwargs": normalize_json(kwargs)}
        if self.alias != DEFAULT_TASK_BACKEND_ALIAS:
            given["backend"] = self.alias
        run_at = task.run_after
        if run_at is not None:
            run_at = run_at if timezone.is_aware(run_at) else timezone.make_aware(run_at, timezone.get_default_timezone())
            given["run_after"] = run_at.isoformat()
        options = Options(queue=task.queue_name, priority=-task.priority, run_at=run_at, max_attempts=self.max_attempts)
        return Submission(path, jsontext.encode_args(given, f"the arguments of {path}"), **options.submitted())

    def _found(self, job_id: UUID, task: Any) -> Any:
        connection = joined(self._connection)
        record, *journal = [connection.run(one) for one in reads(job_id, 1 if task is not None else None)]
        if record is None:
            raise TaskResultDoesNotExist(str(job_id))
        known = task if task is not None else find(record.task)
        if known is None:
            raise TaskResultDoesNotExist(f"{job_id}: it is a job of {record.task}, which this project does not have")
        return result_of(record, journal[0] if journal else [], known)


def _refuse_unfound(task: Any) -> None:
    """Refuse a task that a worker would not find by its path: its job would wait forever."""
    found = find(task.module_path)
    if found is not None and found.func is task.func:
        return
    advice = (
        f"{task.func.__module__}.{task.func.__qualname__} is something else: let the task have the name of its function"
        if is_own(task.module_path)
        else "its package is neither that of an installed app nor that of the settings: add it to INSTALLED_APPS"
    )
    raise InvalidTask(f"No worker would find the task {task.module_path}: {advice}.")
