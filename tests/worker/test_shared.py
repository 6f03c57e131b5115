"""The memory that a worker shares with its companion and its parent, and what they make of it when asked for its health."""

from __future__ import annotations

import os
from math import inf
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from faultline.worker.companion import health
from faultline.worker.companion.memory import BEGUN, ENDED, NamelessFile, Shared
from faultline.worker.lease.held_lease import HeldLease
from tests.worker.full_disk import full_file_system
from tests.worker.test_companion_guards import hold

if TYPE_CHECKING:
    from pathlib import Path


class Left(HeldLease):
    """Another thread lets go of it while it is looked at."""

    looks: int

    @property
    def slot(self) -> int:
        self.looks -= 1
        return 0 if self.looks >= 0 else -1

    @slot.setter
    def slot(self, _: int) -> None: ...


@pytest.mark.parametrize("write", ["begin", "ended"])
def test_what_another_thread_has_let_go_of_meanwhile_stays_free(write: str) -> None:
    shared, left = Shared.create(1), Left.__new__(Left)
    left.lease, left.looks, left.epoch = hold().lease, 1, 0

    shared.begin(left, 1.0) if write == "begin" else shared.ended(left)

    shared._numbers[7] = 1  # noqa: SLF001 - how many slots were ever in use
    assert shared.entries(BEGUN, ENDED) == {}


def test_more_than_fits_is_not_listed_and_a_place_is_used_again() -> None:
    shared, holds = Shared.create(2), [hold(1), hold(2), hold(3)]
    shared.enter(holds, 7)
    for one in holds:
        shared.begin(one, 1.0)
    slots = [one.slot for one in holds]
    shared.leave(holds[:1])
    listed = shared.entries(BEGUN)
    shared.enter(holds[:1], 8)

    assert slots == [0, 1, -1]
    assert [entry.job_id for entry in listed.values()] == [UUID(int=2).bytes]
    assert holds[0].slot == 0


def test_tasks_and_queues_beyond_what_fits_disturb_nothing() -> None:
    shared = Shared.create(300)
    shared.timeout_of = lambda _: 10.0
    holds = [hold(number, task=f"task {number}") for number in range(1, 301)]
    shared.enter(holds, 7)
    for one in holds:
        shared.begin(one, 1.0)
    for feed in range(5000):
        shared.claim_sent(feed, 7)
        shared.claim_answered(feed)

    entries = list(shared.entries(BEGUN).values())
    assert [entry.job_id for entry in entries] == [UUID(int=number).bytes for number in range(1, 301)]
    assert [shared.task_of(entry) for entry in entries[:255]] == [(f"task {number}", 10.0) for number in range(1, 256)]
    assert {shared.task_of(entry) for entry in entries[255:]} == {("?", inf)}


@pytest.mark.parametrize(
    ("loop_at", "heartbeat_at", "stop_asked_at", "found"),
    [
        (99.0, 99.0, 0.0, (True, True)),
        (30.0, 99.0, 0.0, (False, False)),
        (99.0, 80.0, 0.0, (True, False)),
        (99.0, 99.0, 98.0, (True, False)),
    ],
)
def test_live_needs_the_loop_and_ready_the_database(
    loop_at: float, heartbeat_at: float, stop_asked_at: float, found: tuple[bool, bool]
) -> None:
    shared = Shared.create(10)
    shared.set_loop_timeout(60.0)
    shared.loop_ticked(loop_at)
    shared.beat_answered(heartbeat_at)
    shared.stop_asked(stop_asked_at)

    assert (health.live([shared], 100.0)[0], health.ready([shared], 100.0)[0]) == found


def test_all_that_are_expected_must_be_ready() -> None:
    shared = Shared.create(1)
    shared.set_loop_timeout(60.0)
    shared.loop_ticked(99.0)
    shared.beat_answered(99.0)

    assert [health.ready([shared], 100.0, expected=expected)[0] for expected in (1, 2)] == [True, False]


def test_a_parent_looks_at_the_children_that_are_alive_and_have_begun() -> None:
    alive = {1: NamelessFile("first"), 2: NamelessFile("not written yet")}
    written = Shared.create(1, os.dup(alive[1].fileno()))
    written.loop_ticked(7.0)
    children = health.Children(lambda: alive)
    seen = [[one.loop_at for one in children.workers()]]
    del alive[1]
    seen.append([one.loop_at for one in children.workers()])

    assert seen == [[7.0], []]


def test_memory_without_room_is_refused_instead_of_killing_who_writes_to_it(tmp_path: Path) -> None:
    with full_file_system(tmp_path) as folder:
        fd = os.open(folder / "shared", os.O_RDWR | os.O_CREAT)

        with pytest.raises(OSError, match="No space left"):
            Shared.create(10_000, fd)


@pytest.mark.parametrize(
    ("dying", "expected", "found"),
    [([], 2, (True, True)), (["it"], 2, (True, False)), (["it", "it"], 2, (False, False))],
)
def test_processes_that_die_in_a_loop_are_not_ready_and_none_of_them_is_live(
    dying: list[str], expected: int, found: tuple[bool, bool]
) -> None:
    workers = [Shared.create(1) for _ in range(expected)]
    for shared in workers:
        shared.loop_ticked(99.0)
        shared.beat_answered(99.0)
    live, about = health.live(workers, 100.0, expected=expected, dying=dying)
    ready, _ = health.ready(workers, 100.0, expected=expected, dying=dying)

    assert (live, ready) == found
    assert about.get("dying", []) == dying
