"""Tasks that are written once and run as both kinds: as they are, and as `make generate` would have their blocking side."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, Faultline
from tools import blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline import Task

KINDS = pytest.mark.parametrize("kind", ["async", "blocking"])


def task_of(app: Faultline, kind: str, **options: Any) -> Callable[[Callable[..., Any]], Task[..., Any]]:
    """Register an async function as a task, or its blocking side."""

    def register(fn: Callable[..., Any]) -> Task[..., Any]:
        task: Task[..., Any] = app.task(**options)(fn if kind == "async" else _blocking_side(fn))
        assert task.is_async is (kind == "async")
        return task

    return register


def _blocking_side(fn: Callable[..., Any]) -> Callable[..., Any]:
    definition: Any = ast.parse(blocking.exchanged(textwrap.dedent(inspect.getsource(fn)))).body[0]
    definition.decorator_list = []
    module = ast.increment_lineno(ast.Module([definition], []), fn.__code__.co_firstlineno - 1)
    names = {**fn.__globals__, **inspect.getclosurevars(fn).nonlocals, "BlockingJob": BlockingJob}
    exec(compile(module, fn.__code__.co_filename, "exec"), names)  # noqa: S102 - what stands in the test, and nothing else
    made: Callable[..., Any] = names[fn.__name__]
    return made
