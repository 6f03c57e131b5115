"""The program of one run: which calls it makes, and whether they are those that the job has recorded.

A call's number is its position: a counter in each branch, and the numbers of the branches around it ('3', '3.1.2'). It does
not depend on which branch is quicker, so that every run gives each call the number that the first run gave it.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError, current_task
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from faultline.core import bounds
from faultline.core.errors import ConfigError, FlowTooLong
from faultline.flow.ending import Closed, CodeChanged, Interrupted, RunEnded, Suspended, Waiting, is_ours, leaves
from faultline.flow.written import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

#: Kinds of recorded calls that are no positions of the program: pauses between the tries of a step, what a job of a graph
#: comes after, and the changes that `patched` guards.
BESIDE = frozenset({"retry", "after", "patch"})
_ADVICE = (
    "Nothing was run. Give the call its old name and arguments, guard the change with job.patched(...), or bring the old"
    " code back"
)


class Recorded(Protocol):
    """A recorded call: a row of `history`."""

    @property
    def number(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def call_id(self) -> int: ...
    @property
    def until(self) -> datetime | None: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def spawned(self) -> int: ...
    @property
    def tries(self) -> int: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> str | None: ...


class Branch:
    """A part of the program that runs in one order. The program itself is one; `job.branch` makes others."""

    def __init__(self, program: Program, path: str, owner: object, parent: Branch | None = None, began_at: int = 0) -> None:
        self.program = program
        #: The branch that made it, and the moment at which that one came to it. None: it is the program itself.
        self.parent = parent
        self.began_at = began_at
        #: The number of the call that made it; empty: the program itself.
        self.path = path
        #: The asyncio task or thread that runs it. No other may make calls in it.
        self.owner = owner
        self.counter = 0
        #: It waits: set when it cannot go on before something has happened.
        self.ended: Suspended | None = None
        #: For what it waits, as `suspend` takes it.
        self.waits: list[dict[str, Any]] = []
        #: A call that was cancelled while it ran, as messages name it. What became of it is not known, and not recorded.
        self.cancelled: str | None = None

    def next_number(self) -> str:
        self.counter += 1
        return self.number(self.counter)

    def number(self, position: int) -> str:
        return f"{self.path}.{position}" if self.path else str(position)

    def suspend(self, waits: Iterable[dict[str, Any]]) -> RunEnded:
        """It waits for these. Every later call in it raises the same."""
        self.waits = list(waits)
        if not self.waits and not self.path:
            return self.program.waits_in_vain()
        names = ", ".join(f"{wait['kind']} {wait['name']}" for wait in self.waits)
        self.ended = Suspended(f"job {self.program.job_id} waits: {names}")
        return self.ended


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A call that has ended in this run and is not recorded yet."""

    branch: Branch
    #: Only a call that was made later shows that the program went on.
    moment: int
    call: dict[str, Any]


class Program:
    """One run of a program, and the history of the runs before it."""

    def __init__(self, job_id: UUID, owner: object = None) -> None:
        self.job_id = job_id
        self.root = Branch(self, "", owner)
        #: By number. None: not loaded yet.
        self.history: dict[str, Recorded] | None = None
        #: The numbers that this run came to.
        self._passed: set[str] = set()
        #: The calls that this run came to, as `record` takes them.
        self._came: dict[str, dict[str, Any]] = {}
        #: The numbers of the calls that lost a race in this run.
        self._closed: tuple[str, ...] = ()
        #: Calls that were made and are not awaited yet, as messages call them: by number, guards of changes by name.
        self.unawaited: dict[str, str] = {}
        #: What becomes history with what is recorded next: steps that failed and whose errors the program caught, sleeps
        #: that are over.
        self.pending: list[Pending] = []
        self._moment = 0
        self._ended: RunEnded | None = None
        self._bytes = 0
        #: A call that was refused where it was made or awaited. The program may have dropped the error.
        self._misused: ConfigError | None = None
        #: Changes that this run was the first to come to: by branch and name, the position.
        self._patches: dict[tuple[str, str], int] = {}
        self.written = Written()

    # What the worker asks

    @property
    def ended(self) -> RunEnded | None:
        """Why the run is over, whatever its task returned or raised afterwards. None: it is not, by the engine."""
        return self._ended or self.root.ended

    def waits(self) -> list[dict[str, Any]]:
        """For what the job waits, as `suspend` takes it."""
        return self.root.waits

    def unpassed(self) -> str | None:
        """A message if the job has recorded calls that this run did not come to: it must not complete."""
        missed = [row for row in (self.history or {}).values() if row.kind not in BESIDE and row.number not in self._passed]
        if not missed:
            return None
        first = min(missed, key=lambda row: position(row.number))
        return self._changed(
            f"call {first.number} was {first.name!r} when this job ran it, and the program did not come to it"
        )

    def verdict(self, error: BaseException | None, *, completes: bool = True) -> BaseException | None:
        """What a run ended by: an ending of the engine, an error of the task, or None if it returned and that counts.

        The program remembers that it waits, not the exception: one that comes out as a group, that was swallowed or
        became a cancellation is a suspension all the same. An error of the task's own beside it is a failure.

        :param error: What the task raised; None: it returned.
        :param completes: Whether what it returned would complete the job; an outcome like `Snooze` does not.
        """
        if self.ended is not None:
            return self.ended if is_ours(error) else error
        if error is not None:
            endings = [leaf for leaf in leaves(error) if isinstance(leaf, RunEnded)]
            return endings[0] if endings and is_ours(error) else error
        if not completes:
            return None
        changed = self.unpassed()
        if changed is not None:
            return CodeChanged(changed)
        return self._forgotten()

    def _forgotten(self) -> ConfigError | None:
        if self._misused is not None:
            return self._misused
        if not self.unawaited:
            return None
        first = next(iter(self.unawaited.values()))
        return ConfigError(
            f"job {self.job_id}: {first} was made and never awaited, so it did not run; await it, or pass it to job.gather"
            " or job.race"
        )

    # What calls ask

    def end(self, ended: RunEnded) -> RunEnded:
        """The run is over: every later call raises this."""
        self._ended = self._ended or ended
        return self._ended

    def misused(self, how: str) -> ConfigError:
        """A call that is refused. The task does not complete its job, even if it drops the error."""
        error = ConfigError(f"job {self.job_id}: {how}")
        self._misused = self._misused or error
        return error

    def refuse_if_ended(self, branch: Branch) -> None:
        ended = self._ended or branch.ended
        if ended is not None:
            raise ended
        self.refuse_if_closed(branch.path)
        if branch.cancelled is not None:
            self._refuse_after_cancelled(branch.cancelled)

    def _refuse_after_cancelled(self, call: str) -> None:
        """The next run would not be cancelled there, and what it called afterwards would be another program."""
        runner = current_task()
        if runner is not None and runner.cancelling():
            # By the worker, which knows why, or by whoever wants the task to end. The program has caught it.
            raise CancelledError
        raise self.end(
            Interrupted(
                ConfigError(
                    f"job {self.job_id}: {call} was stopped by the program itself (asyncio.timeout, a task group). That is"
                    " not recorded, and the next run could go another way. Give the step a limit with"
                    " @app.step(timeout=...), other calls one with job.race(..., job.sleep(...)), and signals one with"
                    " job.receive(timeout=...)"
                )
            )
        )

    def close(self, numbers: Sequence[str]) -> list[dict[str, Any]]:
        """These have lost a race: no further call is made inside. What is open of them, to be recorded as closed."""
        self._closed = (*self._closed, *numbers)
        return self.open_in(numbers)

    def open_in(self, numbers: Sequence[str]) -> list[dict[str, Any]]:
        """The calls with these numbers and all inside of them that have perhaps not ended, as `record` closes them.

        A saga is not closed by itself: the next run finds the call inside it that is.
        """
        history = self.history or {}
        known = {
            number: {"number": number, "kind": row.kind, "name": row.name, "digest": row.digest}
            for number, row in history.items()
            if row.kind not in BESIDE
        }
        return [
            {**call, "outcome": "closed"}
            for number, call in sorted({**known, **self._came}.items(), key=lambda item: position(item[0]))
            if call["kind"] != "saga" and not self.has_ended(number) and any(is_under(number, one) for one in numbers)
        ]

    def refuse_if_closed(self, number: str) -> None:
        if any(is_under(number, one) for one in self._closed):
            raise Closed(f"job {self.job_id}: call {number} is part of what has lost a race; it makes no further calls")

    def waits_in_vain(self) -> RunEnded:
        """The program waits for nothing but calls that were closed when another one beside them failed."""
        return self.end(
            CodeChanged(
                self._changed("a call was closed when one beside it failed, and now that one does not fail any more")
            )
        )

    @property
    def is_known(self) -> bool:
        """Whether the history was read."""
        return self.history is not None

    @property
    def replaying(self) -> bool:
        """Whether the program has not yet come to all that the runs before it came to."""
        return any(row.kind not in BESIDE and row.number not in self._passed for row in (self.history or {}).values())

    def know(self, rows: Iterable[Recorded]) -> None:
        """Take what the runs before this one have recorded."""
        self.history = {row.number: row for row in rows}
        for row in self.history.values():
            if row.kind not in BESIDE:
                self.written.came_to(row.number)
            elif row.kind == "patch":
                self.written.know_end(row.number)
        # Only what comes on top of it can be refused: `weigh`.
        self._bytes += sum(len(repr(row.result)) for row in self.history.values() if row.result is not None)

    def made(self, branch: Branch, name: str) -> str:
        """The number of a new call."""
        if branch.counter >= bounds.CALLS_MAX or len(self._passed) >= bounds.CALLS_MAX:
            raise self._too_long(f"more than {bounds.CALLS_MAX:,} calls")
        number = branch.next_number()
        if len(number) > bounds.CALL_NUMBER_LENGTH_MAX:
            depth = branch.path.count(".") + 1
            raise FlowTooLong(
                f"job {self.job_id}: call {name!r} stands in {depth} branches inside each other, and its number would have"
                f" more than {bounds.CALL_NUMBER_LENGTH_MAX} characters; give the inner ones to children with job.call or"
                " job.map"
            )
        self.unawaited[number] = f"call {number} ({name})"
        return number

    def asked(self, name: str) -> None:
        """The program asks whether a change is in force, and has not awaited the answer yet."""
        asked = f"job.patched({name!r})"
        self.unawaited[asked] = asked

    def answered(self, name: str) -> None:
        self.unawaited.pop(f"job.patched({name!r})", None)

    def came_to(self, number: str, kind: str, name: str, digest: str | None) -> Recorded | None:
        """The program comes to a call. What is recorded of it, or `CodeChanged` if that was another call."""
        self.unawaited.pop(number, None)
        known = (self.history or {}).get(number)
        self._passed.add(number)
        # In this order: whoever closes it at the same time finds it here, or it finds itself closed.
        self._came[number] = {"number": number, "kind": kind, "name": name, "digest": digest}
        self.refuse_if_closed(number)
        if known is None:
            inside = self._inside(number)
            if inside is not None:
                self._differs(f"call {number} was a branch with {inside.name!r} when this job ran it, and is {name!r} now")
            return None
        if (known.kind, known.name) != (kind, name):
            was, now = (repr(known.name), repr(name)) if known.name != name else (known.kind, kind)
            self._differs(f"call {number} was {was} when this job ran it, and is {now} now")
        if known.digest is not None and digest is not None and known.digest != digest:
            self._differs(
                f"call {number} ({name!r}) had other arguments when this job ran it. What changes from run to run, as the"
                " time or a random number, belongs into a step"
            )
        if known.outcome == "closed":
            raise Waiting([])
        return known

    def came_to_branch(self, number: str, name: str) -> None:
        """The program comes to a branch, which is not recorded by itself."""
        self.unawaited.pop(number, None)
        known = (self.history or {}).get(number)
        if known is not None:
            self._differs(f"call {number} was {known.name!r} when this job ran it, and is the branch {name!r} now")

    def next_moment(self) -> int:
        """The order in which things happen in this run."""
        self._moment += 1
        return self._moment

    def defer(self, branch: Branch, call: dict[str, Any]) -> None:
        """Record this call with what is recorded next in its branch or around it."""
        self.pending.append(Pending(branch, self.next_moment(), call))

    def due(self, branch: Branch, made_at: int) -> list[Pending]:
        """What is recorded together with a call that was made then in this branch."""
        prefix = f"{branch.path}." if branch.path else ""
        own = [
            one
            for one in list(self.pending)
            if one.moment < made_at and (one.branch is branch or f"{one.branch.path}.".startswith(prefix))
        ]
        # The branch around it has passed these before it came to this one.
        return own if branch.parent is None else [*self.due(branch.parent, branch.began_at), *own]

    def drop_pending(self, pending: Iterable[Pending]) -> None:
        """These are pending no longer. One by one: the threads of other branches add theirs at the same time."""
        for one in pending:
            with contextlib.suppress(ValueError):
                self.pending.remove(one)

    def pass_over(self, number: str) -> None:
        """A call that lost a race: it counts as passed, with all that is inside."""
        self.unawaited.pop(number, None)
        self._passed.add(number)
        self._passed |= {other for other in self.history or {} if other.startswith(f"{number}.")}

    def is_behind(self, branch: Branch) -> bool:
        """Whether the job has recorded calls that this branch has not come to yet."""
        return self.written.is_behind(branch)

    def only_repeats(self, numbers: Sequence[str]) -> bool:
        """Whether calls inside of these have ended before this run, and it has come to no other one there."""
        ended = {
            number
            for number, row in (self.history or {}).items()
            if row.kind not in BESIDE
            and row.outcome not in (None, "closed")
            and any(is_under(number, one) for one in numbers)
        }
        came = {number: call for number, call in list(self._came.items()) if any(is_under(number, one) for one in numbers)}
        return bool(ended) and all(number in ended or call["kind"] == "race" for number, call in came.items())

    def abandoned(self) -> list[dict[str, Any]]:
        """What is to be recorded before the job completes: calls that nobody waits for any more, whose jobs may be open."""
        pending = [one.call for one in self.pending]
        return pending if any(one["outcome"] == "closed" for one in pending) else []

    def was_begun(self, number: str) -> bool:
        """Whether a run before this one has recorded it."""
        return number in (self.history or {})

    def has_ended(self, number: str) -> bool:
        known = (self.history or {}).get(number)
        return known is not None and known.outcome is not None

    def patched_from(self, branch: Branch, name: str) -> int | None:
        """The position from which on a change is in force in this branch; None: it is not known yet."""
        prefix = branch.number(0) + "."
        return next(
            (
                int(row.result["after"])
                for number, row in (self.history or {}).items()
                if row.kind == "patch" and row.name == name and number.startswith(prefix)
            ),
            self._patches.get((branch.path, name)),
        )

    def patch(self, branch: Branch, name: str) -> tuple[str, int]:
        """A change is in force from here on: the number to record it by, and the position that it comes after."""
        self._patches[branch.path, name] = branch.counter
        known = sum(row.kind == "patch" for row in (self.history or {}).values())
        return f"{branch.number(0)}.{known + len(self._patches)}", branch.counter

    def weigh(self, size: int) -> None:
        """Count what this run has of results in memory."""
        self._bytes += size
        if self._bytes > bounds.HISTORY_BYTES_MAX:
            raise self._too_long(f"more than {bounds.HISTORY_BYTES_MAX // 1024**2} MiB of results")

    def _inside(self, number: str) -> Recorded | None:
        prefix = f"{number}."
        return next(
            (row for other, row in (self.history or {}).items() if other.startswith(prefix) and row.kind not in BESIDE), None
        )

    def _differs(self, how: str) -> None:
        raise self.end(CodeChanged(self._changed(how)))

    def _changed(self, how: str) -> str:
        return f"job {self.job_id}: the program has changed: {how}. {_ADVICE}"

    def _too_long(self, what: str) -> FlowTooLong:
        return FlowTooLong(
            f"job {self.job_id} has recorded {what}, the limit of one job; return Again(...) to start over with an empty"
            " history, or give parts of the work to children with job.call or job.map"
        )


def position(number: str) -> tuple[int, ...]:
    """A number to sort by."""
    return tuple(map(int, number.split(".")))


def is_under(number: str, other: str) -> bool:
    """Whether it is that call, or inside it."""
    return number == other or number.startswith(f"{other}.")
