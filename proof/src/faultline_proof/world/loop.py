"""An event loop whose time is a number, and whose machines can be frozen or killed.

Every callback belongs to the machine in whose context it was asked for. A frozen machine's callbacks wait for the thaw; a
dead one's are never called, not even to clean up: that is what `kill -9` means.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Machine:
    """What callbacks belong to. `postponed` are those of a frozen one, `buried` those of a dead one.

    The buried are kept: Python would otherwise end their coroutines, and so let a dead process clean up after itself.
    """

    def __init__(self, name: str, *, loop_of: Machine | None = None) -> None:
        self.name = name
        #: Of a thread beside the event loop: the machine whose loop it is. What a thread hands to that loop runs there.
        self.loop_of = loop_of
        self.frozen = False
        self.dead = False
        self.postponed: list[asyncio.Handle] = []
        self.buried: list[asyncio.Handle] = []


MACHINE: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time moves only when every task waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.set_exception_handler(lambda _, __: None)
        self._selector.select = self._pass  # type: ignore[attr-defined]

    def _pass(self, timeout: float | None = None) -> list[Any]:
        """Nobody here waits for a socket, so there is nothing to look for: only time passes."""
        if timeout:
            self._now += timeout
        return []

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = context or contextvars.copy_context()
        machine = context.get(MACHINE)
        if machine is None or not (machine.frozen or machine.dead):
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        (machine.buried if machine.dead else machine.postponed).append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = context or contextvars.copy_context()
        machine = context.get(MACHINE)
        if machine is not None and machine.loop_of is not None:
            context.run(MACHINE.set, machine.loop_of)
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = context or contextvars.copy_context()
        return super().call_at(when, self._due, context, callback, args, context=context)

    def _due(self, context: contextvars.Context, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        machine = context.get(MACHINE)
        if machine is None or not (machine.frozen or machine.dead):
            callback(*args)
        else:
            self.call_soon(callback, *args, context=context)

    def freeze(self, machine: Machine) -> None:
        machine.frozen = True
        machine.postponed += self._take_out(machine)

    def thaw(self, machine: Machine) -> None:
        machine.frozen = False
        postponed, machine.postponed = machine.postponed, []
        if not machine.dead:
            self._ready.extend(postponed)  # type: ignore[attr-defined]

    def kill(self, machine: Machine) -> None:
        machine.dead = True
        machine.buried += [*self._take_out(machine), *machine.postponed]

    def _take_out(self, machine: Machine) -> list[asyncio.Handle]:
        """Take a machine's callbacks out of what is to be run next. Their places are kept: the loop is counting them."""
        taken = []
        ready = self._ready  # type: ignore[attr-defined]
        for place, handle in enumerate(ready):
            if handle._context is not None and handle._context.get(MACHINE) is machine:  # noqa: SLF001
                taken.append(handle)
                ready[place] = asyncio.Handle(lambda: None, (), self, contextvars.Context())
        return taken
