"""The memory that a worker and its companion process share.

It lists every lease that the worker holds, and whether its job waits, runs or has ended. There is no lock: the writer fills
an entry before it marks it as valid, the reader reads twice, and the database compares the whole lease before it writes.

Only the standard library is imported here: the companion must start fast and stay small.
"""

from __future__ import annotations

import mmap
import os
import struct
from math import inf
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from faultline.worker.base.memory_file import nameless_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from faultline.worker.lease.held_lease import HeldLease

FREE, WAITING, BEGUN, ENDED = range(4)
#: How long a task may exceed its own timeout before the silence of its loop counts as too long.
_TIMEOUT_MARGIN_SECONDS = 5.0

# The header: cells of eight bytes. Times are seconds of the machine's steady clock, which all processes share.
_LOOP, _WATCH, _BEAT, _STOPPING, _SILENCE, _RAISED, _DONE, _TOP, _BLOCKER, _BLOCKS_SINCE = range(10)
_CLAIMS = 16
_CLAIMS_MAX = 1024
_TASKS_AT = (_CLAIMS + _CLAIMS_MAX) * 8
_TASKS_MAX = 256
_TASK = struct.Struct("=d120s")
_ENTRIES_AT = _TASKS_AT + _TASKS_MAX * _TASK.size
# Task, whether it is the last attempt, serial number, job, token, number of the claim, lease in seconds, start time: eight
# cells. The states are separate, one byte each.
_ENTRY = struct.Struct("=IIQ16sqQf4xd")
_SERIAL, _BEGAN = _ENTRIES_AT // 8 + 1, _ENTRIES_AT // 8 + 7
_TIME = struct.Struct("=d")
_RENEWAL = struct.Struct("=dQ")


class Entry(NamedTuple):
    state: int
    task: int
    is_last: int
    serial: int
    job_id: bytes
    token: int
    claim: int
    lease_seconds: float
    began_at: float


class Shared:
    """Both ends use it. Leases beyond `capacity` are not listed: for them it is as if there were no companion."""

    def __init__(self, fd: int, capacity: int) -> None:
        self.fd = fd
        self.capacity = capacity
        self._renewals_at = _ENTRIES_AT + capacity * _ENTRY.size
        self._memory = mmap.mmap(fd, size(capacity))
        cells, self._states = memoryview(self._memory)[:-capacity], memoryview(self._memory)[-capacity:]
        self._times, self._numbers = cells.cast("d"), cells.cast("Q")
        self._free = list(range(capacity - 1, -1, -1))
        self._serial = 0
        self._tasks: dict[str, int] = {}
        #: The timeout of a task, by its name.
        self.timeout_of: Callable[[str], float | None] = lambda _: None

    @classmethod
    def create(cls, capacity: int, fd: int | None = None) -> Shared:
        """In this file, or in a new one. It disappears with the last process that has it open. `OSError`: no room for it."""
        fd = nameless_file("faultline-shared") if fd is None else fd
        try:
            _allocate(fd, size(capacity))
            shared = cls(fd, capacity)
        except BaseException:
            os.close(fd)
            raise
        shared.set_loop_timeout(inf)
        return shared

    @classmethod
    def of_child(cls, memory: NamelessFile) -> Shared | None:
        """As a child has filled it; None: it has not yet."""
        capacity = (os.fstat(memory.fileno()).st_size - _ENTRIES_AT) // (_ENTRY.size + _RENEWAL.size + 1)
        return None if capacity < 1 else cls(os.dup(memory.fileno()), capacity)

    def close(self) -> None:
        """Closes only the descriptor: a thread may still tick."""
        os.close(self.fd)

    # Written by the worker

    def loop_ticked(self, now: float) -> None:
        self._times[_LOOP] = now

    def watch_ticked(self, now: float) -> None:
        self._times[_WATCH] = now

    def beat_answered(self, now: float) -> None:
        self._times[_BEAT] = now

    def stop_asked(self, now: float) -> None:
        self._times[_STOPPING] = now

    def blocked_by(self, hold: HeldLease | None, now: float) -> None:
        """The loop is silent, and this job's code is what it runs; None: nobody knows of one."""
        serial = 0 if hold is None or hold.slot < 0 else self._numbers[_SERIAL + hold.slot * 8]
        if serial != self._numbers[_BLOCKER]:
            self._times[_BLOCKS_SINCE] = now
            self._numbers[_BLOCKER] = serial

    def set_loop_timeout(self, seconds: float) -> None:
        self._times[_SILENCE] = seconds

    def claim_sent(self, feed: int, claim: int) -> None:
        """Until its answer is listed, nothing that this claim got has started."""
        if feed < _CLAIMS_MAX:
            self._numbers[_CLAIMS + feed] = claim

    def claim_answered(self, feed: int) -> None:
        if feed < _CLAIMS_MAX:
            self._numbers[_CLAIMS + feed] = 0

    def enter(self, holds: Sequence[HeldLease], claim: int, epoch: int = 0) -> None:
        """List what a claim got, as waiting. `epoch`: see `HeldLease`."""
        memory, states, free, pack = self._memory, self._states, self._free, _ENTRY.pack_into
        slots = free[: -len(holds) - 1 : -1]
        del free[-len(holds) :]
        serial, name, task = self._serial, None, 0
        for hold, slot in zip(holds, slots, strict=False):
            lease = hold.lease
            if lease.task != name:
                name = lease.task
                task = self._number_of(name)
            serial += 1
            pack(
                memory,
                slot * 64 + _ENTRIES_AT,
                task,
                lease.attempt >= lease.max_attempts,
                serial,
                lease.job_id.int.to_bytes(16),
                lease.fencing_token,
                claim,
                lease.lease_seconds,
                0.0,
            )
            states[slot] = WAITING
            hold.slot = slot
            hold.epoch = epoch
        for hold in holds[len(slots) :]:
            hold.epoch = epoch
        self._serial = serial
        self._numbers[_TOP] = max(self._numbers[_TOP], self.capacity - len(free))

    def begin(self, hold: HeldLease, now: float) -> bool:
        """Whether the job may start. Mark it first, then look at the flag: see `Rescue.release`."""
        slot = hold.slot
        if slot >= 0:
            self._times[_BEGAN + slot * 8] = now
            self._states[slot] = BEGUN
            if hold.slot < 0:
                # Another thread dropped it meanwhile.
                self._states[slot] = FREE
        return hold.epoch == self._numbers[_RAISED]

    def ended(self, hold: HeldLease) -> None:
        slot = hold.slot
        if slot >= 0:
            self._states[slot] = ENDED
            if hold.slot < 0:
                self._states[slot] = FREE

    def leave(self, holds: Iterable[HeldLease]) -> None:
        states, free = self._states, self._free
        for hold in holds:
            slot = hold.slot
            if slot >= 0:
                hold.slot = -1
                states[slot] = FREE
                free.append(slot)

    def _number_of(self, name: str) -> int:
        index = self._tasks.get(name)
        if index is not None:
            return index
        index = len(self._tasks) + 1
        if index >= _TASKS_MAX:
            return 0
        timeout = self.timeout_of(name)
        _TASK.pack_into(self._memory, _TASKS_AT + index * _TASK.size, timeout or inf, name.encode()[:120])
        self._tasks[name] = index
        return index

    def renewed_at(self, hold: HeldLease) -> float:
        """When the companion last renewed this lease (the time before it asked); minus infinity: never."""
        if hold.slot < 0:
            return -inf
        at, serial = _RENEWAL.unpack_from(self._memory, self._renewals_at + hold.slot * _RENEWAL.size)
        return float(at) if serial == self._numbers[_SERIAL + hold.slot * 8] else -inf

    # Written by the companion

    def raise_flag(self) -> None:
        """From now on no job that was claimed before may start: it is being released."""
        self._numbers[_RAISED] += 1

    def flag_done(self) -> None:
        self._numbers[_DONE] = self._numbers[_RAISED]

    def renewed(self, slot: int, serial: int, asked_at: float) -> None:
        # The serial number last: until then the worker takes the time for an older lease's.
        at = self._renewals_at + slot * _RENEWAL.size
        _TIME.pack_into(self._memory, at, asked_at)
        struct.pack_into("=Q", self._memory, at + 8, serial)

    # Read by both

    @property
    def raised(self) -> int:
        return self._numbers[_RAISED]

    @property
    def done(self) -> int:
        return self._numbers[_DONE]

    @property
    def loop_at(self) -> float:
        return self._times[_LOOP]

    @property
    def watch_at(self) -> float:
        return self._times[_WATCH]

    @property
    def heartbeat_at(self) -> float:
        return self._times[_BEAT]

    @property
    def stop_asked_at(self) -> float:
        return self._times[_STOPPING]

    @property
    def blocker(self) -> tuple[int, float]:
        """The serial number of the job that blocks the loop, and since when it was seen there; 0: none is known."""
        return self._numbers[_BLOCKER], self._times[_BLOCKS_SINCE]

    def claims(self) -> set[int]:
        """The claims whose answers are not listed yet."""
        return {claim for claim in self._numbers[_CLAIMS : _CLAIMS + _CLAIMS_MAX] if claim}

    def entries(self, *states: int) -> dict[int, Entry]:
        """The entries in these states, by slot."""
        found = {}
        for slot in range(min(self.capacity, self._numbers[_TOP])):
            state = self._states[slot]
            if state in states:
                found[slot] = Entry(state, *_ENTRY.unpack_from(self._memory, _ENTRIES_AT + slot * 64))
        return found

    def task_of(self, entry: Entry) -> tuple[str, float]:
        """Its name, and its timeout in seconds."""
        if not 0 < entry.task < _TASKS_MAX:
            return "?", inf
        timeout, name = _TASK.unpack_from(self._memory, _TASKS_AT + entry.task * _TASK.size)
        return name.rstrip(b"\x00").decode("utf-8", "replace"), timeout

    def running(self, at_most: int = 20) -> list[tuple[str, UUID]]:
        """Task and job of started jobs, the oldest first."""
        begun = sorted(self.entries(BEGUN).values(), key=lambda entry: entry.began_at)
        return [(self.task_of(entry)[0], UUID(bytes=entry.job_id)) for entry in begun[:at_most]]

    def blocking_allowed(self) -> float:
        """How long the loop may be silent: at most its limit, and the timeouts of all running jobs if all have one."""
        loop_at = self.loop_at
        over = [entry.began_at + self.task_of(entry)[1] for entry in self.entries(BEGUN).values()]
        overstayed = max([*over, loop_at]) - loop_at + _TIMEOUT_MARGIN_SECONDS if over else inf
        return min(self._times[_SILENCE], overstayed)


def size(capacity: int) -> int:
    return _ENTRIES_AT + capacity * (_ENTRY.size + _RENEWAL.size + 1)


def _allocate(fd: int, length: int) -> None:
    """Reserve all of it now. A file that only has its length gets its pages when they are first written, and a process that
    writes to one for which there is no room is killed by SIGBUS.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, length)
    else:  # pragma: no cover - not on Linux
        os.pwrite(fd, bytes(length), 0)


class NamelessFile:
    """Closed when nobody refers to it any more: another thread may be about to map it."""

    def __init__(self, name: str) -> None:
        self._fd = nameless_file(name)

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)
