"""Run a worker inside this process for as long as a story takes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from faultline.core.faults import Faults

if TYPE_CHECKING:
    import io
    from collections.abc import Awaitable, Callable

    from faultline import Faultline, JobHandle

PATIENCE = 90.0  # only what hangs takes as long: a busy machine may take half a minute for what is a second elsewhere


class InFlight(Faults):
    """Does something when the server has committed a statement and its answer is not read yet."""

    wanted = True

    def __init__(self, statement: str) -> None:
        self._point = f"after_{statement}_committed"
        self.then: Callable[[], None] = lambda: None

    def reach(self, point: str) -> None:
        if point == self._point:
            self.then()


class Moved(asyncio.SelectorEventLoop):
    """A loop whose clock stands still until it is put forward: how busy the machine is makes no difference."""

    moved = 0.0

    def time(self) -> float:
        return 1000.0 + self.moved


def work(app: Faultline, story: Callable[[], Awaitable[Any]], queues: dict[str, int] | None = None, **words: Any) -> Any:
    """Run a worker for as long as the story takes."""

    async def main() -> Any:
        async with asyncio.timeout(PATIENCE), app.worker(queues or {"default": 20}, **words):
            try:
                return await story()
            finally:
                await app.async_database.close()

    return asyncio.run(main())


def results(app: Faultline, handles: list[JobHandle[Any]], **words: Any) -> list[Any]:
    """The result or the error of every job."""

    async def story() -> list[Any]:
        return await asyncio.gather(*(handle.aresult(PATIENCE) for handle in handles), return_exceptions=True)

    return list(work(app, story, **words))


def logged(log: io.StringIO, event: str) -> list[dict[str, Any]]:
    """The lines about this event in a log."""
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == event]
