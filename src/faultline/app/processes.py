"""Tasks that run in processes of their own: `@app.task(executor="process")`. What cannot run there is refused early."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from faultline.core.errors import ConfigError
from faultline.core.settings import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


#: This is a process that runs tasks for a worker.
is_inside = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """How a task runs in processes of its own: `@app.task(executor=Processes(max_jobs=100))`. `"process"`: without limits.

    :param max_jobs: A process is replaced after so many jobs. Default: never.
    :param max_memory: A process is replaced after a job if it then uses more than so many MiB. Default: never.
    """

    max_jobs: int | None = None
    max_memory: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_jobs", "max_memory"):
            if getattr(self, name) is not None:
                whole(f"{name} of Processes", getattr(self, name))


class Runs(Protocol):
    """What is to be known of a task."""

    name: str
    fn: Callable[..., Any]
    processes: Processes | None


def processes_of(executor: Processes | str | None, name: str) -> Processes | None:
    """What `executor=` says. None: the task runs on the event loop or in a thread."""
    if executor is None or isinstance(executor, Processes):
        return executor
    if executor == "process":
        return Processes()
    raise ConfigError(f'task {name}: executor must be "process" or Processes(...), not {executor!r}')


def check_function(fn: Callable[..., Any], name: str, *, is_async: bool, takes_job: bool) -> None:
    """A process is given the name of the function and its arguments, and returns its result. Nothing else crosses over."""
    if is_async:
        raise ConfigError(f"task {name}: a process runs a plain function; write `def`, or leave out executor=")
    if takes_job:
        raise ConfigError(
            f"task {name}: a process cannot be given the job, whose lease, steps and transactions stay with the worker."
            " Take arguments and return a result; call it from a flow (job.call) for steps around it. current_job() says"
            " which job it is"
        )
    path = getattr(fn, "__qualname__", "<")
    if "<" in path or not getattr(fn, "__module__", None):
        raise ConfigError(f"task {name}: a process imports its function by name; define it at the top level of a module")


def check_tasks(tasks: Iterable[Runs], *, wrapped: bool) -> None:
    """When a worker starts: each function is found where a process will look for it. `wrapped`: by blocking middleware."""
    for task in tasks:
        if task.processes is None:
            continue
        module, path = task.fn.__module__, task.fn.__qualname__
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            found = getattr(found, part, None)
        is_task = getattr(found, "processes", None) is task.processes and found.name == task.name
        if not is_task and (found is not task.fn or wrapped):
            raise ConfigError(
                f"task {task.name}: a process would import {path} from {module}, which is not this task; decorate the"
                " function with @app.task where it is defined"
            )
