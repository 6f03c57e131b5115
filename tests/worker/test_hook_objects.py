"""A hook may be an object, or a function around another: whether it is async is known all the same."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ConfigError
from tests.worker.working import results

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from faultline import Faultline


class Around:
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, job: Any, call: Callable[[], Any]) -> Any:
        self.seen.append(job.task)
        return await call()


class Watch:
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, job: Any) -> None:
        self.seen.append(job.task)


def counted(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return fn(*args)

    return call


def test_async_objects_and_wrapped_functions_are_awaited(app: Faultline, log: io.StringIO) -> None:
    around, watch = Around(), Watch()
    wrapped: list[str] = []
    app.middleware(around)
    app.on_success(watch)

    @app.on_success
    @counted
    async def note(job: Any) -> None:
        wrapped.append(job.task)

    @app.task
    async def ship() -> int:
        return 1

    @app.task
    def pack() -> int:
        return 2

    assert results(app, [ship.enqueue(), pack.enqueue()]) == [1, 2]

    assert sorted(around.seen) == sorted(watch.seen) == sorted(wrapped) == ["pack", "ship"]
    assert "hook_failed" not in log.getvalue()


def test_a_plain_observer_that_returns_a_coroutine_is_told(app: Faultline, log: io.StringIO) -> None:
    app.on_success(lambda _: asyncio.sleep(0))

    @app.task
    async def ship() -> int:
        return 1

    assert results(app, [ship.enqueue()]) == [1]

    assert "it returned a coroutine that nothing awaits; make it `async def`" in log.getvalue()


def test_an_async_object_cannot_observe_what_is_enqueued(app: Faultline) -> None:
    with pytest.raises(ConfigError, match="cannot await it; make it `def`"):
        app.on_enqueue(Around())  # type: ignore[type-var]
