"""Calls beside each other: gather, race, branches. The job waits once all of them have ended or wait."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.app.async_calling import Calling
from faultline.app.slips import not_a_call
from faultline.app.turns import abeside, acalled, afirst
from faultline.flow.calls import Call, within
from faultline.flow.ending import RunEnded, Waiting, is_ours
from faultline.flow.program import Branch, is_under

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Calls whose end only the database knows: while steps of the same race run, they are looked at so often.
_WAITS = frozenset({"sleep", "signal", "children", "watch"})
_LOOK_SECONDS = 1.0


class Begun(NamedTuple):
    """What a branch runs."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Stand(NamedTuple):
    """How a call that ran beside others stands."""

    value: Any = None
    error: Exception | None = None
    waits: list[dict[str, Any]] | None = None


class Beside(Calling):
    """How calls run beside each other."""

    async def _run_branch(self, call: Call[Any]) -> Any:
        program = call.branch.program
        program.refuse_if_ended(call.branch)
        await self._know(program)
        program.came_to_branch(call.number, call.name)
        fn, args, kwargs = call.what
        branch = Branch(program, call.number, asyncio.current_task(), call.branch, call.made_at)
        return await self._in_branch(branch, fn, args, kwargs)

    async def _in_branch(self, branch: Branch, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function as a branch. Whatever comes out of it, the branch remembers that it waits."""
        try:
            with within(branch):
                result = await acalled(fn, args, kwargs)
        except BaseException as error:
            if branch.ended is None or branch.program.ended is not None or not is_ours(error):
                raise
        else:
            if branch.ended is None:
                return result
        raise Waiting(branch.waits)

    async def _run_gather(self, call: Call[Any]) -> list[Any]:
        calls: Sequence[Call[Any]] = call.what
        await self._know(call.branch.program)
        ended = await abeside([partial(self._stands, one) for one in calls])
        error = next((one.error for one in ended if one.error is not None), None)
        if error is not None:
            self._abandon(call.branch, calls, ended)
            raise error
        if any(one.waits is not None for one in ended):
            await self._ends(call.branch, calls, ended)
            raise Waiting(_together(calls, ended))
        return [one.value for one in ended]

    async def _ends(self, branch: Branch, calls: Sequence[Call[Any]], ended: Sequence[Stand]) -> None:
        """Branches that have ended while others wait: what they wrote to streams is kept."""
        over = [number for one, stand in zip(calls, ended, strict=True) if stand.waits is None for number in _numbers(one)]
        recorded = branch.program.written.ends(over)
        if recorded:
            await self._record_here(branch, *recorded)

    def _abandon(self, branch: Branch, calls: Sequence[Call[Any]], ended: Sequence[Stand]) -> None:
        """One has failed, so nobody waits for the others any more: with the failure, they are recorded as closed."""
        waiting = [number for one, stand in zip(calls, ended, strict=True) if stand.waits for number in _numbers(one)]
        for one in branch.program.open_in(waiting):
            branch.program.defer(branch, one)

    async def _run_race(self, call: Call[Any]) -> Any:
        known = await self._arrived(call)
        calls: Sequence[Call[Any]] = call.what
        program = call.branch.program
        if known is not None and known.outcome is not None:
            winner = int(known.result["winner"])
            for index, one in enumerate(calls):
                if index != winner:
                    for number in _numbers(one):
                        program.pass_over(number)
            # What it wrote to streams was written before the race was recorded.
            program.written.is_over(_numbers(calls[winner]))
            return _value_of(await self._stands(calls[winner]))
        waits, winner, ended = await self._first(calls)
        if ended is None:
            raise await self._wait(call, *waits)
        lost = [number for index, one in enumerate(calls) if index != winner for number in _numbers(one)]
        passed = [
            one for one in program.pending if any(is_under(one.call["number"], won) for won in _numbers(calls[winner]))
        ]
        if not self._is_in_transaction():
            program.drop_pending(passed)
        closed = program.close(lost)
        recorded = call.as_recorded(outcome="done", result={"winner": winner})
        await self._record(call, *(one.call for one in passed), *closed, recorded)
        for number in lost:
            program.pass_over(number)
        return _value_of(ended)

    async def _first(self, calls: Sequence[Call[Any]]) -> tuple[list[dict[str, Any]], int, Stand | None]:
        """The first that ends: what the others wait for, its index, and how it ended."""
        for index, one in enumerate(calls):
            if _has_ended(one):
                # It was first in a run that did not come to record it. Another one must not take a signal now.
                return [], index, await self._stands(one)
        looked_at = {index: one for index, one in enumerate(calls) if one.kind in _WAITS}
        waits: dict[int, list[dict[str, Any]]] = {}

        async def look() -> tuple[int, Stand] | None:
            """In their order: the first that is over wins, and no later one takes its signal."""
            if any(self._may_have_won(one) for one in ran):
                return None
            for index, one in looked_at.items():
                ended = await self._stands(one)
                if ended.waits is None:
                    return index, ended
                waits[index] = ended.waits
            return None

        runs = {index: partial(self._stands, one) for index, one in enumerate(calls) if one.kind not in _WAITS}
        ran = [calls[index] for index in runs]
        for one in [one for one in looked_at.values() if runs and one.kind == "sleep"]:
            await self._time(one)
        found = await look()
        if found is None and runs:
            found = await afirst(runs, look if looked_at else None, _LOOK_SECONDS, waits)
            if found is None and any(index not in waits for index in looked_at):
                ran = []
                found = await look()
        others = [wait for index, found_waits in waits.items() if found is None or index != found[0] for wait in found_waits]
        several = len(waits) > 1
        given = [{**wait, "together": False} if several else wait for wait in others]
        return given, -1 if found is None else found[0], None if found is None else found[1]

    def _may_have_won(self, call: Call[Any]) -> bool:
        """Whether a branch only repeats what is recorded as ended: perhaps it had won in a run that did not record that."""
        return call.branch.program.only_repeats(_numbers(call))

    async def _stands(self, call: Call[Any]) -> Stand:
        """Run a call beside others. What ends the whole run is raised."""
        call.begun = True
        try:
            return Stand(value=await call.run(call))
        except Waiting as waiting:
            return Stand(waits=waiting.waits)
        except RunEnded:
            raise
        except Exception as error:  # noqa: BLE001 - whoever awaits all of them gets it
            return Stand(error=error)

    def _beside(self, what: str, calls: Sequence[Call[Any]]) -> tuple[Call[Any], ...]:
        for one in calls:
            if not isinstance(one, Call):
                raise not_a_call(self.id, what, one, Call)
            one.begin()
        return tuple(calls)


def _value_of(ended: Stand) -> Any:
    if ended.error is not None:
        raise ended.error
    if ended.waits is not None:
        raise Waiting(ended.waits)
    return ended.value


def _together(calls: Sequence[Call[Any]], ended: Sequence[Stand]) -> list[dict[str, Any]]:
    """What a gather waits for. Its plain calls are awaited together, so that the job is woken once for all of them."""
    waiting = [(one, outcome.waits) for one, outcome in zip(calls, ended, strict=True) if outcome.waits is not None]
    found: list[dict[str, Any]] = []
    for one, waits in waiting:
        is_plain = one.kind in _WAITS
        # The waits of a branch are its own: it goes on when one of them is over.
        nested = len(waiting) == 1
        found += [{**wait, "together": is_plain or (nested and bool(wait.get("together")))} for wait in waits]
    return found


def _has_ended(call: Call[Any]) -> bool:
    """Whether it is recorded that this call has ended."""
    if call.kind == "gather":
        return bool(call.what) and all(_has_ended(one) for one in call.what)
    return call.branch.program.has_ended(call.number)


def _numbers(call: Call[Any]) -> list[str]:
    """Of what is closed with a call: a gather has no number itself, and the calls of a race are not inside it."""
    inner = [number for one in call.what for number in _numbers(one)] if call.kind in ("gather", "race") else []
    return [call.number, *inner] if call.number else inner
