"""What the runs before this one wrote to streams: a program that runs again from the top does not write it twice.

What was written before a recorded call is kept. Of a branch that ended while others waited, no call says that it came to its
end: that is recorded by itself, behind its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

_END = ".0.0"
#: As the position of a change that comes after all calls of its branch.
_LAST = 999_999_999


class Branch(Protocol):
    """What is asked of a branch of the program."""

    @property
    def path(self) -> str: ...
    @property
    def counter(self) -> int: ...
    @property
    def parent(self) -> Branch | None: ...


class Written:
    """By branch, how far the runs before this one came."""

    def __init__(self) -> None:
        #: The position of the last recorded call.
        self._last: dict[str, int] = {}
        #: Branches that had ended before this run.
        self._over: set[str] = set()
        #: Branches that wrote to a stream in this run.
        self._wrote: set[str] = set()

    def came_to(self, number: str) -> None:
        """A recorded call, and the branches around it."""
        *path, last = number.split(".")
        while True:
            branch = ".".join(path)
            self._last[branch] = max(self._last.get(branch, 0), int(last))
            if not path:
                return
            last = path.pop()

    def know_end(self, number: str) -> None:
        """A recorded call beside the program's: perhaps the end of a branch."""
        if number.endswith(_END):
            self._over.add(number.removesuffix(_END))

    def is_over(self, numbers: Iterable[str]) -> None:
        """These branches had ended before this run."""
        self._over.update(numbers)

    def is_behind(self, branch: Branch, counter: int | None = None) -> bool:
        """Whether there are recorded calls that this branch has not come to yet, or had not at that position."""
        return self._last.get(branch.path, 0) > (branch.counter if counter is None else counter)

    def has(self, branch: Branch) -> bool:
        """Whether what this branch writes to a stream now was written by a run before this one, and is kept."""
        around: Branch | None = branch
        while around is not None:
            if around.path in self._over or self.is_behind(around):
                return True
            around = around.parent
        self._wrote.add(branch.path)
        return False

    def ends(self, numbers: Iterable[str]) -> list[dict[str, Any]]:
        """Of branches that have ended while others wait, what to record."""
        ended = [one for one in numbers if one not in self._over and any(_is_in(other, one) for other in self._wrote)]
        self._over.update(ended)
        ended_call = {"kind": "patch", "name": "end of the branch", "outcome": "done", "result": {"after": _LAST}}
        return [{"number": one + _END, **ended_call} for one in ended]


def _is_in(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")
