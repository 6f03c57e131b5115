"""What the fixture `faultline` of the pytest plugin is: one application, on a database of the test's own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

from faultline.core.model import JobState
from faultline.store.testing import FrozenTime
from faultline.testing.databases import on_database
from faultline.testing.jobs import assert_enqueued, enqueued
from faultline.testing.running import TIMEOUT_SECONDS, Drained, adrain, drain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.app.application import Faultline
    from faultline.app.tasks import Task
    from faultline.core.model import JobRecord


class JobsUnderTest:
    """An application in a test: run its jobs, look at them, move its time.

    :param app: The application. It uses the test's database until the test ends.
    :param dsn: The test's database.
    """

    def __init__(self, app: Faultline, dsn: str) -> None:
        self.app = app
        self.dsn = dsn
        self._stack = contextlib.ExitStack()
        self._time: FrozenTime | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(on_database(self.app, self.dsn))
        wanted = self.app.subscriptions()
        if wanted:
            # As a worker does when it starts: what the test publishes gets its jobs.
            self.app.database.run_all(wanted)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def time(self) -> FrozenTime:
        """The database's time. It stands still from the first use on, and moves by `time.advance(60)`."""
        if self._time is None:
            self._time = self._stack.enter_context(contextlib.closing(FrozenTime(self.dsn)))
        return self._time

    @property
    def jobs(self) -> list[JobRecord]:
        """All jobs that were enqueued in this test, oldest first, in every state."""
        return enqueued(self.app, state=None)

    def drain(
        self, queue: str | None = None, *, concurrency: int = 1, advancing: bool = False, timeout: float = TIMEOUT_SECONDS
    ) -> Drained:
        """Run all due jobs, and the jobs that these enqueue, until none is due: see `faultline.testing.drain`.

        :param queue: Only this queue. Default: all.
        :param concurrency: How many jobs of a queue run at once.
        :param advancing: Whether time moves on to the next due job, until no job is queued.
        :param timeout: After how many seconds to give up.
        """
        time = self.time if advancing else None
        return drain(self.app, queue, concurrency=concurrency, advancing=time, timeout=timeout)

    async def adrain(
        self,
        queue: str | None = None,
        *,
        concurrency: int = 1,
        advancing: bool = False,
        timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - the twin of drain()
    ) -> Drained:
        """`drain` for async tests."""
        time = self.time if advancing else None
        return await adrain(self.app, queue, concurrency=concurrency, advancing=time, timeout=timeout)

    def enqueued(
        self, task: Task[..., Any] | str | None = None, *, args: Mapping[str, Any] | None = None, queue: str | None = None
    ) -> list[JobRecord]:
        """The queued jobs that match: see `faultline.testing.enqueued`.

        :param task: Of this task. Default: of any.
        :param args: With these arguments, and perhaps others.
        :param queue: In this queue.
        """
        return enqueued(self.app, task, args=args, queue=queue)

    def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        queue: str | None = None,
        count: int | None = None,
    ) -> list[JobRecord]:
        """Fail unless such a job is queued, and show which are: see `faultline.testing.assert_enqueued`.

        :param task: Of this task.
        :param args: With these arguments, and perhaps others.
        :param queue: In this queue.
        :param count: Exactly so many. Default: at least one.
        """
        return assert_enqueued(self.app, task, args=args, queue=queue, count=count, state=JobState.QUEUED)
