"""The position of a time in a picture. Time runs evenly while the job is held; a long wait between is drawn short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.explain.svg import ticks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A longer wait is cut to this share of the time that the job was held.
_WAIT_SHARE = 0.22
_LEFT, _RIGHT = 2.0, 96.0  # per cent: room for a mark at either end


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time, and its drawn length. Both in seconds; they differ where it was cut."""

    start: float
    end: float
    drawn: float

    @property
    def cut(self) -> bool:
        return self.drawn < self.end - self.start


class Scale:
    def __init__(self, held: Iterable[tuple[float, float]], *, start: float, end: float) -> None:
        """`held`: when the job was held, in any order. The picture shows `start` to `end`."""
        end = max(end, start + 0.001)
        spans = _merged([(max(a, start), min(b, end)) for a, b in held])
        holding = sum(b - a for a, b in spans) or end - start
        #: Without any, time runs evenly.
        self.pieces: list[Piece] = [] if spans else [Piece(start, end, end - start)]
        at = start if spans else end
        for a, b in [*spans, (end, end)]:
            if a > at:
                self.pieces.append(Piece(at, a, min(a - at, _WAIT_SHARE * holding)))
            if b > a:
                self.pieces.append(Piece(a, b, b - a))
            at = max(at, b)
        self._drawn = sum(piece.drawn for piece in self.pieces)

    def x(self, at: float) -> float:
        """In per cent of the picture's width."""
        before = 0.0
        for piece in self.pieces:
            if at <= piece.end:
                share = max(0.0, at - piece.start) / (piece.end - piece.start)
                before += piece.drawn * share
                break
            before += piece.drawn
        return _LEFT + (_RIGHT - _LEFT) * before / self._drawn

    def ticks(self) -> list[float]:
        """Round times, none within a stretch that was cut."""
        return [at for piece in self.pieces if not piece.cut for at in ticks(piece.start, piece.end, of=self._drawn)]

    @property
    def cuts(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.cut]


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > start:
            merged.append((start, end))
    return merged
