"""Log an operation when its answer is read: then it was done, whether a blocking or an async database ran it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.events import EventField
    from faultline.store.statement import Rows, Statement

T = TypeVar("T")


def logged(
    statement: Statement[T], event: str, *, done: Callable[[T], bool] = lambda _: True, **fields: EventField
) -> Statement[T]:
    """`done`: whether the answer means that something was done."""

    def read(rows: Rows) -> T:
        answer = statement.read(rows)
        if done(answer):
            events.emit(event, level=None, **fields)
        return answer

    return replace(statement, read=read)
