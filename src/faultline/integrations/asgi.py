"""Run Faultline inside a web application: FastAPI, Starlette, Litestar, or any other that has a lifespan.

web = FastAPI(lifespan=lifespan(queue, worker={"mail": 10}))
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, Unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from faultline.app.application import Faultline
    from faultline.core.settings import WorkerOptions

    Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class Closes(Protocol):
    """What a dashboard is to a lifespan."""

    async def aclose(self) -> None: ...


def lifespan(
    app: Faultline,
    *,
    worker: Mapping[str, int] | None = None,
    dashboard: Closes | None = None,
    inside: Lifespan | None = None,
    **options: Unpack[WorkerOptions],
) -> Lifespan:
    """The lifespan of a web application that enqueues: connections are closed when it stops.

    :param app: The application.
    :param worker: Run a worker in this process, for these queues, as `app.worker` does. It stops first, and finishes what
        runs. Default: none; jobs run in processes of their own.
    :param dashboard: A mounted `Dashboard`, to be closed as well.
    :param inside: Your own lifespan, which begins after it and ends before it. What it yields is passed on.
    :param options: Of the worker: see `WorkerOptions`.
    """

    @asynccontextmanager
    async def around(web: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            if dashboard is not None:
                stack.push_async_callback(dashboard.aclose)
            state = None if inside is None else await stack.enter_async_context(inside(web))
            if worker is not None:
                await stack.enter_async_context(app.worker(worker, **options))
            yield state

    return around
