"""The histogram buckets of waiting and running times, in seconds, for workers, metrics and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A time belongs to the first bound that it does not exceed. Longer times have one more bucket at the end.
BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 10800.0
)  # fmt: skip


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The time that this share of the counts did not exceed, interpolated within its bucket. None: no counts.

    For times above the last bound it is the last bound: no more is known of them.
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
