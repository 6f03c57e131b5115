"""Each guard of the companion and of the worker's end of it, by itself. No process and no database is needed for these."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from faultline.core.dsn import LiveDsn
from faultline.core.errors import DatabaseUnavailable
from faultline.core.model import Lease
from faultline.worker.base.counters import Tally
from faultline.worker.companion.client import Standby
from faultline.worker.companion.memory import BEGUN, Shared
from faultline.worker.companion.process import LOOK_SECONDS, Companion, is_stopped
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.write.release_unstarted import Unstarted
from tests.waiting import until
from tests.worker.test_companion import settings

if TYPE_CHECKING:
    from collections.abc import Iterator


def hold(number: int = 1, task: str = "t") -> HeldLease:
    lease = Lease(UUID(int=number), 1, task, {}, 1, 1, False, 0, 0, datetime.now(UTC), 30.0, None, False, None, "w/7")
    return HeldLease(lease, 0.0, Tally(time.monotonic).of("default"))


# The companion


class Watched(Companion):
    """Does nothing in the database, and ends nobody."""

    now = 100.0
    ended = 0

    def __init__(self, **words: Any) -> None:
        self.shared = Shared.create(10)
        self.shared.set_loop_timeout(words.pop("silence", inf))
        self.shared.loop_ticked(self.now)
        self.shared.watch_ticked(self.now)
        super().__init__(settings(**words), self.shared, monotonic=lambda: self.now)

    def pass_by(self, seconds: float, *, loop: bool = False, watch: bool = False) -> None:
        """So much time passes, in which the loop ticks or not, and the watching thread runs or not."""
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            if loop:
                self.shared.loop_ticked(self.now)
            if watch:
                self.shared.watch_ticked(self.now)
            self.look()

    @property
    def wants(self) -> tuple[bool, bool]:
        """To renew, and to give back."""
        return self._held, self._blocked

    def _rescue(self) -> None: ...

    def _end(self, **_: object) -> None:
        self.ended += 1


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_silent_worker_is_helped_and_a_stopped_one_is_not(sleeper: subprocess.Popen[bytes]) -> None:
    silent = Watched(parent=sleeper.pid)
    silent.pass_by(5)
    os.kill(sleeper.pid, signal.SIGSTOP)
    until(lambda: is_stopped(sleeper.pid))
    stopped = Watched(parent=sleeper.pid)
    stopped.pass_by(5)

    assert (silent.wants, stopped.wants) == ((True, True), (False, False))


def test_a_worker_that_is_silent_for_too_long_is_not_kept_alive() -> None:
    companion = Watched(silence=4.0)
    companion.pass_by(3)
    before = companion.wants
    companion.pass_by(3)

    assert (before, companion.wants) == ((True, True), (False, True))


def test_a_companion_that_did_not_run_itself_takes_nobody_for_silent(caplog: pytest.LogCaptureFixture) -> None:
    companion = Watched(silence=4.0, owns_process=True)
    companion.now += 60
    companion.look()
    after_a_gap = companion.wants, companion.ended, told(caplog)
    companion.pass_by(3)

    assert (after_a_gap, companion.wants) == (((False, False), 0, []), (True, True))


def test_a_signal_of_which_a_ticking_loop_knows_nothing_was_not_the_workers() -> None:
    signals = os.memfd_create("signals")
    companion = Watched(owns_process=True, signals=signals, grace_seconds=600.0)

    def seen_after(seconds: float, *, ticking: bool) -> float | None:
        companion.pass_by(seconds, loop=ticking, watch=True)
        return companion.stop_seen_at

    seen = [seen_after(1, ticking=True)]
    os.write(signals, b"another process that has this file open")
    seen += [seen_after(0.25, ticking=True), seen_after(60, ticking=True)]
    os.write(signals, b"this one, while a task blocks the loop")
    seen += [seen_after(5, ticking=False)]
    companion.shared.stop_asked(companion.now)
    seen += [seen_after(5, ticking=True)]
    os.close(signals)

    assert (seen, companion.ended) == ([None, 101.25, None, 161.5, 161.5], 0)


def test_a_limit_shorter_than_a_moment_accuses_nobody() -> None:
    companion = Watched(silence=0.5, owns_process=True)
    companion.pass_by(1.5, watch=True)
    before = companion.ended
    companion.pass_by(2, watch=True)

    assert (before, companion.ended > 0) == (0, True)


@pytest.mark.parametrize(
    ("owns_process", "loop", "seconds", "ends"),
    [
        (True, True, 19, False),
        (True, True, 24, True),
        (True, False, 3, False),
        (True, False, 8, True),
        (False, True, 60, False),
    ],
)
def test_a_stop_may_take_so_long(owns_process: bool, loop: bool, seconds: float, ends: bool) -> None:  # noqa: FBT001
    companion = Watched(owns_process=owns_process, grace_seconds=1.0)
    companion.pass_by(3, loop=loop, watch=True)
    companion.shared.stop_asked(companion.now)
    companion.pass_by(seconds, loop=loop, watch=True)

    assert (companion.ended > 0) == ends


def test_each_silence_is_told_of_once_and_a_program_of_the_users_own_is_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    companion = Watched(silence=4.0)
    for _ in range(2):
        companion.pass_by(10, watch=True)
        companion.pass_by(1, loop=True, watch=True)

    assert told(caplog) == ["event_loop_blocked", "event_loop_timeout"] * 2
    assert caplog.records[1].faultline_fields["action"] == "leases are not renewed any more"  # type: ignore[attr-defined]
    assert companion.ended == 0


def test_a_companion_ends_nobody_but_its_own_worker(sleeper: subprocess.Popen[bytes]) -> None:
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            Companion._end(Watched(parent=sleeper.pid, owns_process=True))  # noqa: SLF001
        os._exit(1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert sleeper.poll() is None


def test_a_companion_does_not_end_by_the_signals_of_a_terminal() -> None:
    with closing(started()) as standby:

        def ignored() -> int:
            status = Path(f"/proc/{standby.pid}/status").read_text()
            return int(status.partition("SigIgn:")[2].split()[0], 16)

        until(lambda: all(ignored() & 1 << number - 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))


# The worker's end of it


class Ending(Standby):
    close = Standby.stop


def started(**words: Any) -> Ending:
    standby = made(**words)
    standby.start()
    return standby


def made(**words: Any) -> Ending:
    common: dict[str, Any] = {
        "capacity": 10,
        "grace_seconds": 1.0,
        "loop_timeout_seconds": 60.0,
        "owns_process": False,
        "signals": None,
    }
    common |= {"health": None, "memory": None, "monotonic": time.monotonic, "tasks": {}}
    return Ending(words.pop("dsn", ""), "w", **{**common, **words})


def taken(standby: Standby, number: int = 1) -> HeldLease:
    one = hold(number)
    standby.claim_sent(0, 7)
    standby.took(0, [one])
    return one


def test_what_may_have_been_given_back_is_not_begun() -> None:
    with closing(made()) as standby:
        before, begun = taken(standby, 1), taken(standby, 2)
        allowed = standby.shared.begin(begun, 1.0)
        begun.began_at = 1.0
        standby.shared.raise_flag()
        after = taken(standby, 3)

        assert (allowed, standby.shared.begin(before, 1.0), standby.shared.begin(after, 1.0)) == (True, False, True)
        assert [standby.in_doubt(one) for one in (before, begun, after)] == [True, False, False]


class Flagging:
    """Memory in which the flag is raised in the moment in which a lease is marked as begun."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._states = shared, shared._states  # noqa: SLF001

    def __setitem__(self, slot: int, state: int) -> None:
        self._states[slot] = state
        if state == BEGUN:
            self._shared.raise_flag()


def test_a_lease_is_marked_as_begun_before_the_flag_is_looked_at() -> None:
    with closing(made()) as standby:
        one = taken(standby)
        standby.shared._states = Flagging(standby.shared)  # type: ignore[assignment]  # noqa: SLF001

        assert not standby.shared.begin(one, 1.0)


def test_a_claim_is_on_its_way_until_its_answer_is_listed() -> None:
    with closing(made()) as standby:
        standby.claim_sent(0, 7)
        before = standby.shared.claims()
        standby.took(0, [hold()])

        assert (before, standby.shared.claims()) == ({7}, set())


def test_that_leases_were_given_back_is_heard_once() -> None:
    with closing(made()) as standby:
        standby.shared.raise_flag()

        assert (standby.has_released(), standby.has_released()) == (True, False)


def test_a_companion_is_told_of_a_new_dsn_and_lives_on() -> None:
    answers, told = ["host=/first", "host=/second"], list[bytes]()
    dsn = LiveDsn(lambda: answers[0])
    with closing(started(dsn=dsn)) as standby:
        process: Any = standby._process  # noqa: SLF001
        process.stdin = Told(process.stdin, told)
        standby.tick()
        before = list(told)
        answers.reverse()
        dsn.current()  # as a new connection of the worker asks for it
        standby.tick()
        standby.tick()
        time.sleep(4 * LOOK_SECONDS)

        assert (before, told) == ([], [b'{"dsn": "host=/second"}\n'])
        assert process.poll() is None
    assert process.returncode == 0


class Told:
    """The pipe to a companion, with what was said through it."""

    def __init__(self, pipe: Any, told: list[bytes]) -> None:
        self._pipe = pipe
        self._told = told

    def write(self, said: bytes) -> None:
        if said.startswith(b"{"):
            self._told.append(said)
        self._pipe.write(said)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)


def test_a_companion_that_died_gives_nothing_back_any_more() -> None:
    with closing(started()) as standby:
        standby.shared.raise_flag()
        before = standby.is_releasing
        standby.shared.flag_done()
        done = standby.is_releasing
        standby.shared.raise_flag()
        os.kill(standby.pid or 0, signal.SIGKILL)

        def is_noticed() -> bool:
            standby.tick()
            return standby.pid is None

        until(is_noticed)

        assert (before, done, standby.is_releasing) == (True, False, False)


class Mortal:
    """Stands for a companion process that is dead, or lives until it is told that it is dead."""

    stdin = None

    def __init__(self, returncode: int | None) -> None:
        self.returncode = returncode

    def poll(self) -> int | None:
        return self.returncode


def test_a_companion_that_dies_again_and_again_is_started_later_and_later_unless_it_lived_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, started_at, process = 0.0, [], Mortal(1)
    standby = made(monotonic=lambda: now)

    def start() -> None:
        started_at.append(now)
        monkeypatch.setattr(standby, "_process", process)

    def go_on(seconds: float) -> None:
        nonlocal now
        for _ in range(int(seconds * 4)):
            standby.tick()
            now += 0.25

    monkeypatch.setattr(standby, "start", start)
    go_on(200)
    pauses = [int(later - before) for before, later in pairwise(started_at)]
    process = Mortal(None)
    go_on(200)
    lived = len(started_at)
    process.returncode = 1
    go_on(1.5)
    standby.shared.close()

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(started_at) == lived + 1


class Scene:
    """All that `Unstarted` works with."""

    are_being_released = True
    unanswered = 1

    def __init__(self) -> None:
        self.dropped: list[HeldLease] = []
        self.drop = self.dropped.extend
        self.released: list[HeldLease] = []
        self.asked = self.too_early = 0
        self.held: set[Lease] = set()

    async def run(self, _: object) -> set[Lease]:
        self.asked += 1
        self.too_early += self.are_being_released
        if self.asked <= self.unanswered:
            raise DatabaseUnavailable("away")
        return self.held

    def put(self, released: Any) -> None:
        self.released.append(released.hold)


def test_of_what_was_in_doubt_only_what_is_still_held_is_released_once_the_companion_is_done() -> None:
    async def main() -> None:
        scene: Any = Scene()
        unstarted = Unstarted(scene, scene, scene, {}, time.monotonic)
        holds = [hold(1), hold(2)]
        scene.held = {holds[0].lease}
        unstarted.release_if_held(holds)
        await asyncio.sleep(0)
        scene.are_being_released = False
        await unstarted.resolved()
        assert (scene.dropped, scene.released, scene.asked, scene.too_early) == (holds, holds[:1], 2, 0)

    asyncio.run(main())
