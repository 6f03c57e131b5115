"""A job's life in a terminal: one lane for each epoch, on one axis of time, with refused writes where they hit.

token  owner  12:03:04.100        12:03:07.020
    1  w1/17  ├━━━━━━━━┤┄┄┄┄┄┄┄┄✗             reaped after 1.1 s
                lease_expired
              ✗ 12:03:06.922 complete refused: token_mismatch, the token is 2
    2  w2/4              ├━━━━━━━━━━━━━━━━━●  succeeded after 1.6 s

Each line is pieces of text with the names of their styles; the terminal decides how a style looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.journal import EpochEnd
from faultline.explain.formatting import headline, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from faultline.explain.epochs import Epoch

Pieces = list[tuple[str, str]]

_STYLES = {
    EpochEnd.RUNNING: "running",
    EpochEnd.SUCCEEDED: "succeeded",
    EpochEnd.FAILED: "failed",
    EpochEnd.CANCELLED: "cancelled",
}
_LAST = {EpochEnd.RUNNING: "▶", EpochEnd.SUCCEEDED: "●", EpochEnd.FAILED: "■", EpochEnd.CANCELLED: "■"}
_REFUSALS_SHOWN = 6
_ENDING_COLUMNS = 36
_OWNER_COLUMNS_MAX = 24
_REASON_COLUMNS_MAX = 120
_LANE_MIN, _LANE_MAX = 26, 72


def lanes(epochs: Sequence[Epoch], *, now: datetime, columns: int) -> Iterator[Pieces]:
    """Draw the epochs, line by line. A screen too narrow for the lanes gets the text only."""
    owner_columns = min(_OWNER_COLUMNS_MAX, max([5, *(len(epoch.owner or "") for epoch in epochs)]))
    indent = 7 + owner_columns + 2
    width = min(_LANE_MAX, columns - indent - _ENDING_COLUMNS)
    axis = _Axis(epochs, now, width) if width >= _LANE_MIN and any(epoch.claimed_at for epoch in epochs) else None
    yield [(f"{'token':>5}  {'owner':{owner_columns}}  {axis.header() if axis else ''}".rstrip(), "heading")]
    for epoch in epochs:
        who = (f"{epoch.token:>5}  {_cut(epoch.owner or '', owner_columns):{owner_columns}}  ", "")
        lane = [*axis.lane(epoch), ("  ", "")] if axis is not None else []
        yield [who, *lane, *_ending(epoch, now)]
        for detail in _details(epoch):
            yield [(" " * indent, ""), detail]


def _ending(epoch: Epoch, now: datetime) -> Iterator[tuple[str, str]]:
    yield str(epoch.end), _STYLES.get(epoch.end, "")
    if epoch.claimed_at is not None:
        spent = span(((epoch.ended_at or now) - epoch.claimed_at).total_seconds())
        yield f" {'for' if epoch.ended_at is None else 'after'} {spent}", "default"
    if epoch.renewals:
        yield f", {epoch.renewals} renewals", "quiet"


def _details(epoch: Epoch) -> Iterator[tuple[str, str]]:
    """Why it ended, and its first refused writes."""
    if epoch.reason:
        yield f"  {_cut(headline(epoch.reason), _REASON_COLUMNS_MAX)}", _STYLES.get(epoch.end, "quiet")
    for write in epoch.refusals[:_REFUSALS_SHOWN]:
        yield f"✗ {_clock(write.at)} {write.verb} refused: {write.reason}, the token is {write.current_token}", "refused"
    if len(epoch.refusals) > _REFUSALS_SHOWN:
        yield f"✗ and {len(epoch.refusals) - _REFUSALS_SHOWN} more", "refused"


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


def _clock(at: datetime) -> str:
    """The time of day where the terminal is, to the millisecond."""
    return at.astimezone().strftime("%H:%M:%S.%f")[:-3]


class _Axis:
    """From the first claim to the last event, on so many columns."""

    def __init__(self, epochs: Sequence[Epoch], now: datetime, width: int) -> None:
        moments = [at for epoch in epochs for at in (epoch.claimed_at, epoch.ended_at) if at is not None]
        moments += [write.at for epoch in epochs for write in epoch.refusals]
        if any(epoch.end is EpochEnd.RUNNING for epoch in epochs):
            moments.append(now)
        self._first, self._last, self._now, self._width = min(moments), max(moments), now, width

    def header(self) -> str:
        first, last = _clock(self._first), _clock(self._last)
        return f"{first}{last:>{self._width - len(first)}}"

    def lane(self, epoch: Epoch) -> Pieces:
        cells: Pieces = [(" ", "")] * self._width
        if epoch.claimed_at is not None:
            style = _STYLES.get(epoch.end, "bold")
            first, last = self._column(epoch.claimed_at), self._column(epoch.ended_at or self._now)
            for column in range(first, last):
                cells[column] = ("━", style)
            cells[first] = ("├", style)
            cells[last] = (_LAST.get(epoch.end, "┤"), style)
            if epoch.refusals:
                for column in range(last + 1, self._column(epoch.refusals[-1].at)):
                    cells[column] = ("┄", "quiet")
        for write in epoch.refusals:
            cells[self._column(write.at)] = ("✗", "refused")
        return cells

    def _column(self, at: datetime) -> int:
        whole = (self._last - self._first).total_seconds()
        share = (at - self._first).total_seconds() / whole if whole else 0.0
        return min(self._width - 1, max(0, round(share * (self._width - 1))))
