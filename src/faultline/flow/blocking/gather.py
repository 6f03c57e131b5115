# Generated from src/faultline/flow/gather.py by `make generate`: change that file, not this one.
"""Calls beside each other: gather, race, branches. The job waits once all of them have ended or wait."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.attempt.async_or_blocking import beside, called, happened, started, stopped
from faultline.core.errors import ChildFailed
from faultline.flow.blocking.children import Called, Calling
from faultline.flow.usage_errors import not_a_call
from faultline.history import children
from faultline.history.calls import BlockingCall, Won, stoppable, within
from faultline.history.ending import Halted, RunEnded, Waiting, is_ours, note_call
from faultline.history.program import Branch, is_under
from faultline.history.race import Contest, Heat
from faultline.store.verbs import flow as verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.history.race import Stop

#: Calls whose end only the database knows.
_WAITS = frozenset({"sleep", "signal", "children", "watch"})
_STEPS = frozenset({"step", "atomic"})
#: While steps of a race run, its waits are looked at so often. What moves for longer between two calls is not waited for.
_LOOK_SECONDS, _LOOK_SECONDS_MIN = 1.0, 0.02


class Begun(NamedTuple):
    """What a branch runs."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def begun_of(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun:
    """Of a `partial`, its function with all arguments: a later run must give those, too."""
    if isinstance(fn, partial):
        return Begun(fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
    return Begun(fn, args, kwargs)


class Bounded(NamedTuple):
    """A map of which so many children are open at once. It is a branch: its pages are calls inside of it."""

    called: Called
    concurrency: int


class Several(tuple[Any, ...]):  # noqa: SLOT001 - it has one more attribute
    """Calls to run beside each other."""

    #: How many of them may have begun and not ended. None: all.
    concurrency: int | None = None


class Stand(NamedTuple):
    """How a call that ran beside others stands."""

    value: Any = None
    error: Exception | Halted | None = None
    waits: list[dict[str, Any]] | None = None


class Beside(Calling):
    """How calls run beside each other."""

    def _run_branch(self, call: BlockingCall[Any]) -> Any:
        program = call.branch.program
        program.refuse_if_ended(call.branch)
        self._know(program)
        program.came_to_branch(call.number, call.name)
        fn, args, kwargs = call.what if isinstance(call.what, Begun) else (self._map_by_pages, call.what, {})
        branch = Branch(program, call.number, threading.current_thread(), call.branch, call.made_at)
        branch.contest, branch.rank, branch.races = call.contest, call.rank, call.races
        branch.signature = (*call.branch.signature, f"{call.name.replace('/', ' ')}:{call.digest or ''}")
        return self._in_branch(branch, fn, args, kwargs)

    def _in_branch(self, branch: Branch, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function as a branch. Whatever comes out of it, the branch remembers that it waits."""
        try:
            with within(branch):
                result = called(fn, args, kwargs)
        except BaseException as error:
            if branch.ended is None or branch.program.ended is not None or not is_ours(error):
                raise
        else:
            if branch.ended is None:
                return result
        raise Waiting(branch.waits)

    def _run_gather(self, call: BlockingCall[Any]) -> list[Any]:
        calls: Several = call.what
        self._know(call.branch.program)
        most = min(calls.concurrency or len(calls), len(calls))
        handover = _Handover(call.contest, most)
        runs = [partial(self._stands, one) for one in calls]
        # One that waits keeps its turn: so many are open at once, in this run and over all runs.
        stands: list[Stand | None] = beside(runs, most, lambda stand: stand.waits is not None, handover.ends)
        begun = [(one, stand) for one, stand in zip(calls, stands, strict=True) if stand is not None]
        error = next((stand.error for _, stand in begun if stand.error is not None), None)
        if error is not None:
            undos = [stand.waits for _, stand in begun if stand.waits and call.branch.program.are_undos(stand.waits)]
            if undos:
                # A saga in one of them is not undone yet.
                raise Waiting([wait for waits in undos for wait in waits])
            self._abandon(call.branch, begun)
            for one in [one for one, stand in zip(calls, stands, strict=True) if stand is None]:
                for number in _numbers(one):
                    call.branch.program.pass_over(number)
            raise error
        if any(stand.waits is not None for _, stand in begun):
            self._ends(call.branch, begun)
            raise Waiting(_together(begun, has_more=len(begun) < len(calls)))
        return [stand.value for _, stand in begun]

    def _ends(self, branch: Branch, begun: Sequence[tuple[BlockingCall[Any], Stand]]) -> None:
        """Branches that have ended while others wait: what they wrote to streams is kept."""
        over = [number for one, stand in begun if stand.waits is None for number in _numbers(one)]
        recorded = branch.program.written.ends(over)
        if recorded:
            self._record_here(branch, *recorded)

    def _abandon(self, branch: Branch, begun: Sequence[tuple[BlockingCall[Any], Stand]]) -> None:
        """One has failed, so nobody waits for the others any more: with the failure, they are recorded as closed."""
        waiting = [number for one, stand in begun if stand.waits for number in _numbers(one)]
        for one in branch.program.open_in(waiting):
            branch.program.defer(branch, one)

    def _map_by_pages(self, called: Called, concurrency: int) -> list[Any]:
        """The children of a map, of which so many are open at once.

        Two pages are open, or more small ones. When the oldest has ended, the next one is enqueued.
        """
        jobs, size = called.jobs, max(1, concurrency // 2)
        pages = [jobs[first : first + size] for first in range(0, len(jobs), size)]
        found: list[Any] = []
        errors: dict[int, str] = {}
        begun: deque[BlockingCall[Any]] = deque()
        for page in pages:
            if len(begun) >= concurrency // size:
                self._take_page(begun, found, errors)
            if errors:
                break
            call: BlockingCall[Any] = self._make("children", page[0].task, page, called._replace(jobs=page))
            # One that is closed was open when another had failed, which is taken before it.
            with stoppable(call.branch, call.shown), contextlib.suppress(Waiting):
                self._spawned(call, self._arrived(call))
            begun.append(call)
        while begun:
            self._take_page(begun, found, errors)
        if errors:
            raise children.failed(self.id, jobs[0].task, len(jobs), errors)
        return found

    def _take_page(self, begun: deque[BlockingCall[Any]], found: list[Any], errors: dict[int, str]) -> None:
        """Wait for the oldest page. `errors`: by the index in the whole map."""
        call = begun.popleft()
        try:
            found += call.now()
        except ChildFailed as error:
            if call.what.policy == "fast":
                # Nobody waits for the others: recorded with the failure, as those beside a call that failed.
                for one in call.branch.program.open_in([other.number for other in begun]):
                    call.branch.program.defer(call.branch, one)
                begun.clear()
            errors.update({len(found) + index: text for index, text in error.errors.items()})
            found += [None] * len(call.what.jobs)

    # Races

    def _run_race(self, call: BlockingCall[Any]) -> Won[Any]:
        known = self._arrived(call)
        calls: Several = call.what
        program = call.branch.program
        if known is not None and known.outcome == "done":
            winner = int(known.result["winner"])
            for number in _numbers_but(calls, winner):
                program.pass_over(number)
            # What it wrote to streams was written before the race was recorded.
            program.written.is_over(_numbers(calls[winner]))
            return Won(winner, _value_of(self._stands(calls[winner])))
        if program.saga_failure is not None:
            # Nobody wins any more. Each of them is let go as far as the history goes, so that its steps are undone.
            self._run_gather(call)
            program.halt(call.branch)
        heat = self._first(call, calls)
        if program.saga_failure is not None:
            stands = [stand for stand in heat.stands.values() if stand is not None]
            undos = [wait for stand in stands for wait in stand.waits or () if program.are_undos([wait])]
            if undos:
                raise Waiting(undos)
            program.halt(call.branch)
        if heat.winner is None:
            waits = [wait for _, stand in sorted(heat.stands.items()) for wait in stand.waits]
            several = len(calls) > 1
            raise self._wait(call, *({**wait, "together": False} if several else wait for wait in waits))
        lost = _numbers_but(calls, heat.winner)
        passed = [
            one for one in program.pending if any(is_under(one.call["number"], won) for won in _numbers(calls[heat.winner]))
        ]
        if not self._is_in_transaction():
            program.drop_pending(passed)
        recorded = call.as_recorded(outcome="done", result={"winner": heat.winner})
        self._record(call, *(one.call for one in passed), *program.open_in(lost), recorded)
        for number in lost:
            program.pass_over(number)
        return Won(heat.winner, _value_of(heat.stands[heat.winner]))

    def _first(self, call: BlockingCall[Any], calls: Several) -> Heat:
        """Run the calls of a race until one has ended, or all of them wait."""
        around, program = call.contest, call.branch.program
        contest = around or Contest(threading.Event)
        for index, one in enumerate(calls):
            one.contend(contest, (*call.rank, index), (*call.races, call.number))
        heat = Heat(contest, len(calls), inner=around is not None)
        runners = [started(partial(self._contends, heat, index, one)) for index, one in enumerate(calls)]
        try:
            if around is None:
                self._decide(contest, heat)
            else:
                happened(heat.is_decided, None, self._is_over)
        finally:
            if heat.winner is not None:
                program.close(_numbers_but(calls, heat.winner))
                contest.stop_all(lambda stop: program.closed(stop.number), program.is_closed)
            if around is None:
                contest.is_over = True
                contest.stop_all(lambda stop: program.closed(stop.number))
            stopped(runners)
        if heat.error is not None and heat.winner is None:
            raise heat.error
        return heat

    def _contends(self, heat: Heat, index: int, call: BlockingCall[Any]) -> None:
        stand: Stand | None = None
        error: BaseException | None = None
        try:
            stand = self._stands(call)
        except BaseException as raised:  # noqa: BLE001 - the race raises it
            error = raised
        heat.ends(index, stand, error)

    def _decide(self, contest: Contest, heat: Heat) -> None:
        """Let go on what was over first, then what follows from that, until the race is decided."""
        look_at = 0.0
        looked: set[str] = set()
        while True:
            is_quiet = happened(contest.is_quiet, _LOOK_SECONDS, self._is_over)
            if heat.winner is not None or heat.error is not None:
                return
            self._refuse_if_over()
            contest.has_moved.clear()
            waits = sorted(contest.waits(), key=lambda stop: stop.rank)
            # Only time ends a sleep: before then, there is nothing to ask for.
            asleep = all(stop.wait["kind"] == "sleep" and stop.number in looked for stop in waits)
            if waits and (not asleep or self._monotonic() >= look_at):
                stops = sorted([*waits, *contest.ended_steps()], key=lambda stop: stop.rank)
                found = self._ask(verbs.first_over(self._hold.lease, [stop.wait for stop in stops]))
                if found.number is not None:
                    # What is over next is asked for when that has moved on.
                    contest.goes_on(found.number, found.status, found.result)
                    continue
                looked = {stop.number for stop in waits}
                left = _LOOK_SECONDS if found.seconds_left is None else found.seconds_left
                # With frozen time, it is as far off at each look.
                look_at = self._monotonic() + max(left, _LOOK_SECONDS_MIN)
            if contest.let_work():
                continue
            if contest.has_moved.is_set():
                continue
            if is_quiet and not contest.working:
                contest.stop_all(lambda stop: Waiting([stop.wait]))
                happened(heat.is_decided, None, self._is_over)
                return
            seconds = max(0.0, min(_LOOK_SECONDS, look_at - self._monotonic())) if waits else None
            happened(contest.has_moved, seconds, self._is_over)

    def _in_turn(self, call: BlockingCall[Any], **words: Any) -> tuple[str, Any]:
        self._refuse_in_transaction(call)
        self._pass_failures(call)
        wait = call.as_wait(**{word: value for word, value in words.items() if value is not None})
        contest: Contest = call.contest  # type: ignore[assignment]  # whoever calls this has looked
        return self._stopped(contest, contest.stop_to_wait(call.number, call.rank, wait))

    def _stopped(self, contest: Contest, stop: Stop) -> tuple[str, Any]:
        try:
            # A thread that has lost is not cancelled: it may come here when the race is over.
            if not contest.is_over and not self._program().is_closed(stop.number):
                happened(stop.went_on, None, self._is_over)
        finally:
            contest.leave(stop)
        if isinstance(stop.answer, BaseException):
            raise stop.answer
        if stop.answer is None:
            self._refuse_if_over()
            raise self._program().closed(stop.number)
        return stop.answer

    def _runs(self, kind: str) -> Any:
        run = super()._runs(kind)
        return partial(self._run_work, run) if kind in _STEPS else run

    def _run_work(self, run: Callable[[BlockingCall[Any]], Any], call: BlockingCall[Any]) -> Any:
        """A step. In a race it begins when nothing was over before, and its end has its turn as that of a wait has."""
        contest, program = call.contest, call.branch.program
        if contest is None:
            return run(call)
        self._know(program)
        begins = not program.has_ended(call.number)
        step = {"number": call.number, "kind": call.kind, "name": call.name, "digest": call.digest}
        if begins:
            self._stopped(contest, contest.stop_to_work(call.number, call.rank, step, ended=False))
            contest.works(1)
        result, error = None, None
        try:
            result = run(call)
        except Exception as raised:  # noqa: BLE001 - raised below, in its turn
            error = raised
        finally:
            if begins:
                contest.works(-1)
        self._stopped(contest, contest.stop_to_work(call.number, call.rank, step, ended=True))
        if error is not None:
            raise error
        return result

    def _stands(self, call: BlockingCall[Any]) -> Stand:
        """Run a call beside others. What ends the whole run is raised."""
        call.begun = True
        try:
            value = call.run(call)
            call.branch.program.halt_behind(call.branch)
            return Stand(value=value)
        except Waiting as waiting:
            return Stand(waits=waiting.waits)
        except Halted as error:
            # The others have sagas of their own to undo.
            return Stand(error=error)
        except RunEnded:
            raise
        except Exception as error:  # noqa: BLE001 - whoever awaits all of them gets it
            note_call(error, call.number)
            return Stand(error=error)

    def _beside(self, what: str, calls: Sequence[BlockingCall[Any]], concurrency: int | None = None) -> Several:
        for one in calls:
            if not isinstance(one, BlockingCall):
                raise not_a_call(self.id, what, one, BlockingCall)
            one.begin()
        several = Several(calls)
        several.concurrency = concurrency
        return several


class _Handover:
    """Of several that run in place of the one that awaits them, the last to end lets that one move on."""

    def __init__(self, contest: Contest | None, count: int) -> None:
        self._contest = contest
        self._left = count
        self._lock = threading.Lock()
        if contest is not None and count:
            contest.moves(count - 1)

    def ends(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left and self._contest is not None:
                self._contest.moves(-1)


def _value_of(ended: Stand) -> Any:
    if ended.error is not None:
        raise ended.error
    if ended.waits is not None:
        raise Waiting(ended.waits)
    return ended.value


def _together(waiting: Sequence[tuple[BlockingCall[Any], Stand]], *, has_more: bool) -> list[dict[str, Any]]:
    """What a gather waits for. Its plain calls are awaited together, so that the job is woken once for all of them.

    :param has_more: Others begin when one of them has ended: then one is enough.
    """
    found: list[dict[str, Any]] = []
    nested = sum(stand.waits is not None for _, stand in waiting) == 1
    for one, stand in waiting:
        is_plain = one.kind in _WAITS
        # The waits of a branch are its own: it goes on when one of them is over.
        found += [
            {**wait, "together": not has_more and (is_plain or (nested and bool(wait.get("together"))))}
            for wait in stand.waits or ()
        ]
    return found


def _numbers(call: BlockingCall[Any]) -> list[str]:
    """Of what is closed with a call: a gather has no number itself, and the calls of a race are not inside it."""
    inner = [number for one in call.what for number in _numbers(one)] if call.kind in ("gather", "race") else []
    return [call.number, *inner] if call.number else inner


def _numbers_but(calls: Sequence[BlockingCall[Any]], winner: int) -> list[str]:
    """The same of all but one of them."""
    return [number for index, one in enumerate(calls) if index != winner for number in _numbers(one)]
