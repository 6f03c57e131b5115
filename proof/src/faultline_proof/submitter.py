"""A client that submits jobs all the time and remembers what it was told: an acknowledged job must not be lost."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Self

from faultline.app.application import Faultline
from faultline.core.errors import DatabaseUnavailable, OutcomeUnknown
from faultline.core.model import Submission

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.host import Host

#: The task, async and blocking.
CREDITS = ("credit", "credit_in_thread")
_JOBS_AT_ONCE = 5
_PAUSE_SECONDS = 0.01


class Submitter:
    """`with` submits jobs of the task `credit`, each for an account of its own, until the block is left.

    Every other one is blocking: what spoils the worker's sessions must harm neither kind.
    """

    def __init__(self, dsn: str, host: Host) -> None:
        self._dsn = dsn
        self._host = host
        #: In the order in which they were acknowledged. Only ever appended to.
        self.acknowledged: list[UUID] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        accounts = itertools.count(1)
        with Faultline(self._dsn, host=self._host) as client:
            # The pause sets the pace; nothing depends on it.
            while not self._stop.wait(_PAUSE_SECONDS):
                jobs = [self._job(next(accounts)) for _ in range(_JOBS_AT_ONCE)]
                try:
                    self.acknowledged += [handle.id for handle in client.enqueue_many(jobs)]
                except (DatabaseUnavailable, OutcomeUnknown):
                    continue  # not acknowledged: they may be in or not, and nobody relies on it

    def _job(self, account: int) -> Submission:
        # Attempts that a drill spoils do not count against the job.
        return Submission(CREDITS[account % 2], f'{{"account": {account}}}', max_attempts=100)
