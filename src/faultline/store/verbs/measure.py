"""Count and sum up, for pages and metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faultline.store import jsontext
from faultline.store.rows import value
from faultline.store.statement import UPKEEP_SECONDS, Statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from faultline.core.model import Json


def tally(worker_id: str, rows: Sequence[Mapping[str, Json]]) -> Statement[None]:
    """Store this worker's counts for each queue, since the minute of the row began."""
    return Statement(
        name="tally",
        sql="select faultline.tally(%s, %s::jsonb)",
        params=(worker_id, jsontext.encode(list(rows), "tallies")),
        read=lambda _: None,
        repeatable=True,
    )


def sample() -> Statement[bool]:
    """Count the waiting jobs, unless that was done a moment ago. Returns whether it counted."""
    sampled = Statement("sample", "select faultline.sample()", (), value, repeatable=True)
    return replace(sampled, seconds=UPKEEP_SECONDS)


def roll_up() -> Statement[int]:
    """Sum up old measurements."""
    summed = Statement("roll_up", "select faultline.roll_up()", (), value, repeatable=True)
    return replace(summed, seconds=UPKEEP_SECONDS)
