"""What a flow needs of a task that it calls. `Task` implements it, so that a job does not import tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faultline.core.model import Json, Submission

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class CallableTask(Protocol[P, R_co]):
    """A task that can be called with these arguments and has this result."""

    @property
    def returns(self) -> Any: ...

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Submission: ...

    def read(self, result: Json) -> R_co: ...


class OneArgumentTask(Protocol[T_contra, R_co]):
    """A task that can be called with one argument."""

    @property
    def returns(self) -> Any: ...

    def bind(self, item: T_contra, /) -> Submission: ...

    def bind_each(self, items: Iterable[Any]) -> list[Submission]: ...

    def read(self, result: Json) -> R_co: ...
