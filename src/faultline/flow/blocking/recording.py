# Generated from src/faultline/flow/recording.py by `make generate`: change that file, not this one.
"""What a program does at each call: find it recorded, record it, or wait. Everything is written under the lease.

What keeps a call from being recorded ends the run, whatever the program catches: `faultline.history.ending`.
"""

from __future__ import annotations

import copy
import re
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import orjson
import psycopg

from faultline import values
from faultline.attempt.async_or_blocking import give_way, paused
from faultline.attempt.attempt import Attempt
from faultline.attempt.error_attribution import is_caused_by
from faultline.attempt.storable_text import result_text, text_of
from faultline.core import events
from faultline.core.errors import (
    ConfigError,
    DatabaseBusy,
    FaultlineError,
    JobRejected,
    StaleLease,
    StepFailed,
    UnreadableJson,
)
from faultline.history import children
from faultline.history.calls import BlockingCall, current, here
from faultline.history.ending import CodeChanged, Interrupted, Waiting
from faultline.history.program import Program
from faultline.store import jsontext
from faultline.store.translation import is_about_data, is_about_the_program
from faultline.store.verbs import flow as verbs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from faultline.attempt.blocking_transaction import BlockingTransaction
    from faultline.attempt.lease_protocol import Held
    from faultline.core.host import Host
    from faultline.core.model import Submission
    from faultline.history.program import Branch, Recorded
    from faultline.store.database import Database
    from faultline.store.statement import Statement

T = TypeVar("T")
#: The arguments of a function, as a tuple, or jobs.
_Given: TypeAlias = "tuple[Any, ...] | Sequence[Submission] | None"

#: The class of the error that a text begins with.
_KIND = re.compile(r"[^\s:]+")
_INSTEAD = "Catch it in the step, and raise one of your own with what the program needs, as annotated attributes"

#: Steps inside of these may have to be undone, so a program is let into them although a saga has failed.
_PASSED_TO_UNDO = ("saga", "race")
#: A row that a call needs is locked: ask again, so often and after so long.
_LOCKED_TIMES, _LOCKED_SECONDS = 40, 0.25


class Recording(Attempt):
    """The calls of a job's program. `_write` and `transaction` are the job's."""

    _database: Database

    def __init__(self, hold: Held, host: Host, timeout_seconds: float | None) -> None:
        super().__init__(hold, host, timeout_seconds)
        self._chance = host.chance
        self._runner: object = None
        if hold.lease.in_flow and hold.lease.fencing_token > 1:
            # An earlier attempt may have recorded calls: whoever completes the job must know them.
            self.program = Program(self.id)

    def run_by(self, runner: object) -> None:
        """The asyncio task or thread in which the task's function runs: the program makes its calls there."""
        self._runner = runner
        if self.program is not None:
            self.program.root.owner = runner

    def _make(self, kind: str, name: str, given: _Given = None, what: Any = None) -> BlockingCall[Any]:
        """A call at the next position of the branch that makes it.

        :param given: What a later run must give again.
        """
        self._refuse_if_over()
        program = self._program()
        branch = here(program, current())
        program.refuse_if_ended(branch)
        own = self._own_names
        digest: str | None = None
        if isinstance(given, tuple):
            digest = values.digest(*given, own=own)
        elif given is not None:
            digest = children.digest_of_jobs(given, own)
        return BlockingCall(branch, kind, name, digest, what, self._runs(kind))

    def _make_now(self, kind: str, name: str, given: _Given = None, what: Any = None) -> Any:
        """Make a call and run it."""
        return self._make(kind, name, given, what).now()

    @cached_property
    def _own_names(self) -> tuple[bytes, ...]:
        """What tells this job from others, as it stands in JSON."""
        return tuple(orjson.dumps(name)[1:-1] for name in (str(self.id), self.id.hex, self.idempotency_key))

    def _runs(self, kind: str) -> Any:
        """The method that runs a call of this kind. A saga does not run by itself."""
        return getattr(self, f"_run_{kind}", None)

    def _program(self) -> Program:
        if self.program is None:
            self.program = Program(self.id, self._runner)
        return self.program

    def _know(self, program: Program) -> None:
        if program.is_known:
            return
        lease = self._hold.lease
        # Nobody but an earlier attempt has recorded anything.
        is_new = lease.fencing_token <= 1 or not lease.in_flow
        rows = [] if is_new else self._ask(verbs.history(lease.job_id))
        if not program.is_known:
            # A stream may have asked meanwhile.
            program.know(rows)

    # At a call

    def _arrived(self, call: BlockingCall[Any]) -> Recorded | None:
        """What is recorded of this call."""
        program = call.branch.program
        program.refuse_if_ended(call.branch)
        self._know(program)
        known = program.came_to(call.number, call.kind, call.name, call.digest)
        forgotten = program.take_forgotten()
        if forgotten:
            self._record_at(call.branch, 0, forgotten, None)
        if known is not None and program.gives_way():
            give_way()
        if call.kind not in _PASSED_TO_UNDO and (known is None or known.outcome in (None, "closed")):
            program.halt(call.branch)
        return known

    def _is_in_transaction(self) -> bool:
        """Whether what is written now is rolled back with the job's own transaction."""
        return self._own_transaction(threading.current_thread) is not None

    def _refuse_in_transaction(self, call: BlockingCall[Any]) -> None:
        if self._is_in_transaction():
            raise ConfigError(
                f"job {self.id}: call {call.number} ({call.name}) waits inside job.transaction(), which would keep the job's"
                " row locked; end the transaction before it"
            )

    def _wait(self, call: BlockingCall[Any], *waits: dict[str, Any]) -> Waiting:
        """The call waits. What the program has passed before is recorded."""
        self._refuse_in_transaction(call)
        self._pass_failures(call)
        return Waiting(list(waits))

    def _pass_failures(self, call: BlockingCall[Any]) -> None:
        """The program went on after these: record them before what follows is."""
        due = call.branch.program.due(call.branch, call.made_at)
        if any(one.call["outcome"] in ("failed", "closed") or one.call["kind"] in ("patch", "saga") for one in due):
            self._record(call)

    def _record(self, call: BlockingCall[Any], *calls: dict[str, Any], text: str | None = None) -> None:
        """Write these calls into the history, and what the program has passed before. `text`: the last one's result."""
        self._record_at(call.branch, call.made_at, calls, text)

    def _record_here(self, branch: Branch, *calls: dict[str, Any]) -> None:
        """The same for what has no position of its own."""
        self._record_at(branch, branch.program.next_moment(), calls, None)

    def _record_at(self, branch: Branch, moment: int, calls: Sequence[dict[str, Any]], text: str | None) -> None:
        program = branch.program
        due = program.due(branch, moment)
        parts = [jsontext.encode(one, "a call") for one in (*(one.call for one in due), *calls)]
        if text is not None:
            parts[-1] = f'{parts[-1][:-1]},"result":{text}}}'
        unwritten = self._ask(verbs.record_text(self._hold.lease, f"[{','.join(parts)}]"))
        if unwritten.stale:
            refusal = unwritten.stale[0]
            raise program.end(Interrupted(self._lost("record", refusal.reason.value, refusal.current_token)))
        if not self._is_in_transaction():
            # There, it is sent again with what follows: the transaction may roll back, and what has ended stays as it is.
            program.drop_pending(due)

    def _ask(self, statement: Statement[T]) -> T:
        """Send a statement of the engine. If the database, the lease or a changed program fails it, the run is over."""
        times = 1
        while True:
            try:
                return self._write(statement)
            except StaleLease as error:
                lost = self._lost(statement.name, error.reason or "lease_lost", error.current_token)
                raise self._program().end(Interrupted(lost)) from error
            except DatabaseBusy as error:
                if times >= _LOCKED_TIMES or self._is_in_transaction():
                    # An aborted transaction can ask nothing more.
                    raise self._program().end(Interrupted(error)) from error
                times += 1
                paused(_LOCKED_SECONDS, self._is_over)
            except (FaultlineError, psycopg.Error) as error:
                if is_about_the_program(error):
                    raise self._program().end(CodeChanged(str(error))) from error
                if is_about_data(error):
                    raise
                raise self._program().end(Interrupted(error)) from error

    def _read_clock(self) -> None:
        """Know the time of the database. As with a statement of the engine, what fails it ends the run."""
        asked_at = self._monotonic()
        try:
            self._database.facts_and_time()
        except (FaultlineError, psycopg.Error) as error:
            self._blame(error, asked_at)
            raise self._program().end(Interrupted(error)) from error

    # Values

    def _text(self, value: Any, what: str) -> str:
        """The JSON text of a result. One that cannot be stored ends the job: another attempt would end the same way."""
        try:
            text = result_text(value, what, (self._database.facts()).result_bytes_max)
        except FaultlineError as error:
            raise self._program().end(Interrupted(error)) from error
        self._program().weigh(len(text))
        return text

    def _remembered(self, call: BlockingCall[Any], known: Recorded, returns: Any, raises: values.Classes = ()) -> Any:
        """The result of a step that has ended, or its error."""
        if known.outcome == "failed":
            raise self._failure(call, known.error or "", known.tries, known.result, raises)
        return self._read(call, known.result, returns)

    def _read(self, call: BlockingCall[Any], value: Any, returns: Any) -> Any:
        """A recorded value, as the annotation says."""
        self._refuse_unreadable(call, value)
        try:
            return values.typed(value, returns)
        except values.Misfit as error:
            raise self._does_not_fit(call, "result", error) from error

    def _does_not_fit(self, call: BlockingCall[Any], what: str, error: values.Misfit) -> BaseException:
        return call.branch.program.end(
            CodeChanged(
                f"job {self.id}: the program has changed: the {what} of call {call.number} ({call.name!r}) does not fit its"
                f" annotation now: {error}. Let the annotation accept it, or bring the old code back"
            )
        )

    def _refuse_unreadable(self, call: BlockingCall[Any], value: Any) -> None:
        if isinstance(value, jsontext.Unreadable):
            raise UnreadableJson(
                f"job {self.id}: the result of call {call.number} ({call.name}) was not written by Faultline for Python, and"
                f" cannot be read: {value.why}"
            )

    def _ended_by(self, call: BlockingCall[Any], error: Exception, tries: int, raises: values.Classes = ()) -> BaseException:
        """What to raise for an error of a step's function that no further try follows.

        Raise it outside of the `except` block: with the function's own error as its context, this run would have more than
        a later one, and could go another way.
        """
        program = call.branch.program
        if self.lease_lost or is_caused_by(error, self._hold.failed_by or ()):
            return program.end(Interrupted(error))
        text, kept = text_of(error), None
        if isinstance(error, raises):
            try:
                kept = self._kept(error, raises)
            except JobRejected as refusal:
                first, _, frames = text.partition("\n")
                text = f"{first}. It is declared, but cannot be remembered as itself: {refusal}. {_INSTEAD}\n{frames}"
        events.emit("step_failed", job_id=self.id, step=call.name, tries=tries, error=text)
        program.defer(call.branch, call.as_recorded(outcome="failed", error=text, tries=tries, result=kept))
        return self._failure(call, text, tries, kept, raises)

    def _kept(self, error: Exception, raises: values.Classes) -> Any:
        """What is recorded of a declared exception, or `JobRejected`."""
        what = type(error).__name__
        written = values.write_exception(error, raises)
        try:
            limit = (self._database.facts()).result_bytes_max
        except FaultlineError as lost:
            raise self._program().end(Interrupted(lost)) from lost
        text = result_text(written, what, limit)
        self._program().weigh(len(text))
        return values.as_stored(jsontext.decode(text))

    def _failure(self, call: BlockingCall[Any], text: str, tries: int, kept: Any, raises: values.Classes) -> BaseException:
        """The error of a step, from nothing but what is recorded of it: every run gets the same one."""
        first, _, frames = text.partition("\n")
        try:
            error = None if kept is None else values.read_exception(copy.deepcopy(kept), raises)
        except values.Misfit as misfit:
            return self._does_not_fit(call, "error", misfit)
        if error is None:
            times = "" if tries <= 1 else f" after {tries} tries"
            kind = _KIND.match(first)
            error = StepFailed(
                f"step {call.name} failed{times}: {first}", step=call.name, kind=kind[0] if kind is not None else ""
            )
        if frames:
            error.add_note(f"in step {call.name}:\n{frames}")
        return error

    # The job's

    def _write(self, statement: Statement[T]) -> T:
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[BlockingTransaction]:
        raise NotImplementedError
