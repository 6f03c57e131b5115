"""Faults told in words: `POINT=ACTION`, for example `after_complete_committed=kill` or `before_claim_sent=barrier:go`.

Each takes effect the first time its point is reached (`@3`: the third time) and says so before it does anything else: a
drill whose fault never bit has shown nothing.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from faultline.core import events
from faultline.core.errors import ConfigError
from faultline.core.faults import Faults, WireCut, check_point

if TYPE_CHECKING:
    from collections.abc import Iterable

ACTIONS = ("kill", "stop", "cut", "pause:SECONDS", "barrier:NAME")


@dataclass(slots=True)
class Fault:
    point: str
    action: str
    word: str
    #: How often the point is still to be reached before it happens.
    in_visits: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        point, _, what = text.partition("=")
        what, _, visit = what.partition("@")
        action, _, word = what.partition(":")
        if action not in [known.partition(":")[0] for known in ACTIONS]:
            raise ConfigError(f"there is no fault {action} in {text}; write POINT=ACTION with one of {', '.join(ACTIONS)}")
        return cls(check_point(point), action, word, int(visit or 1))


class Scripted(Faults):
    """The faults of one process, each once."""

    wanted = True

    def __init__(self, faults: Iterable[str], dsn: str) -> None:
        self._faults = [Fault.parse(text) for text in faults]
        self._dsn = dsn

    def reach(self, point: str) -> None:
        for fault in self._faults:
            if fault.point == point:
                fault.in_visits -= 1
                if fault.in_visits == 0:
                    self._happen(fault)

    def _happen(self, fault: Fault) -> None:
        events.emit("fault_took_effect", point=fault.point, action=fault.action)
        match fault.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "cut":
                raise WireCut(fault.point)
            case "pause":
                time.sleep(float(fault.word))
            case "barrier":
                wait_at(self._dsn, fault.word)


def wait_at(dsn: str, barrier: str) -> None:
    """Wait, in the database, until the drill opens a barrier."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock_shared(hashtext(%s))", (barrier,))
