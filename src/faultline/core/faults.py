"""Fault points: named places where a drill can crash, pause or cut the wire. In production nothing happens there."""

from __future__ import annotations

from faultline.core.errors import ConfigError

#: Every statement has two: just before it is sent, and when the server has committed it and nobody here knows it yet.
#: `commit` is that of the job's own transaction.
_SENT = (
    "enqueue", "claim", "mark_started", "recall", "step", "progress", "fence", "commit", "complete", "fail", "release",
    "renew", "beat", "reap",
)  # fmt: skip
POINTS = (
    *(f"before_{verb}_sent" for verb in _SENT),
    *(f"after_{verb}_committed" for verb in _SENT),
    "before_execution",  # the task is about to be called
    "after_execution",  # it has returned or raised; nothing of that is written yet
)


class WireCut(Exception):
    """Raised at a fault point: the connection is gone from here on."""


class Faults:
    """The faults of production: none."""

    #: Looked at before a point's name is even put together.
    wanted = False

    def reach(self, point: str) -> None:
        """Called at every point. May kill the process, take its time, or raise `WireCut`."""


def check_point(point: str) -> str:
    if point not in POINTS:
        raise ConfigError(f"unknown fault point {point}; choose one of: {', '.join(POINTS)}")
    return point
