"""Simulated hosts: each runs the real worker or client, and can crash, freeze, lose its wires, and come back."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from faultline.app.application import Faultline
from faultline.core.errors import FaultlineError
from faultline.core.host import Host
from faultline_proof.world.loop import MACHINE, Machine
from faultline_proof.world.weather import Weather
from faultline_proof.world.wire import AsyncWire, BlockingWire

if TYPE_CHECKING:
    from faultline_proof.world.loop import VirtualLoop
    from faultline_proof.world.server import Server
    from faultline_proof.world.weather import Record


Life = Callable[[Faultline], Coroutine[Any, Any, None]]


#: A beat that is later than this was frozen.
_LATE_SECONDS = 0.5


class Beating:
    """A pulse in a task of its own machine: it beats at the instant it is due, also while the event loop is blocked. After
    a freeze it may be the last to wake up: it is a thread of its own, and what the others send meanwhile is sent without
    a lease.
    """

    def __init__(self, tick: Callable[[], float], chance: random.Random, machine: Machine) -> None:
        self._tick = tick
        self._chance = chance
        self._machine = machine
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        context = contextvars.copy_context()
        context.run(MACHINE.set, self._machine)
        self._task = asyncio.get_running_loop().create_task(self._run(), context=context)

    def wake(self) -> None:
        self._woken.set()

    async def stop(self, last: Callable[[], None]) -> None:
        if self._task is not None:
            self._task.cancel()
        last()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            seconds = self._tick()
            due = asyncio.get_running_loop().time() + seconds
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                pass
            if asyncio.get_running_loop().time() > due + _LATE_SECONDS and self._chance.random() < 0.5:  # noqa: PLR2004 - a coin
                await asyncio.sleep(self._chance.uniform(0.0, 1.0))


class SimulatedHost:
    """A machine that is given a life: a coroutine that is started again after every crash."""

    def __init__(self, name: str, loop: VirtualLoop, server: Server, record: Record, chance: random.Random) -> None:
        self.name = name
        self.weather = Weather(name, chance, record)
        self._loop = loop
        self._server = server
        self._record = record
        self._chance = chance
        #: This machine's time of day is wrong by hours, and nobody may care.
        self._skew_seconds = chance.uniform(-50_000, 50_000)
        self._machine = Machine(name)
        #: The threads beside the event loop: they live and freeze with the machine, and go on when only its loop is blocked.
        self._beside = Machine(name, loop_of=self._machine)
        self._wires: list[AsyncWire | BlockingWire] = []
        self._life: Life | None = None
        #: Kept, so that nothing of a dead process is ever cleaned up.
        self._graves: list[Any] = []

    def live(self, life: Life) -> None:
        """Start the process, and start it again whenever it has crashed."""
        self._life = life
        self._machine = Machine(self.name)
        self._beside = Machine(self.name, loop_of=self._machine)
        context = contextvars.copy_context()
        context.run(MACHINE.set, self._machine)
        self._graves.append(context.run(lambda: self._loop.create_task(self._supervise(life))))

    async def _supervise(self, life: Life) -> None:
        """A process that ends by itself, since it found no database when it came up, is started again."""
        while True:
            app = Faultline("postgresql://simulated", host=self._host())
            self._graves.append(app)
            try:
                await life(app)
            except FaultlineError as error:
                self._record.note(self.name, "exit", type(error).__name__)
                await asyncio.sleep(1)
            else:
                return

    @property
    def up(self) -> bool:
        return not self._machine.dead and not self._machine.frozen

    async def crash(self, down_seconds: float, unnoticed_seconds: float) -> None:
        """`kill -9`, or the power. The server hears of it later; until then sessions, locks and transactions stay."""
        self._record.note(self.name, "crash")
        for machine in (self._machine, self._beside):
            self._loop.kill(machine)
            self._graves.append(machine)
        wires, self._wires = self._wires, []
        self._loop.call_later(unnoticed_seconds, lambda: [wire.lose() for wire in wires])
        await asyncio.sleep(down_seconds)
        self._record.note(self.name, "boot")
        if self._life is not None:
            self.live(self._life)

    async def freeze(self, seconds: float) -> None:
        self._record.note(self.name, "freeze", f"{seconds:.1f} s")
        machines = (self._machine, self._beside)
        for machine in machines:
            self._loop.freeze(machine)
        await asyncio.sleep(seconds)
        self._record.note(self.name, "thaw")
        for machine in machines:
            self._loop.thaw(machine)

    async def block_loop(self, seconds: float) -> None:
        """A task that never waits: nothing runs on the event loop, and the threads beside it go on."""
        self._record.note(self.name, "loop blocked", f"{seconds:.1f} s")
        machine = self._machine
        self._loop.freeze(machine)
        await asyncio.sleep(seconds)
        self._record.note(self.name, "loop free")
        self._loop.thaw(machine)

    async def cut_off(self, seconds: float) -> None:
        self._record.note(self.name, "cut off", f"{seconds:.1f} s")
        self.weather.reachable = False
        await asyncio.sleep(seconds)
        self._record.note(self.name, "reachable")
        self.weather.reachable = True

    async def slow_down(self, seconds: float) -> None:
        self._record.note(self.name, "slow", f"{seconds:.1f} s")
        self.weather.slow = True
        await asyncio.sleep(seconds)
        self.weather.slow = False

    def _host(self) -> Host:
        pulse_chance = random.Random(self._chance.random())  # noqa: S311 - likewise
        return Host(
            monotonic=self._loop.time,
            seconds=lambda: 1_893_456_000.0 + self._loop.time() + self._skew_seconds,
            chance=random.Random(self._chance.random()),  # noqa: S311 - chance that can be repeated
            connect=self._connect,
            aconnect=self._aconnect,
            pulse=lambda tick, _: Beating(tick, pulse_chance, self._beside),
            companion=False,
        )

    def _connect(self, _: str, **__: Any) -> BlockingWire:
        wire = BlockingWire(self._server, self.weather)
        self._wires.append(wire)
        return wire

    async def _aconnect(self, _: str, **__: Any) -> AsyncWire:
        await asyncio.sleep(self.weather.travel_seconds())
        wire = AsyncWire(self._server, self.weather)
        self._wires.append(wire)
        return wire
