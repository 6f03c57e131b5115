"""The bounds, in seconds, between which waiting and running times are counted. Workers, metrics and pages agree on them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A time is counted under the first bound that it does not exceed; the longest under one more, at the end.
BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 10800.0
)  # fmt: skip


def place(seconds: float) -> int:
    return bisect_left(BOUNDS, seconds)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The time that this share of what was counted did not exceed, by a straight line within its bucket. None: no counts.

    Of the longest no more is known than that they took longer than the last bound, which is the answer for them.
    """
    wanted = share * sum(counts)
    if wanted <= 0:
        return None
    below, passed = 0.0, 0
    for bound, count in zip(BOUNDS, counts, strict=False):
        if count and passed + count >= wanted:
            return below + (bound - below) * (wanted - passed) / count
        below, passed = bound, passed + count
    return BOUNDS[-1]
