"""The parent of several worker processes: whatever moment a signal comes at, no child is left and the parent ends."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from faultline.worker.process import Supervisor
from faultline.worker.signals import SIGNALS
from tests.waiting import until
from tests.worker.working import logged

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

#: A child that stops when it is told to, and by itself when nobody tells it for long.
_CHILD = [sys.executable, "-c", "import time; time.sleep(15)"]


class Signalled(Supervisor):
    """A signal arrives while a child is being started: the process is there, and is not known yet."""

    def __init__(self, *, at_start: int) -> None:
        self.spawned: list[Any] = []
        self._at_start = at_start
        super().__init__(_CHILD, 2)

    def _spawn(self) -> Any:
        child = super()._spawn()
        self.spawned.append(child.process)
        if len(self.spawned) == self._at_start:
            signal.raise_signal(signal.SIGTERM)
        return child


def _too_long(*_: object) -> None:
    raise AssertionError("the parent did not end")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whoever handled the signals before does so again."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    # Where nobody handles it yet, it must not end the tests.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("at_start", [1, 2, 3])
def test_a_signal_that_comes_while_a_child_is_started_reaches_that_child_too(at_start: int) -> None:
    supervisor = Signalled(at_start=at_start)
    if at_start == 3:
        supervisor.spawned[0].kill()

    assert supervisor.run() == 0
    assert {process.returncode for process in supervisor.spawned} <= {-signal.SIGTERM, -signal.SIGKILL}


def test_a_child_that_cannot_be_started_is_tried_again() -> None:
    class Short(Signalled):
        """The machine has no room for a third process at first."""

        refused = 0

        def _spawn(self) -> Any:
            if len(self.spawned) == 2 and not self.refused:
                self.refused += 1
                raise BlockingIOError("Resource temporarily unavailable")
            return super()._spawn()

    supervisor = Short(at_start=3)
    supervisor.spawned[0].kill()

    assert supervisor.run() == 0
    assert (supervisor.refused, len(supervisor.spawned)) == (1, 3)


def test_a_child_that_asks_to_be_replaced_is_started_again_at_once_and_is_no_error(log: io.StringIO) -> None:
    supervisor = Supervisor([sys.executable, "-c", "import sys, time; time.sleep(0.6); sys.exit(75)"], 1)
    first = supervisor.pids

    def is_replaced() -> bool:
        supervisor.tick()
        return supervisor.pids not in (first, set())

    until(is_replaced, 30)
    signal.raise_signal(signal.SIGTERM)
    supervisor.run()

    assert [line["level"] for line in logged(log, "worker_replaced")] == ["info"]
    assert logged(log, "worker_died") == []


def test_a_child_that_dies_again_and_again_is_known_for_it() -> None:
    supervisor = Supervisor([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGBUS)"], 1)

    def is_dying() -> list[str]:
        supervisor.tick()
        return supervisor.dying

    assert supervisor.dying == []
    until(is_dying, 60)
    signal.raise_signal(signal.SIGTERM)
    supervisor.run()

    (told,) = supervisor.dying
    assert "times in a row within 10 s of its start, the last time by SIGBUS" in told
