"""What this worker did, in numbers that only grow. Counting one job takes less than a microsecond and needs no lock.

Only the event loop writes most numbers; those that several threads write have a lock. Once a second the heartbeat stores
what has changed. A row of `tallies` holds what was counted since its minute began. The next minute begins only when that row
is known to be stored: so after a lost answer the row is simply sent again.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

from faultline.core.histogram import BOUNDS
from faultline.core.measures import COUNTS, Counted
from faultline.core.model import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from faultline.core.model import Lease

_lock = threading.Lock()
_UNCOUNTED_MAX = 10_000

#: The columns of `tallies`.
NUMBERS = (*COUNTS, "wait_seconds_sum", "run_seconds_sum")

#: All that the database can refuse, and why. Only a fence is refused because the lease expired.
REFUSALS = tuple(
    (verb, reason.value)
    for verb in (
        "record_start",
        "renew",
        "step",
        "progress",
        "take_budget",
        "fence",
        "complete",
        "fail",
        "release",
        "suspend",
        "continue_as_new",
        "record",
        "stream",
    )
    for reason in (Reason.TOKEN_MISMATCH, Reason.LEASE_LOST, Reason.NOT_RUNNING, Reason.LEASE_EXPIRED)
    if verb == "fence" or reason is not Reason.LEASE_EXPIRED
)


class Counts(Counted):
    """The counts of one queue since this process began."""

    __slots__ = (
        "_owner", "acquired", "queue", "ran", "run_seconds_sum", "runs", "wait_seconds_sum", "waited", "waits",
    )  # fmt: skip

    def __init__(self, owner: Tally, queue: str = "") -> None:
        super().__init__()
        self._owner = owner
        self.queue = queue
        self.acquired = 0
        self.wait_seconds_sum = self.run_seconds_sum = 0.0
        self.waits = [0] * (len(BOUNDS) + 1)
        self.runs = [0] * (len(BOUNDS) + 1)
        #: Seconds that are not in the histograms yet: counting many together costs a fifth.
        self.waited: list[float] = []
        self.ran: list[float] = []

    def claimed(self, leases: Sequence[Lease]) -> None:
        """Count claimed jobs. They have waited since they were due, by the database's clock."""
        # Subtract times: converting each to seconds since 1970 first takes three times as long.
        now = datetime.fromtimestamp(self._owner.database_seconds(), UTC)
        self.waited += [(now - lease.next_run_at).total_seconds() for lease in leases]
        self.acquired += len(leases)
        if len(self.waited) > _UNCOUNTED_MAX:
            self.count_seconds()

    def count_seconds(self) -> None:
        """Put the seconds into the histograms. From any thread."""
        with _lock:
            self.wait_seconds_sum += _count_seconds(self.waited, self.waits)
            self.run_seconds_sum += _count_seconds(self.ran, self.runs)

    def refuse(self, verb: str, reason: str) -> None:
        """Count a write that the database refused. From any thread."""
        with _lock:
            self.refused += 1
            self._owner.refusals[verb, reason] += 1

    def interrupted(self) -> None:
        self._owner.database_failed()

    def copy(self) -> dict[str, Any]:
        self.count_seconds()
        return {name: getattr(self, name) for name in NUMBERS} | {"waits": list(self.waits), "runs": list(self.runs)}


def _count_seconds(seconds: list[float], counts: list[int]) -> float:
    """Move seconds into the counts of a histogram and return their sum. More may be appended meanwhile."""
    values = sorted(seconds)
    del seconds[: len(values)]
    counted = 0
    for position, bound in enumerate(BOUNDS):
        if counted == len(values):
            break
        up_to = bisect_right(values, bound, counted)
        counts[position] += up_to - counted
        counted = up_to
    counts[-1] += len(values) - counted
    # A clock error may make some negative: the sum must not shrink.
    return sum(values[bisect_right(values, 0.0) :])


class _Reported:
    """What the database has of one queue: the row that is being written, and the counts before it."""

    __slots__ = ("before", "minute", "sent", "stored")

    def __init__(self, nothing: dict[str, Any]) -> None:
        self.minute = -1
        #: All counts before the row's minute, all that are surely stored, and all that were sent last.
        self.before = self.stored = self.sent = nothing


class Report(TypedDict):
    """All numbers of one process, as JSON. All but the last two only grow."""

    queues: dict[str, dict[str, Any]]
    enqueued: dict[str, int]
    #: verb, reason, how often
    refusals: list[list[Any]]
    #: Reaped leases, by reason.
    reaped: dict[str, int]
    renewed: int
    database_errors: int
    reconnects: int
    leases: int
    processes: int


NOTHING: Report = {
    "queues": {}, "enqueued": {}, "refusals": [], "reaped": {}, "renewed": 0, "database_errors": 0, "reconnects": 0,
    "leases": 0, "processes": 0,
}  # fmt: skip


class Tally:
    """The numbers of one worker process."""

    def __init__(self, monotonic: Callable[[], float], queues: Iterable[str] = ()) -> None:
        self._monotonic = monotonic
        self._offset = 0.0
        self.queues: dict[str, Counts] = {name: Counts(self, name) for name in queues}
        self._reported: dict[str, _Reported] = {}
        self._nothing = Counts(self).copy()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.reaped: Counter[str] = Counter()
        self.renewed = 0
        self.database_errors = 0

    def of(self, queue: str) -> Counts:
        return self.queues.setdefault(queue, Counts(self, queue))

    def database_failed(self) -> None:
        with _lock:
            self.database_errors += 1

    def set_clock(self, database: datetime, at: float) -> None:
        """The database's clock showed this when the steady clock showed `at`."""
        self._offset = database.timestamp() - at

    def database_seconds(self) -> float:
        return self._monotonic() + self._offset

    def changed(self) -> list[dict[str, Any]]:
        """The rows that the database lacks. Send them, then call `stored`."""
        minute = int(self.database_seconds()) // 60 * 60
        rows = []
        for name, counts in list(self.queues.items()):
            row = self._reported.setdefault(name, _Reported(self._nothing))
            now = counts.copy()
            if now == row.stored:
                continue
            if row.sent is row.stored and row.minute != minute:
                row.minute, row.before = minute, row.stored
            row.sent = now
            rows.append({"queue": name, "minute": _text_of(row.minute), **_difference(now, row.before)})
        return rows

    def stored(self) -> None:
        """The rows that were sent last are stored."""
        for row in self._reported.values():
            row.stored = row.sent

    def report(self, *, enqueued: dict[str, int], reconnects: int, leases: int) -> Report:
        with _lock:
            refusals = [[verb, reason, times] for (verb, reason), times in self.refusals.items()]
        return {
            "queues": {name: {**c.copy(), "acquired": c.acquired} for name, c in list(self.queues.items())},
            "enqueued": dict(enqueued),
            "refusals": refusals,
            "reaped": dict(self.reaped),
            "renewed": self.renewed,
            "database_errors": self.database_errors,
            "reconnects": reconnects,
            "leases": leases,
            "processes": 1,
        }


_SINGLES = ("renewed", "database_errors", "reconnects", "leases", "processes")


def summed(reports: Iterable[Report]) -> Report:
    """Add up the numbers of several processes."""
    queues: dict[str, dict[str, Any]] = {}
    enqueued: Counter[str] = Counter()
    refusals: Counter[tuple[str, str]] = Counter()
    reaped: Counter[str] = Counter()
    singles: Counter[str] = Counter()
    for report in reports:
        for name, counts in report["queues"].items():
            queues[name] = _sum(queues[name], counts) if name in queues else counts
        enqueued.update(report["enqueued"])
        refusals.update({(verb, reason): times for verb, reason, times in report["refusals"]})
        reaped.update(report["reaped"])
        singles.update({name: report[name] for name in _SINGLES})  # type: ignore[literal-required]
    return {
        "queues": queues,
        "enqueued": dict(enqueued),
        "refusals": [[verb, reason, times] for (verb, reason), times in refusals.items()],
        "reaped": dict(reaped),
        "renewed": singles["renewed"],
        "database_errors": singles["database_errors"],
        "reconnects": singles["reconnects"],
        "leases": singles["leases"],
        "processes": singles["processes"],
    }


def _sum(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [x + y for x, y in zip(value, b[name], strict=True)] if isinstance(value, list) else value + b[name]
        for name, value in a.items()
    }


def _difference(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [x - y for x, y in zip(value, before[name], strict=True)] if isinstance(value, list) else value - before[name]
        for name, value in now.items()
    }


def _text_of(minute: int) -> str:
    return datetime.fromtimestamp(minute, UTC).isoformat()
