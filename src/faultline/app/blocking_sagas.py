# Generated from src/faultline/app/async_sagas.py by `make generate`: change that file, not this one.
"""Sagas: steps that are undone, in reverse, when one of them fails. The decision is recorded before the first undo."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar, overload

from faultline import values
from faultline.app.blame import is_caused_by
from faultline.app.blocking_beside import Beside
from faultline.app.blocking_stepping import Stepped
from faultline.app.slips import check_given, check_step
from faultline.core.errors import StepFailed
from faultline.flow.ending import Interrupted, Undone, Waiting
from faultline.flow.program import Branch, position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.app.steps import Step
    from faultline.flow.calls import BlockingCall
    from faultline.flow.program import Program

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Undoing(NamedTuple):
    """How to undo a step that was begun."""

    #: Of the step. Branches begin theirs in any order, and all runs must undo them in the same one.
    number: str
    undo: Step[..., Any]
    #: Its result is the first argument; None if it is not known whether the step was done.
    result: list[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class BlockingSaga:
    """Steps that are undone together: `async with job.saga() as saga`."""

    def __init__(self, program: Program, make: Callable[..., BlockingCall[Any]], decided: str | None) -> None:
        self._program = program
        self._make = make
        #: The error by which it failed in an earlier run.
        self._decided = decided
        self.begun: list[Undoing] = []
        self.failures: list[StepFailed] = []

    @overload
    def do(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def do(self, step: Step[[], R], *, undo: Step[[R | None], Any]) -> R: ...
    @overload
    def do(self, step: Step[[A], R], a: A, /, *, undo: Step[[R | None, A], Any]) -> R: ...
    @overload
    def do(self, step: Step[[A, B], R], a: A, b: B, /, *, undo: Step[[R | None, A, B], Any]) -> R: ...
    @overload
    def do(self, step: Step[[A, B, C], R], a: A, b: B, c: C, /, *, undo: Step[[R | None, A, B, C], Any]) -> R: ...
    @overload
    def do(
        self, step: Step[[A, B, C, D], R], a: A, b: B, c: C, d: D, /, *, undo: Step[[R | None, A, B, C, D], Any]
    ) -> R: ...
    def do(  # type: ignore[misc]  # PEP 612 has no way to add a keyword to P
        self, step: Step[..., R], *args: Any, undo: Step[..., Any] | None = None, **kwargs: Any
    ) -> R:
        """Run a step. If it fails, or a later one of this saga, it is undone.

        Beside `undo`, a type checker takes positional arguments, up to four.

        :param step: What to run.
        :param a: The first argument of the step.
        :param b: The second.
        :param c: The third.
        :param d: The fourth.
        :param args: Positional arguments of the step.
        :param undo: Called with the step's result, and then its arguments. The result is None if the step failed or was
            interrupted: then it was perhaps done. Default: there is nothing to undo.
        :param kwargs: Named arguments of the step.
        """
        check_step(self._program.job_id, "saga.do", step)
        if undo is not None:
            check_step(self._program.job_id, "saga.do(undo=...)", undo)
        check_given(args, kwargs)
        what = Stepped(step, args, kwargs, begun_first=undo is not None)
        call = self._make("step", step.name, values.digest(args, kwargs), what)
        result: list[Any] = []
        if undo is not None and (self._decided is None or self._program.was_begun(call.number)):
            self.begun.append(Undoing(call.number, undo, result, args, kwargs))
        if self._decided is not None and not self._program.has_ended(call.number):
            self._program.pass_over(call.number)
            self.fail(self._decided)
        try:
            result.append(call.now())
        except StepFailed as error:
            self.failures.append(error)
            raise
        given: R = result[0]
        return given

    def fail(self, reason: str) -> NoReturn:
        """Undo the steps of this saga, although none of them failed.

        :param reason: Shown as the error of the job.
        """
        error = StepFailed(reason, step="saga", kind="Aborted")
        self.failures.append(error)
        raise error


class Sagas(Beside):
    """How sagas are undone."""

    @contextmanager
    def saga(self) -> Iterator[BlockingSaga]:
        """Steps that are undone in reverse when one of them fails. Then the job has failed, without further attempts.

        Only an error of its own steps undoes it, not one of the code between them, of the database or of a deployment.
        """
        call = self._make("saga", "saga")
        call.begin()
        known = self._arrived(call)
        saga = BlockingSaga(call.branch.program, self._make, known.error if known is not None else None)
        try:
            yield saga
        except Exception as error:
            if not is_caused_by(error, saga.failures):
                raise
            self._compensate(saga, call, error)

    def _compensate(self, saga: BlockingSaga, call: BlockingCall[Any], error: Exception) -> None:
        program = call.branch.program
        first = str(error).partition("\n")[0]
        if not program.has_ended(call.number):
            # With the failure of the step, which happened after the saga began.
            call.made_at = program.next_moment()
            self._record(call, call.as_recorded(outcome="failed", error=first))
        branch = Branch(program, call.number, threading.current_thread(), call.branch)
        try:
            undone, failures = self._in_branch(branch, self._undo_all, (saga,), {})
        except Waiting as waiting:
            raise call.branch.suspend(waiting.waits) from None
        except Exception as other:  # noqa: BLE001 - whatever it is, it ends the run
            # Whatever the program catches around its saga: this is not for it.
            raise program.end(Interrupted(other)) from error
        text = f"the saga failed: {first}; undone by: {', '.join(undone) or 'nothing'}"
        if failures:
            again = StepFailed(f"{text}; not undone: {'; '.join(map(str, failures))}", step="saga", kind="UndoFailed")
            # The attempt fails by it, and the next one tries these undos again.
            raise program.end(Interrupted(again)) from error
        raise program.end(Undone(text)) from error

    def _undo_all(self, saga: BlockingSaga) -> tuple[list[str], list[StepFailed]]:
        """Undo all that can be: the names of the undos that are done, and the errors of the others."""
        undone: list[str] = []
        failures: list[StepFailed] = []
        for one in sorted(saga.begun, key=lambda begun: position(begun.number), reverse=True):
            given = (one.result[0] if one.result else None, *one.args)
            what = Stepped(one.undo, given, one.kwargs)
            call = self._make("step", f"undo {one.undo.name}"[:200], values.digest(given, one.kwargs), what)
            try:
                call.now()
            except StepFailed as error:
                failures.append(error)
                # Not history: the next attempt tries it again.
                program = call.branch.program
                program.drop_pending([late for late in program.pending if late.call["number"] == call.number])
            else:
                undone.append(one.undo.name)
        return undone, failures
