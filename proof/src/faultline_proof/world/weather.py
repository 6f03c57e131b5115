"""What the network and the machine do to one host, and the record of every statement that it sent."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_VERB = re.compile(rb"faultline\.(\w+)|(begin|commit|rollback|insert)")
#: Where the code lies, and on which line, is no part of a history.
_FRAMES = re.compile(r"""\\n  File (?:[^"\\]|\\.)*""")
#: What makes a history. Signs of life and questions are left out: they hold process ids, and change nothing.
_VERBS = frozenset(
    {
        "enqueue_many", "enqueue_one",
        "claim", "renew", "record_start", "complete", "fail", "release", "fence", "record_refusal", "step",
        "recall", "progress", "reap", "cancel", "retry", "reconcile", "jobs", "begin", "commit", "rollback", "insert",
        "suspend", "record", "spawn", "receive", "collect_outcomes", "watch", "signal", "continue_as_new", "declare_queue",
        "declare_schedules", "tick_many", "declare_budget", "set_budget", "take_budget",
    }
)  # fmt: skip
#: What comes over the connections of the worker's own work, apart from its heartbeat's and its jobs'.
_WORK = frozenset({"claim", "complete", "reap", "first_expired"})


@dataclass(slots=True)
class Line:
    """One statement as the database saw it, and whether its sender learned of it."""

    at: float
    host: str
    verb: str
    params: tuple[Any, ...]
    outcome: str
    rows: list[Any]
    #: Which connection it came by.
    link: int = 0
    sql: str = ""

    @property
    def took_effect(self) -> bool:
        return self.outcome in ("ok", "unheard")

    def __str__(self) -> str:
        shown = _FRAMES.sub("", " ".join(str(value) for value in self.params if not isinstance(value, list)))[:160]
        # Sorted: which row of an answer comes first depends on where it lies, and that on what else the server does.
        rows = "; ".join(sorted(",".join(str(value) for value in row) for row in self.rows))[:400]
        return f"{self.at:9.3f} {self.host:8} {self.verb:13} {self.outcome:8} {shown} -> {rows}"


class Record:
    """Everything that reached the database, in order, with what happened to the world itself."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.lines: list[Line] = []
        #: When the server answered each host's own work.
        self.answered_at: defaultdict[str, list[float]] = defaultdict(list)

    def note(self, host: str, what: str, detail: str = "") -> None:
        self.lines.append(Line(self.now(), host, what, (detail,), "", []))


class _Sent:
    """A statement on its way. What is not for the history (a poll that found nothing) is not written down."""

    __slots__ = ("_host", "_link", "_params", "_record", "_sql", "_verb")

    def __init__(self, record: Record, host: str, verb: str, sql: str, params: Any, link: int) -> None:
        self._record = record
        self._host = host
        self._verb = verb
        self._params = tuple(params or ())
        self._link = link
        self._sql = sql

    def answered(self, rows: list[Any]) -> None:
        if self._verb in _WORK:
            self._record.answered_at[self._host].append(self._record.now())
        if rows or self._verb not in ("claim", "reap"):
            self._write("ok", rows)

    def lost(self, rows: list[Any]) -> None:
        self._write("unheard", rows)

    def failed(self, error: Exception) -> None:
        self._write("failed", [(type(error).__name__,)])

    def waits(self) -> None:
        """It will be sent again once a lock may be free; nothing of its transaction is undone."""
        self._write("waits", [])

    def unknown(self) -> None:
        self._write("cut", [])

    def _write(self, outcome: str, rows: list[Any]) -> None:
        record = self._record
        if self._verb not in _VERBS:
            return
        if self._verb == "fence":
            rows = []  # the number of a transaction, which differs from run to run
        line = Line(record.now(), self._host, self._verb, self._params, outcome, rows, self._link, self._sql)
        record.lines.append(line)


class Weather:
    """The conditions of one host. `calm` ends all bad luck."""

    def __init__(self, host: str, chance: random.Random, record: Record) -> None:
        self.host = host
        self._chance = chance
        self._record = record
        self.reachable = True
        self.slow = False
        self.calm = False
        self.losses = 0
        #: This host reaches the server itself, so it can listen for hints.
        self.listens = chance.random() < 0.5  # noqa: PLR2004 - a coin

    def travel_seconds(self) -> float:
        if self.calm:
            return 0.001
        return self._chance.expovariate(0.5 if self.slow else 50)

    def loses_request(self) -> bool:
        return self._lost(0.0125)

    def loses_answer(self) -> bool:
        return self._lost(0.019)

    def sent(self, sql: bytes, params: Any, link: int) -> _Sent:
        found = _VERB.search(sql)
        verb = (found.group(1) or found.group(2)).decode() if found else ""
        return _Sent(self._record, self.host, verb, sql.decode(), params, link)

    def _lost(self, share: float) -> bool:
        lost = not self.calm and self._chance.random() < share
        self.losses += lost
        return lost
