"""In which order the programs take their turns: every one, or so many drawn by chance."""

from __future__ import annotations

import random


class Orders:
    """Every order of turns, depth first: each one keeps as much of the one before it as it can."""

    #: Whether there were more orders than were given.
    drawn = False

    def __init__(self) -> None:
        #: For every turn of the present order: whose turn it is, and then whose it could be as well.
        self._left: list[list[str]] = []
        self._first = True

    def another(self) -> bool:
        """Go on to the next order. False when there is none."""
        if self._first:
            self._first = False
            return True
        while self._left and len(self._left[-1]) == 1:
            self._left.pop()
        if self._left:
            self._left[-1].pop(0)
        return bool(self._left)

    def choose(self, turn: int, ready: list[str]) -> str:
        if turn == len(self._left):
            self._left.append(list(ready))
        name = self._left[turn][0]
        # Which of two waiting sessions goes on first is the server's choice, and may differ from one time to the next.
        return name if name in ready else ready[0]


class DrawnOrders:
    """No order twice, and no more than so many. If there are more, chance decides which, the same each time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chance = random.Random(1)  # noqa: S311 - nobody is to be surprised
        #: Beginnings of orders that are still to be tried.
        self._open: list[list[str]] = [[]]
        self._given: list[str] = []
        self._given_up_to = 0
        self._tried = 0

    @property
    def drawn(self) -> bool:
        return bool(self._open)

    def another(self) -> bool:
        if not self._open or self._tried >= self._most:
            return False
        self._tried += 1
        self._given = self._open.pop(self._chance.randrange(len(self._open)))
        self._given_up_to = len(self._given)
        return True

    def choose(self, turn: int, ready: list[str]) -> str:
        if turn < self._given_up_to:
            name = self._given[turn]
            return name if name in ready else ready[0]
        name = self._chance.choice(ready)
        self._open += [[*self._given, other] for other in ready if other != name]
        self._given.append(name)
        return name
