"""Nobody waits for a batch to fill, and nothing that is put is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from faultline.worker.write.batcher import Batcher
from tests.worker.working import Moved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Wire:
    """Sends that end when they are told to."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.may_end = asyncio.Event()

    async def send(self, batch: list[int]) -> None:
        self.sent.append(batch)
        await self.may_end.wait()


def run_moved(story: Callable[[Moved], Awaitable[T]]) -> T:
    """Run it on a loop whose clock the story puts forward."""
    with asyncio.Runner(loop_factory=Moved) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Moved)

        async def run() -> T:
            return await story(loop)

        return runner.run(run())


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_first_goes_out_at_once_and_the_others_together_while_it_is_under_way() -> None:
    async def story() -> list[list[int]]:
        wire = Wire()
        batcher = Batcher(wire.send)
        batcher.put(1)
        await _turns()
        for n in (2, 3, 4):
            batcher.put(n)
        await _turns()
        assert wire.sent == [[1]]
        wire.may_end.set()
        await batcher.flushed()
        return wire.sent

    assert asyncio.run(story()) == [[1], [2, 3, 4]]


def test_a_batch_is_bounded_in_number_and_in_size_and_keeps_the_order() -> None:
    async def story(**words: int) -> list[list[int]]:
        wire = Wire()
        wire.may_end.set()
        batcher = Batcher(wire.send, size=lambda item: item, **words)
        for n in (5, 5, 5, 30, 5):
            batcher.put(n)
        await batcher.flushed()
        return wire.sent

    assert asyncio.run(story(items_max=2)) == [[5, 5], [5, 30], [5]]
    assert asyncio.run(story(size_max=10)) == [[5, 5], [5], [30], [5]]  # what is too large alone goes alone


def test_flushed_waits_for_what_is_put_meanwhile_and_returns_at_once_when_idle() -> None:
    async def story() -> list[list[int]]:
        wire = Wire()
        batcher = Batcher(wire.send)
        await batcher.flushed()
        batcher.put(1)
        flushing = asyncio.create_task(batcher.flushed())
        await _turns()
        batcher.put(2)
        assert not flushing.done()
        wire.may_end.set()
        await flushing
        return wire.sent

    assert asyncio.run(story()) == [[1], [2]]


def test_a_busy_sender_rests_between_large_batches_and_an_idle_one_never() -> None:
    async def story(items: int) -> list[int]:
        wire = Wire()
        wire.may_end.set()
        batcher = Batcher(wire.send, rest_seconds=0.05)
        for n in range(items):
            batcher.put(n)
        await _turns()
        batcher.put(-1)
        await _turns()
        batcher.put(-2)
        await batcher.flushed()
        return [len(batch) for batch in wire.sent]

    assert asyncio.run(story(3)) == [3, 1, 1]
    assert asyncio.run(story(300)) == [300, 2]


def test_a_sender_that_was_cancelled_before_its_first_step_leaves_nothing_behind() -> None:
    async def story() -> list[list[int]]:
        wire = Wire()
        wire.may_end.set()
        batcher = Batcher(wire.send)
        batcher.put(1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await _turns()
        await batcher.flushed()
        return wire.sent

    assert asyncio.run(story()) == [[1]]


def test_what_comes_after_the_end_is_not_sent() -> None:
    """A worker has closed its connections by then: it would open new ones, and nobody would close them."""

    async def story() -> list[list[int]]:
        wire = Wire()
        batcher = Batcher(wire.send)
        await batcher.close()
        batcher.put(1)
        await _turns()
        await batcher.flushed()
        return wire.sent

    assert asyncio.run(story()) == []


def test_a_send_that_swallows_its_cancellation_does_not_hold_up_the_end() -> None:
    async def story() -> None:
        may_end = asyncio.Event()

        async def send(_: list[int]) -> None:
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()

        batcher = Batcher(send)
        batcher.put(1)
        await _turns()
        try:
            async with asyncio.timeout(60):
                await batcher.close()
        finally:
            may_end.set()

    asyncio.run(story())


def test_what_can_wait_goes_out_at_once_after_a_pause_and_then_together() -> None:
    async def story(loop: Moved) -> list[list[int]]:
        wire = Wire()
        wire.may_end.set()
        batcher = Batcher(wire.send, gather_seconds=0.03)
        for n in range(5):
            batcher.put_patiently(n)
            await _turns()
            loop.moved += 0.0125
        loop.moved += 0.03
        await _turns()
        assert wire.sent == [[0], [1, 2, 3], [4]]
        loop.moved += 0.03  # a pause
        batcher.put_patiently(5)
        await _turns()
        return wire.sent

    assert run_moved(story) == [[0], [1, 2, 3], [4], [5]]


def test_what_cannot_wait_takes_all_others_along_at_once() -> None:
    async def story(loop: Moved) -> list[list[int]]:
        wire = Wire()
        wire.may_end.set()
        batcher = Batcher(wire.send, gather_seconds=0.03)
        for n in range(3):
            batcher.put_patiently(n)
            await _turns()
        loop.moved += 0.01
        batcher.put(3)
        await _turns()
        batcher.put_patiently(4)
        await _turns()
        loop.moved += 0.025  # it has come, but not that of the second
        await _turns()
        assert wire.sent == [[0], [1, 2, 3]]
        await batcher.flushed()
        return wire.sent

    assert run_moved(story) == [[0], [1, 2, 3], [4]]


def test_what_can_wait_does_not_wait_while_an_item_that_cannot_is_under_way() -> None:
    """One that cannot wait may have come while the last batch was being sent."""

    async def story(_: Moved) -> list[list[int]]:
        wire = Wire()
        batcher = Batcher(wire.send, gather_seconds=0.03)
        for n in range(3):
            (batcher.put if n == 1 else batcher.put_patiently)(n)
            await _turns()
        wire.may_end.set()
        await _turns()
        return wire.sent

    assert run_moved(story) == [[0], [1, 2]]


def test_many_that_can_wait_do_not_pile_up() -> None:
    async def story(_: Moved) -> list[int]:
        wire = Wire()
        wire.may_end.set()
        batcher = Batcher(wire.send, gather_seconds=0.03)
        for n in range(150):
            batcher.put_patiently(n)
            await _turns()
        await batcher.close()
        return [len(batch) for batch in wire.sent]

    assert run_moved(story) == [1, 100]
