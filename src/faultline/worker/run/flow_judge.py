"""Decide how an attempt of a flow ended. Its program remembers that it waits, whatever came out of the task.

An exception that ends a run passes through code that others wrote: a task group wraps it, a cancellation replaces it, a
careless `except` swallows it. So the program is asked first. What came out counts only if it is an error of the task's own.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultline.attempt.storable_text import storable, text_of
from faultline.core import events
from faultline.core.model import Failure
from faultline.core.pause import jittered
from faultline.history import ending as flow
from faultline.history.ending import TAKE_NUMBER, CodeChanged, Interrupted, RunEnded, Undone, calls_in, is_final
from faultline.history.program import Program
from faultline.store import jsontext, verbs
from faultline.worker.write.endings import Completed, Failed, Released, StartedOver, Suspended

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from faultline.app.tasks import Task
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.run.judge import Judge
    from faultline.worker.write.endings import Ending

#: A job whose program has changed, if the database cannot say how long it should wait.
_CHANGED_SECONDS = 5.0
_WHY_LENGTH_MAX = 2000


class FlowJudge:
    def __init__(
        self, judge: Judge, database: AsyncDatabase, tasks: Mapping[str, Task[..., Any]], chance: random.Random
    ) -> None:
        self._judge = judge
        self._database = database
        self._tasks = tasks
        self._chance = chance
        self._code: str | None = None

    async def misfit(self, hold: HeldLease, task: Task[..., Any]) -> Ending | None:
        """The ending of a job that has called, if its task cannot call any more; None: it can run."""
        if task.takes_job or hold.lease.fencing_token == 1:
            # The first run of a job has no history.
            return None
        program = Program(hold.lease.job_id)
        try:
            history: Any = await self._database.run(verbs.history(hold.lease.job_id))
        except Exception as error:  # noqa: BLE001 - the job has not begun
            return self._judge.interrupted(hold, error)
        program.know(history)
        changed = program.unpassed()
        return None if changed is None else await self._changed(hold, f"{changed} (the task takes no job now)")

    async def judged(
        self, hold: HeldLease, task: Task[..., Any], program: Program, ending: Ending | None, raised: BaseException | None
    ) -> Ending | None:
        """`ending`: what it would be without a flow."""
        given = await self._decided(hold, task, program, ending, raised)
        if isinstance(given, Failed) and (given.failure.then != "retry" or hold.lease.attempt >= hold.lease.max_attempts):
            # Python does not say that a `return` left a saga: with an outcome that ends the job, nothing else follows it.
            left = program.sagas_left_last() if raised is None else []
            given = await self._undoing(hold, task, given, [*program.open_sagas.values(), *left])
        if not isinstance(given, Failed):
            return given
        # A retry goes back to the calls by whose errors the job has failed.
        calls = program.sagas() if program.is_undone else calls_in(raised)
        return replace(given, failure=replace(given.failure, calls=tuple(calls))) if calls else given

    async def _undoing(
        self, hold: HeldLease, task: Task[..., Any], ending: Failed, sagas: list[dict[str, Any]]
    ) -> Ending | None:
        """The job would end with what its sagas have begun. Record that they have failed: its next attempts undo them."""
        if not sagas:
            return ending
        failure = ending.failure
        words: dict[str, Any] = {"outcome": "failed", "error": failure.error.partition("\n")[0]}
        if failure.then == "cancel":
            words["result"] = {"then": "cancel"}
        try:
            # If the lease is lost, so is what follows. Otherwise the job has further attempts by this.
            await self._database.run(verbs.record(hold.lease, [{**saga, **words} for saga in sagas]))
        except Exception as error:  # noqa: BLE001 - the job may not end before that
            hold.failed_by = [*(hold.failed_by or ()), error]
            return self._judge.raised(hold, task, error, first=True)
        return Failed(hold, Failure(failure.error, delay_seconds=0.0))

    async def _decided(
        self, hold: HeldLease, task: Task[..., Any], program: Program, ending: Ending | None, raised: BaseException | None
    ) -> Ending | None:
        if isinstance(program.ended, CodeChanged):
            # Whatever its `finally` blocks raised: the run was over before.
            return await self._changed(hold, str(program.ended))
        # `ContinueAsNew` forgets the history: a program that did not come to all of it must not.
        completes = isinstance(ending, Completed | StartedOver)
        verdict = await self._verdict(hold, program, None if completes else raised, completes=completes)
        match verdict:
            case None:
                is_kept = not completes or hold.completed
                return ending if is_kept else await self._abandoned(hold, task, program) or ending
            case CodeChanged():
                return await self._changed(hold, str(verdict))
            case flow.Suspended() | flow.TooFew():
                # The latter came out of a step in a group of exceptions: no call has seen it.
                waits = program.waits() or [wait for one in flow.too_few(raised) for wait in one.waits]
                return Suspended(hold, jsontext.encode(merged(waits), "waits"))
            case Interrupted():
                return self._judge.raised(hold, task, verdict.error, first=True)
            case Undone():
                text = text_of(verdict) if verdict.then == "fail" else str(verdict)
                return Failed(hold, Failure(text, then=verdict.then))
            case _ if is_final(verdict):
                # Another attempt would read the same history and raise the same error.
                return Failed(hold, Failure(text_of(verdict), then="fail"))
        own = own_error(verdict)
        return ending if own is raised else self._judge.raised(hold, task, own, first=True)

    async def _abandoned(self, hold: HeldLease, task: Task[..., Any], program: Program) -> Ending | None:
        """Close what nobody waits for: children of a job that completes would outlive it. None: that is done."""
        calls = program.abandoned()
        if calls:
            try:
                # If the lease is lost, so is what follows.
                await self._database.run(verbs.record(hold.lease, calls))
            except Exception as error:  # noqa: BLE001 - the job may not complete before that
                hold.failed_by = [*(hold.failed_by or ()), error]
                return self._judge.raised(hold, task, error, first=True)
        return None

    async def _verdict(
        self, hold: HeldLease, program: Program, raised: BaseException | None, *, completes: bool
    ) -> BaseException | None:
        if not program.is_known and completes:
            # The task made no call at all, so nobody has read what it called before.
            try:
                history = await self._database.run(verbs.history(program.job_id))
            except Exception as error:  # noqa: BLE001 - nobody knows whether the job may complete
                hold.failed_by = [*(hold.failed_by or ()), error]
                return Interrupted(error)
            program.know(history)
        return program.verdict(raised, completes=completes)

    async def _changed(self, hold: HeldLease, why: str) -> Released:
        """Keep the job and its attempts: a worker whose code fits may take it. The database says how long to wait."""
        lease, why = hold.lease, storable(why)[:_WHY_LENGTH_MAX]
        try:
            pause = await self._database.run(verbs.program_changed(lease, self._digest(), why))
        except Exception as error:  # noqa: BLE001 - the pause is not worth an attempt
            events.emit("program_change_not_recorded", job_id=lease.job_id, error=str(error)[:_WHY_LENGTH_MAX])
            pause = None
        pause = jittered(_CHANGED_SECONDS if pause is None else pause, self._chance)
        hold.counts.programs_changed += 1
        events.emit(
            "program_changed",
            job_id=lease.job_id,
            task=lease.task,
            token=lease.fencing_token,
            again_in=round(pause, 3),
            error=why,
        )
        return Released(hold, pause)

    def _digest(self) -> str:
        """Of the code of all tasks that this worker has: with another one, a job that did not fit is tried again soon."""
        if self._code is None:
            self._code = code_digest(self._tasks)
        return self._code


def own_error(error: BaseException) -> BaseException:
    """What the task raised: of a group, without what the engine raised to end the run, and alone if it is one."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    _, own = error.split(RunEnded)
    return own_error(own.exceptions[0]) if own is not None and len(own.exceptions) == 1 else own or error


def merged(waits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Waits for budgets have one number, whichever branch waits: of these, the one that is over first."""
    takes = [wait for wait in waits if wait["number"] == TAKE_NUMBER]
    if len(takes) < 2:  # noqa: PLR2004 - nothing to merge
        return waits
    first = min(takes, key=lambda wait: datetime.fromisoformat(wait["until"]))
    return [*(wait for wait in waits if wait["number"] != TAKE_NUMBER), first]


def code_digest(tasks: Mapping[str, Task[..., Any]]) -> str:
    """Of the files in which these tasks are written."""
    digest = hashlib.sha256()
    files = {name for task in tasks.values() if (name := _file_of(task)) is not None}
    for name in sorted(files):
        try:
            digest.update(Path(name).read_bytes())
        except OSError:
            digest.update(name.encode())
    for name in sorted(tasks):
        digest.update(name.encode())
    return digest.hexdigest()[:16]


def _file_of(task: Task[..., Any]) -> str | None:
    try:
        return inspect.getsourcefile(inspect.unwrap(task.fn))
    except (TypeError, ValueError):
        return None
