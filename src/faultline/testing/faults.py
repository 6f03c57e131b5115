"""Faults at one point each: `Faultline(dsn, host=Host(faults=CutAt("after_claim_committed")))`."""

from __future__ import annotations

import os
import signal
import threading

from faultline.core.errors import ConfigError
from faultline.core.faults import Faults, WireCut, check_point


class _At(Faults):
    """Acts once, at the given visit of a point."""

    wanted = True

    def __init__(self, point: str, *, visit: int = 1) -> None:
        if visit < 1:
            raise ConfigError(f"visits of {point} are counted from 1, not {visit}")
        self.point = check_point(point)
        #: Whether it has happened.
        self.happened = False
        self._visits_left = visit
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        if point != self.point:
            return
        with self._lock:
            self._visits_left -= 1
            now = self._visits_left == 0
        if now:
            self.happened = True
            self._happen()

    def _happen(self) -> None:
        raise NotImplementedError


class CrashAt(_At):
    """Kills this very process, as `kill -9` does: nothing is cleaned up. Only for a process that a test has started."""

    def _happen(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class CutAt(_At):
    """Cuts the connection that is being used. A point behind a statement means: it is committed, but the answer is lost."""

    def _happen(self) -> None:
        raise WireCut(self.point)
