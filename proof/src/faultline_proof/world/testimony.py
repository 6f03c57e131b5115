"""What reached the database, as operations for the history checker. Nobody in the world knows this much.

Statements take effect one after the other here, so their place in the record is their time: every order is certain, and
the checker has nothing to give the benefit of the doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof import recording
from faultline_proof.history import History

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline_proof.world.weather import Line


#: The time of a statement is its place in the record, times this: between two of them there is room for its answer.
PLACES = 2


def history_of(lines: Sequence[Line]) -> History:
    history, place = History(), 0.0
    links: dict[int, recording.Line] = {}

    def clock() -> float:
        """Grows with every look, so that an operation ends after it was invoked and before the next one is."""
        nonlocal place
        place += 0.25
        return place

    for number, line in enumerate(lines):
        place = float(PLACES * number)
        link = links.setdefault(line.link, recording.Line(history, line.host, clock))
        if line.took_effect:
            link.sent(line.sql, line.params).answered(line.rows)
        elif line.outcome == "failed":
            link.sent(line.sql, line.params).refused(str(line.rows))
        elif line.outcome == "cut":
            # It never arrived, and took its transaction with it.
            link.close(lambda operation, _: operation.failed(clock(), "the wire was cut"))
    return history
