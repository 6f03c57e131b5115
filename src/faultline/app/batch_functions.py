"""What makes a function of a list a task of one item: how its jobs are run together, and how its callers see it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.app.parameters import function_of
from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Batch:
    """How jobs of a task are run together."""

    fn: Callable[..., Any]
    is_async: bool
    takes_jobs: bool
    #: The name of the argument of which each job has one.
    parameter: str
    size: int
    wait_seconds: float


def parameters_of(fn: Callable[..., Any]) -> tuple[bool, inspect.Parameter]:
    shown = getattr(fn, "__qualname__", repr(fn))
    parameters = list(inspect.signature(fn).parameters.values())
    kinds = {one.kind for one in parameters} <= {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.POSITIONAL_ONLY,
    }
    if not kinds or len(parameters) not in (1, 2):
        raise ConfigError(
            f"a batch takes one list, or a list of jobs and one list; {shown}{inspect.signature(fn)} does not. For several"
            " values of one job, make them a dataclass"
        )
    return len(parameters) == 2, parameters[-1]  # noqa: PLR2004 - see above


def of_one(batch: Batch, parameter: inspect.Parameter) -> Callable[..., Any]:
    """The task as its callers see it: a function of one item. Called directly, it runs a batch of one."""
    fn, shown = batch.fn, getattr(batch.fn, "__qualname__", repr(batch.fn))
    try:
        hints = typing.get_type_hints(function_of(fn), include_extras=True)
    except NameError as error:
        raise ConfigError(f"batch {shown}: its annotations cannot be read when it is declared: {error}") from error
    item, returned = _item(hints.get(parameter.name, list[Any])), _item(hints.get("return", Any))
    if item is None:
        raise ConfigError(f"batch {shown}: {parameter.name} must be annotated as a list, such as list[str]")

    def call(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if batch.takes_jobs:
            raise ConfigError(f"batch {shown} takes its jobs, so it cannot be called without a worker")
        return fn([signature.bind(*given, **named).arguments[parameter.name]])

    async def one_async(*given: Any, **named: Any) -> Any:
        return _first(await call(given, named))

    def one(*given: Any, **named: Any) -> Any:
        return _first(call(given, named))

    face: Any = one_async if batch.is_async else one
    signature = inspect.Signature(
        [inspect.Parameter(parameter.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=item)],
        return_annotation=Any if returned is None else returned,
    )
    face.__signature__ = signature
    face.__annotations__ = {parameter.name: item, "return": Any if returned is None else returned}
    for word in ("__name__", "__qualname__", "__module__", "__doc__"):
        # An object and a partial have no name.
        setattr(face, word, getattr(fn, word, getattr(face, word)))
    return face  # type: ignore[no-any-return]


def _item(annotation: Any) -> Any:
    """What a list holds, by its annotation. None: not a list."""
    if annotation is Any or annotation in (list, tuple):
        return Any
    if annotation in (None, type(None)):
        return type(None)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    return parts[0] if origin in (list, Sequence) and parts else None


def _first(results: Any) -> Any:
    return None if results is None else results[0]
