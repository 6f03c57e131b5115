"""The waits of a race, in the order in which they were over by the database's record, whoever looks first.

All that runs in a race stops before it waits, before it begins a step and after it has ended one. When nothing moves any
more, the wait that was over first goes on, and what follows from it; then steps that have ended; then those that begin. So a
race that nobody ran for a day ends as if somebody had watched it all the time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Event(Protocol):
    """What `asyncio.Event` and `threading.Event` have in common."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...


class Stop:
    """Where something in a race stopped."""

    __slots__ = ("answer", "number", "rank", "wait", "went_on")

    def __init__(self, number: str, rank: tuple[int, ...], wait: dict[str, Any], went_on: Event) -> None:
        self.number = number
        #: The order of the arguments: it decides between moments that are equal.
        self.rank = rank
        #: As `first_over` and `suspend` take it.
        self.wait = wait
        self.went_on = went_on
        #: What became of it: a status and a result, or what to raise.
        self.answer: tuple[str, Any] | BaseException | None = None


class Contest:
    """What runs, works and has stopped in a race, and in the races and gathers inside of it."""

    def __init__(self, event: Callable[[], Event]) -> None:
        self.event = event
        #: Nothing moves: all of it has stopped, works on a step, or has ended.
        self.is_quiet = event()
        #: Something has moved since this was cleared.
        self.has_moved = event()
        #: The race is decided, or the run is over.
        self.is_over = False
        #: Steps that run now.
        self.working = 0
        self._moving = 0
        self._waiting: dict[str, Stop] = {}
        self._ended: list[Stop] = []
        self._ready: list[Stop] = []
        self._lock = threading.Lock()

    def moves(self, count: int) -> None:
        """So many more move, or fewer."""
        with self._lock:
            self._count(count)

    def works(self, count: int) -> None:
        """One begins with a step, or has ended it."""
        with self._lock:
            self.working += count
            self._count(-count)

    def stop_to_wait(self, number: str, rank: tuple[int, ...], wait: dict[str, Any]) -> Stop:
        with self._lock:
            stop = self._waiting[number] = Stop(number, rank, wait, self.event())
            self._count(-1)
        return stop

    def stop_to_work(self, number: str, rank: tuple[int, ...], step: dict[str, Any], *, ended: bool) -> Stop:
        """Before a step begins, or after it has ended."""
        with self._lock:
            stop = Stop(number, rank, step, self.event())
            (self._ended if ended else self._ready).append(stop)
            self._count(-1)
        return stop

    def leave(self, stop: Stop) -> None:
        """It was cancelled there."""
        with self._lock:
            if not stop.went_on.is_set():
                self._let_go(stop, None)

    def waits(self) -> list[Stop]:
        with self._lock:
            return list(self._waiting.values())

    def ended_steps(self) -> list[Stop]:
        with self._lock:
            return list(self._ended)

    def goes_on(self, number: str, status: str, result: Any) -> None:
        """What was over first goes on."""
        with self._lock:
            stop = self._waiting.get(number) or next((one for one in self._ended if one.number == number), None)
            if stop is not None:
                self._let_go(stop, (status, result))

    def let_work(self) -> bool:
        """The step that ended first goes on; if there is none, those that have not begun do. False: nor are there such."""
        with self._lock:
            stops = self._ended[:1] or list(self._ready)
            for stop in stops:
                self._let_go(stop, ("go on", None))
            return bool(stops)

    def stop_all(self, answer: Callable[[Stop], BaseException], numbers: Callable[[str], bool] = lambda _: True) -> None:
        """What has stopped raises this."""
        with self._lock:
            for stop in [one for one in (*self._waiting.values(), *self._ended, *self._ready) if numbers(one.number)]:
                self._let_go(stop, answer(stop))

    def _let_go(self, stop: Stop, answer: tuple[str, Any] | BaseException | None) -> None:
        if self._waiting.get(stop.number) is stop:
            del self._waiting[stop.number]
        else:
            for stops in (self._ended, self._ready):
                if stop in stops:
                    stops.remove(stop)
        stop.answer = answer
        self._count(1)
        stop.went_on.set()

    def _count(self, count: int) -> None:
        self._moving += count
        self.has_moved.set()
        if self._moving > 0:
            self.is_quiet.clear()
        else:
            self.is_quiet.set()


class Heat:
    """The calls of one race: which of them has ended first."""

    def __init__(self, contest: Contest, size: int, *, inner: bool) -> None:
        self.contest = contest
        self.is_decided = contest.event()
        #: How each stands that has ended or waits, by its index, in that order.
        self.stands: dict[int, Any] = {}
        self.error: BaseException | None = None
        self.winner: int | None = None
        self._size = size
        self._lock = threading.Lock()
        #: Inside of another race, whoever awaits this one moves on with the first that has ended.
        self._passes_on = inner
        # Of an inner one, whoever awaits it stands still meanwhile.
        contest.moves(size - 1 if inner else size)

    def ends(self, index: int, stand: Any, error: BaseException | None = None) -> None:
        """One has ended, or waits, or ended the run."""
        with self._lock:
            self.stands[index] = stand
            self.error = self.error or error
            if stand is not None and stand.waits is None and self.winner is None:
                self.winner = index
            decides = self.winner is not None or self.error is not None or len(self.stands) == self._size
            passes, self._passes_on = self._passes_on and decides, self._passes_on and not decides
            if not passes:
                self.contest.moves(-1)
            if decides:
                self.is_decided.set()
