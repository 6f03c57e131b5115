"""The children of a call as a strip: a cell for each, coloured by its state. Many share a cell, which shows the worst."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup

from faultline.explain.svg import escaped
from faultline.store.reads.flows import LETTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.store.reads.flows import Children

#: What a cell that several children share shows, the first of these that is among them.
_WORST = "fcrwqsx-"
_CELLS_MAX = 1000
_ROW_CELLS = 100
_WIDTH, _HEIGHT, _GAP = 6, 10, 1
#: In the order in which counts are named.
STATES = ("succeeded", "failed", "cancelled", "running", "waiting", "queued", "elsewhere", "forgotten")


def counts(children: Children) -> list[tuple[str, int]]:
    """How many are in each state, without those that none is in."""
    return [(state, number) for state in STATES if (number := getattr(children, state))]


def counted(children: Children) -> str:
    """In words: `38 succeeded, 2 failed, 60 queued`."""
    return ", ".join(f"{number:,} {state}" for state, number in counts(children)) or "none yet"


def shared(cells: str, cells_max: int) -> list[tuple[str, int, int]]:
    """At most so many cells: the state of each as a letter, the index of its first child and how many it stands for."""
    each = -(-len(cells) // cells_max) or 1
    parts = [(start, cells[start : start + each]) for start in range(0, len(cells), each)]
    return [(min(part, key=_WORST.index), start, len(part)) for start, part in parts]


def draw(children: Children) -> Markup:
    """The strip as a picture: rows of cells."""
    cells = shared(children.cells, _CELLS_MAX)
    rows = -(-len(cells) // _ROW_CELLS)
    width, height = min(len(cells), _ROW_CELLS) * (_WIDTH + _GAP), rows * (_HEIGHT + _GAP)
    drawn = []
    for number, (letter, start, several) in enumerate(cells):
        row, column = divmod(number, _ROW_CELLS)
        named = f"{start}" if several == 1 else f"{start} to {start + several - 1}"
        drawn.append(
            f'<rect class="cell cell-{LETTERS[letter]}" x="{column * (_WIDTH + _GAP)}" y="{row * (_HEIGHT + _GAP)}"'
            f' width="{_WIDTH}" height="{_HEIGHT}"><title>{named}: {LETTERS[letter]}</title></rect>'
        )
    return Markup(  # noqa: S704 - numbers, and texts of our own
        f'<svg class="strip" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' aria-label="{escaped(counted(children))}">{"".join(drawn)}</svg>'
    )


def text(cells: str, columns: int) -> Iterator[tuple[str, str]]:
    """The strip for a terminal, in one line: pieces of text with the names of their styles."""
    for letter, same in groupby(letter for letter, _, _ in shared(cells, columns)):
        yield _TEXT.get(letter, "▪") * len(list(same)), LETTERS[letter]


#: So that a strip can be read without colours.
_TEXT = {"s": "■", "f": "✗", "c": "▨", "r": "▶", "w": "◫", "q": "·", "x": "?", "-": " "}
