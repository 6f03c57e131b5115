"""Fault points: named lines where a drill can crash, pause or cut the connection. In production they do nothing."""

from __future__ import annotations

from faultline.core.errors import ConfigError

#: Every statement has two: before it is sent, and after the server has committed it but before the client has noticed.
#: `commit` is that of the job's own transaction.
_SENT = (
    "enqueue", "claim", "record_start", "recall", "step", "progress", "fence", "commit", "complete", "fail", "release",
    "renew", "heartbeat", "reap",
)  # fmt: skip
#: Those that are sent for jobs of flows, and by every worker for all of them.
_SENT_FOR_FLOWS = (
    "history", "record", "spawn", "collect_outcomes", "receive", "first_over", "watch", "outcomes", "signal", "suspend",
    "resolve",
    "sweep", "continue_as_new", "program_changed", "stream",
)  # fmt: skip
FLOW_POINTS = tuple(point for verb in _SENT_FOR_FLOWS for point in (f"before_{verb}_sent", f"after_{verb}_committed"))
#: A decision about ticks of a schedule.
SCHEDULE_POINTS = ("before_tick_many_sent", "after_tick_many_committed")
POINTS = (
    *(f"before_{verb}_sent" for verb in (*_SENT, *_SENT_FOR_FLOWS)),
    *(f"after_{verb}_committed" for verb in (*_SENT, *_SENT_FOR_FLOWS)),
    *SCHEDULE_POINTS,
    "before_execution",  # the task is about to be called
    "after_execution",  # it has returned or raised; nothing is written yet
)


class WireCut(Exception):
    """Raised at a fault point: the connection is lost."""


class Faults:
    """The faults of production: none."""

    #: Checked first: in production not even the name of a point is built.
    wanted = False

    def reach(self, point: str) -> None:
        """Called at every point. May kill the process, sleep, or raise `WireCut`."""


def check_point(point: str) -> str:
    if point not in POINTS:
        raise ConfigError(f"unknown fault point {point}; choose one of: {', '.join(POINTS)}")
    return point
