# Generated from src/faultline/flow/sagas.py by `make generate`: change that file, not this one.
"""Sagas: what their parts did is undone, in reverse, when the job cannot go on. That is recorded before the first undo."""

from __future__ import annotations

import copy
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar, overload

from faultline.attempt.blocks import block
from faultline.attempt.error_attribution import is_caused_by
from faultline.attempt.outcomes import ContinueAsNew, Outcome
from faultline.attempt.storable_text import storable
from faultline.core.errors import ChildFailed, ConfigError, StepFailed
from faultline.core.model import Failure
from faultline.flow.blocking.children import Called, Watched
from faultline.flow.blocking.gather import Beside
from faultline.flow.blocking.steps import Stepped
from faultline.flow.usage_errors import check_given, check_step, check_task, check_undo
from faultline.history.calls import made
from faultline.history.ending import Halted, Interrupted, Waiting, is_final
from faultline.history.program import Branch, SagaFailure, position
from faultline.store.verbs import flow as verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.flow.step_functions import Step
    from faultline.flow.task_protocol import CallableTask
    from faultline.history.calls import BlockingCall
    from faultline.history.program import Program, Recorded

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Part(NamedTuple):
    """A step or a child that was begun, and how to undo it."""

    #: Branches begin theirs in any order, and all runs must undo them in the same one: that of the numbers.
    call: BlockingCall[Any]
    undo: Step[..., Any]
    #: Its result is the first argument; None if it is not known whether the part was done.
    result: list[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class BlockingSaga:
    """What is undone together: `async with job.saga() as saga`."""

    def __init__(
        self, program: Program, make: Callable[..., BlockingCall[Any]], begin: Callable[[BlockingCall[Any]], Any]
    ) -> None:
        self._program = program
        self._make = make
        self._begin = begin
        self.begun: list[Part] = []
        self.failures: list[Exception] = []
        #: It is recorded that it has failed.
        self.has_failed = False

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
        """Run a step. If it fails, or a later part, it is undone.

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
        check_given(args, kwargs)
        check_undo(self._program.job_id, "saga.do", undo, args, kwargs)
        what = Stepped(step, args, kwargs, begun_first=undo is not None)
        call = self._make("step", step.name, (args, kwargs), what)
        return self._part(call, undo, args, kwargs)  # type: ignore[no-any-return]

    @overload
    def call(self, task: CallableTask[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def call(self, task: CallableTask[[], R], *, undo: Step[[R | None], Any]) -> R: ...
    @overload
    def call(self, task: CallableTask[[A], R], a: A, /, *, undo: Step[[R | None, A], Any]) -> R: ...
    @overload
    def call(self, task: CallableTask[[A, B], R], a: A, b: B, /, *, undo: Step[[R | None, A, B], Any]) -> R: ...
    @overload
    def call(self, task: CallableTask[[A, B, C], R], a: A, b: B, c: C, /, *, undo: Step[[R | None, A, B, C], Any]) -> R: ...
    @overload
    def call(
        self, task: CallableTask[[A, B, C, D], R], a: A, b: B, c: C, d: D, /, *, undo: Step[[R | None, A, B, C, D], Any]
    ) -> R: ...
    def call(  # type: ignore[misc]  # PEP 612 has no way to add a keyword to P
        self, task: CallableTask[..., R], *args: Any, undo: Step[..., Any] | None = None, **kwargs: Any
    ) -> R:
        """Enqueue a job once, as a child, and wait for its result. If it fails, or a later part, it is undone.

        A child that has not ended by then is cancelled first. Beside `undo`, a type checker takes positional arguments, up
        to four.

        :param task: The task of the child.
        :param a: The first argument of the task.
        :param b: The second.
        :param c: The third.
        :param d: The fourth.
        :param args: Positional arguments of the task.
        :param undo: Called with the child's result, and then its arguments. The result is None if the child did not
            succeed: then its work was perhaps done in part. Default: there is nothing to undo.
        :param kwargs: Named arguments of the task.
        """
        check_task(f"job {self._program.job_id}: ", "saga.call", task, "run it with saga.do({name}, ...)")
        check_given(args, kwargs)
        check_undo(self._program.job_id, "saga.call", undo, args, kwargs)
        job = task.bind(*args, **kwargs)
        what = Called([job], "raise", task.returns, alone=True)
        call = self._make("children", job.task, [job], what)
        return self._part(call, undo, args, kwargs)  # type: ignore[no-any-return]

    def _part(
        self, call: BlockingCall[Any], undo: Step[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The call as the program gets it. What it does later with the arguments is not for the undo."""
        if undo is not None:
            args, kwargs = unshared(args), unshared(kwargs)
        call.run = partial(self._run, call.run, undo, args, kwargs)
        return made(call)

    def _run(
        self,
        run: Callable[[BlockingCall[Any]], Any],
        undo: Step[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: BlockingCall[Any],
    ) -> Any:
        program, result = self._program, list[Any]()
        if undo is not None and (program.saga_failure is None or program.was_begun(call.number)):
            self._begin(call)
            self.begun.append(Part(call, undo, result, args, kwargs))
        try:
            value = run(call)
        except Exception as error:
            if program.has_failed(call.number):
                self.failures.append(error)
            raise
        if undo is not None:
            result.append(unshared(value))
        return value

    def fail(self, reason: str) -> NoReturn:
        """Undo the parts of this saga, although none of them failed.

        :param reason: Shown as the error of the job.
        """
        error = StepFailed(reason, step="saga", kind="Aborted")
        self.failures.append(error)
        raise error


class Sagas(Beside):
    """How sagas are undone."""

    @block
    def saga(self) -> Iterator[BlockingSaga]:
        """What its parts did is undone, in reverse, when an error leaves it that no further attempt can repair.

        That is: a part has failed, a further attempt would meet the same error again, or there is none. Otherwise an error
        of the code between the parts, of the database or of a deployment undoes nothing, and the next attempt goes on.
        """
        call = self._make("saga", "saga")
        call.begin()
        known = self._arrived(call)
        program = call.branch.program
        saga = BlockingSaga(program, self._make, partial(self._begin_saga, call, known))
        try:
            yield saga
        except (Exception, Halted) as error:
            self._leave_by(saga, call, error)
            raise
        if program.saga_failure is not None:
            self._compensate(saga, call)
            program.halt(call.branch)
        elif program.open_sagas.pop(call.number, None) is not None:
            # History once the program has gone on from here.
            program.defer(call.branch, call.as_recorded(outcome="done"))

    def _begin_saga(self, call: BlockingCall[Any], known: Recorded | None, part: BlockingCall[Any]) -> None:
        """Record it before its first part begins: by that row, the worker and operators know what to undo."""
        program = call.branch.program
        if self._is_in_transaction():
            raise ConfigError(
                f"job {self.id}: call {part.number} ({part.name}) has an undo and runs inside job.transaction(), which would"
                " take it back without one; run it before the transaction, or after it"
            )
        if call.number in program.open_sagas or (known is not None and known.outcome == "done"):
            return
        if known is None:
            self._record(call, call.as_recorded())
        program.open_sagas[call.number] = call.as_recorded()

    def _leave_by(self, saga: BlockingSaga, call: BlockingCall[Any], error: Exception | Halted) -> None:
        """An error leaves the saga. Whatever it is, the program cannot catch it and go on with half of what it began."""
        program = call.branch.program
        if program.ended is not None or call.branch.ended is not None or isinstance(error, ContinueAsNew):
            return
        if program.saga_failure is None:
            failure = _failure(saga, error)
            if failure is None:
                # The next attempt goes on. If there is none, the worker records that the saga has failed.
                raise program.end(Interrupted(error)) from error
            self._fail_saga(saga, call, failure)
        self._compensate(saga, call)
        if not isinstance(error, Halted):
            raise Halted(f"job {self.id}: the saga failed: {error}") from error

    def _fail_saga(self, saga: BlockingSaga, call: BlockingCall[Any], failure: SagaFailure) -> None:
        program = call.branch.program
        if not saga.has_failed and not program.has_ended(call.number):
            # With the failure of the step, which happened after the saga began.
            call.made_at = program.next_moment()
            words = {} if failure.then == "fail" else {"result": {"then": failure.then}}
            self._record(call, call.as_recorded(outcome="failed", error=failure.reason, **words))
        saga.has_failed = True
        program.saga_failure = program.saga_failure or failure

    def _compensate(self, saga: BlockingSaga, call: BlockingCall[Any]) -> None:
        program = call.branch.program
        if not saga.begun or call.number not in program.open_sagas or program.saga_failure is None:
            return
        self._fail_saga(saga, call, program.saga_failure)
        if program.saga_failure.error is not None and program.has_open_saga_under(call.branch):
            # That branch waits, or was stopped. The next run is due at once, and undoes what is inside of it first.
            raise call.branch.suspend([call.as_wait()])
        branch = Branch(program, call.number, threading.current_thread(), call.branch)
        branch.undoes = True
        try:
            self._in_branch(branch, self._undo_all, (saga, branch), {})
        except Waiting as waiting:
            raise call.branch.suspend(waiting.waits) from None
        except Exception as other:
            # Whatever the program catches around its saga: this is not for it.
            raise program.end(Interrupted(other)) from other
        program.open_sagas.pop(call.number)

    def _undo_all(self, saga: BlockingSaga, branch: Branch) -> None:
        """Undo all that can be."""
        program = branch.program
        for part in sorted(saga.begun, key=lambda one: position(one.call.number), reverse=True):
            result = part.result or self._known_result(part.call, branch)
            if not result:
                continue
            given = (result[0], *part.args)
            what = Stepped(part.undo, given, part.kwargs)
            call = self._make("step", f"undo {part.undo.name}"[:200], (given, part.kwargs), what)
            try:
                call.now()
            except Exception as error:
                if not program.has_failed(call.number):
                    raise
                program.undo_failures.append(error)
                # Not history: the next attempt tries it again.
                program.drop_pending([late for late in program.pending if late.call["number"] == call.number])
            else:
                program.undone.append(part.undo.name)

    def _known_result(self, call: BlockingCall[Any], branch: Branch) -> list[Any]:
        """What is known of a part that gave no result, in a list: of a step nothing. A child is waited for.

        Empty: the child was never enqueued.
        """
        if call.kind != "children":
            return [None]
        history = branch.program.history or {}
        known, watched = history.get(call.number), history.get(branch.number(branch.counter + 1))
        call_id = call.call_id if known is None else known.call_id
        found = [] if call_id is None else self._ask(verbs.outcomes(call_id, -1, 1))
        if not found:
            return []
        child, returns = found[0], call.what.returns
        if child.state in {"queued", "running"} or (watched is not None and watched.kind == "watch"):
            # It was cancelled with the failure of the saga, which takes a moment, or undoes a saga of its own.
            wait = self._make("watch", "watch", (child.job_id,), Watched(child.job_id, returns))
            try:
                return [wait.now()]
            except ChildFailed:
                return [None]
        return [self._read(call, child.result, returns) if child.state == "succeeded" else None]


def _failure(saga: BlockingSaga, error: Exception | Halted) -> SagaFailure | None:
    """Why the saga has failed by this error; None: the next attempt may go on."""
    if isinstance(error, Outcome):
        decided = error.decided(lambda: 0.0)
        if not isinstance(decided, Failure) or decided.then == "retry":
            return None
        return SagaFailure(_first_line(decided.error), decided.then, error)
    if is_caused_by(error, saga.failures) or is_final(error):
        return SagaFailure(_first_line(str(error)), "fail", error)
    return None


def unshared(value: T) -> T:
    """A copy, so that nobody changes it in passing; what cannot be copied, as it is."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - as a lock, or what a library forbids to copy
        return value


def _first_line(text: str) -> str:
    return storable(text.partition("\n")[0])
