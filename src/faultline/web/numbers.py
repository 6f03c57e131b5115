"""What this server counts, and how the whole database is doing, as Prometheus is told of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from faultline.integrations.prometheus import Board, Exposition, serve
from faultline.integrations.prometheus.exposition import QUEUES_MAX
from faultline.store.database import Database
from faultline.worker.tally import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faultline.worker.tally import Report


#: Whoever scrapes waits no longer than 10 seconds.
_LOOK_SECONDS = 8.0
#: A database that cannot be reached is told of sooner.
_CONNECT_SECONDS = 3.0


class Numbers:
    """`address` is an address and a port where they are served without keys: for a network that only Prometheus reaches."""

    def __init__(self, address: tuple[str, int] | None = None) -> None:
        self._address = address
        #: Jobs that were submitted here, by queue.
        self._enqueued: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()
        self._exposition: Exposition | None = None

    def enqueued(self, queues: Iterable[str]) -> None:
        """One job in each. Names are the callers' to choose: after so many, the others are counted together."""
        for queue in queues:
            self._enqueued[queue if queue in self._enqueued or len(self._enqueued) < QUEUES_MAX else "other"] += 1

    def open(self, dsn: str, audit_dsn: str) -> None:
        """Begin to look at the database. `audit_dsn` leaves the time that looking at every job takes."""
        database, audit = Database(dsn, timeout=_LOOK_SECONDS, connect_seconds=_CONNECT_SECONDS), Database(audit_dsn)
        self._stack.callback(database.close)
        self._stack.callback(audit.close)
        board = Board(database, audit)
        self._exposition = Exposition(self._report, board)
        if self._address is not None:
            self._stack.enter_context(serve(self._exposition, *self._address))
        board.start()
        self._stack.callback(board.close)

    def close(self) -> None:
        self._stack.close()

    def render(self) -> bytes:
        """The answer to a scrape. It may have to wait for the database."""
        return b"" if self._exposition is None else self._exposition.render()

    def _report(self) -> Report:
        return {**NOTHING, "enqueued": dict(self._enqueued)}
