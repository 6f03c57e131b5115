"""The metrics of this server and of the whole database, for Prometheus."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from faultline.integrations.prometheus import Board, Exposition, serve
from faultline.integrations.prometheus.exposition import QUEUES_MAX
from faultline.store.database import Database
from faultline.worker.base.counters import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faultline.worker.base.counters import Report


#: Prometheus waits 10 seconds at most.
_LOOK_SECONDS = 8.0
#: An unreachable database is reported sooner.
_CONNECT_SECONDS = 3.0


class Numbers:
    """`address`: host and port to serve them without keys, for a network that only Prometheus can reach."""

    def __init__(self, address: tuple[str, int] | None = None) -> None:
        self._address = address
        #: Jobs that were enqueued here, by queue.
        self._enqueued: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()
        self._exposition: Exposition | None = None

    def enqueued(self, queues: Iterable[str]) -> None:
        """One job in each of these. Callers choose the names, so after so many the others are counted together."""
        for queue in queues:
            self._enqueued[queue if queue in self._enqueued or len(self._enqueued) < QUEUES_MAX else "other"] += 1

    def open(self, dsn: str, audit_dsn: str) -> None:
        """Start reading the database. `audit_dsn` has a longer timeout, to read every job."""
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
        """The response to a scrape. It may wait for the database."""
        return b"" if self._exposition is None else self._exposition.render()

    def _report(self) -> Report:
        return {**NOTHING, "enqueued": dict(self._enqueued)}
