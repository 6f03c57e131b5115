"""The program of one run: which calls it makes, and whether they are those that the job has recorded.

A call's number is its position: a counter in each branch, and the numbers of the branches around it ('3', '3.1.2'). It does
not depend on which branch is quicker, so that every run gives each call the number that the first run gave it.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError, current_task
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from faultline.core import bounds
from faultline.core.errors import ConfigError, FlowTooLong, StepFailed
from faultline.history.ending import (
    Closed,
    CodeChanged,
    Halted,
    Interrupted,
    RunEnded,
    Suspended,
    Undone,
    Waiting,
    is_ours,
    leaves,
)
from faultline.history.stream_writes import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.history.race import Contest

#: Kinds of recorded calls that are no positions of the program: pauses between the tries of a step, what a job of a graph
#: comes after, and the changes that `patched` guards.
BESIDE = frozenset({"retry", "after", "patch"})
#: The digest, in a fork, of arguments that named the job that it was forked from.
_OF_ANOTHER_JOB = "~"
#: So many remembered calls are repeated before others of the event loop have a turn: some 5 ms.
_REPEATED_AT_ONCE = 100
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
    @property
    def doubtful(self) -> bool | None: ...


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
        #: The race that it runs in, at whatever depth, and the order of the arguments there.
        self.contest: Contest | None = None
        self.rank: tuple[int, ...] = ()
        #: The numbers of the races that it runs in.
        self.races: tuple[str, ...] = ()
        #: What each of the branches around it, and it itself, was made of: a name and a digest of the arguments.
        self.signature: tuple[str, ...] = ()
        #: It runs the undos of a saga: its calls are made although the saga has failed.
        self.undoes = False
        #: A call that was cancelled while it ran, as messages name it. What became of it is not known, and not recorded.
        self.cancelled: str | None = None

    def next_number(self) -> str:
        self.counter += 1
        return self.number(self.counter)

    def number(self, position: int) -> str:
        return f"{self.path}.{position}" if self.path else str(position)

    def signed(self, digest: str | None) -> str | None:
        """The digest of the call that was just made here. It carries what the branch was made of."""
        return "/".join((digest or "", *self.signature)) if self.signature else digest

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


class SagaFailure(NamedTuple):
    """Why the sagas of a job are undone."""

    reason: str
    #: How the job ends when they are: fail, cancel.
    then: str
    #: What was raised, if that was in this run.
    error: BaseException | None = None


class Program:
    """One run of a program, and the history of the runs before it."""

    def __init__(self, job_id: UUID, owner: object = None) -> None:
        self.job_id = job_id
        self.root = Branch(self, "", owner)
        #: By number. None: not loaded yet.
        self.history: dict[str, Recorded] | None = None
        #: By the number of a call or branch, the numbers of all recorded calls inside of it, in the order of the numbers.
        self._recorded_in: dict[str, list[str]] = {}
        #: Recorded calls that this run did not come to yet. Undos are not among them.
        self._ahead: set[str] = set()
        #: The same of the calls that this run came to, and these themselves.
        self._came_in: dict[str, set[str]] = {}
        #: By branch and name, the position from which on a change is in force; and how many changes are recorded.
        self._patched: dict[tuple[str, str], int] = {}
        self._patch_count = 0
        #: Recorded calls that this run did not come to yet.
        self._unpassed: set[str] = set()
        #: The numbers that this run came to.
        self._passed: set[str] = set()
        #: The calls that this run came to, as `record` takes them.
        self._came: dict[str, dict[str, Any]] = {}
        #: The numbers of the calls that lost a race in this run.
        self._closed: set[str] = set()
        #: Calls that were made and are not awaited yet, as messages call them: by number, guards of changes by name.
        self.unawaited: dict[str, str] = {}
        #: What becomes history with what is recorded next: steps that failed and whose errors the program caught, sleeps
        #: that are over.
        self.pending: list[Pending] = []
        self._moment = 0
        self._repeated = 0
        self._ended: RunEnded | None = None
        self._bytes = 0
        #: A call that was refused where it was made or awaited. The program may have dropped the error.
        self._misused: ConfigError | None = None
        #: Changes that this run was the first to come to: by branch and name, the position.
        self._patches: dict[tuple[str, str], int] = {}
        self.written = Written()
        #: See `take_forgotten`.
        self._dropped: list[dict[str, Any]] = []
        #: Set once a saga of this job has failed, in this run or an earlier one: nothing but undos is run any more.
        self.saga_failure: SagaFailure | None = None
        #: The sagas that this run has entered and not left, and that have something to undo; as `record` takes them.
        self.open_sagas: dict[str, dict[str, Any]] = {}
        #: The names of the undos that are done, and the errors of the others.
        self.undone: list[str] = []
        self.undo_failures: list[Exception] = []
        #: All sagas that had failed are undone, in this run or before.
        self.is_undone = False

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
        if not self._unpassed or self.history is None:
            return None
        first = self.history[min(self._unpassed, key=position)]
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
        if self.saga_failure is not None:
            return self._undone(self.saga_failure, error)
        if error is not None:
            endings = [leaf for leaf in leaves(error) if isinstance(leaf, RunEnded)]
            return endings[0] if endings and is_ours(error) else error
        if not completes:
            return None
        changed = self.unpassed()
        if changed is not None:
            return CodeChanged(changed)
        return self._forgotten()

    def _undone(self, failure: SagaFailure, error: BaseException | None) -> BaseException:
        """The end of a run whose sagas were undone, whatever its program made of that."""
        missed = [row for row in (self.history or {}).values() if is_unfinished_saga(row) and row.number not in self._passed]
        if missed:
            changed = f"call {missed[0].number} was a saga when this job ran it, and the program did not come to it"
            return CodeChanged(self._changed(changed)) if error is None or is_ours(error) else error
        if self.open_sagas:
            # The end of the attempt, and not of the saga: the next one undoes what this one did not.
            if error is not None and not isinstance(error, Halted):
                return error
            left = next(iter(self.open_sagas))
            return Interrupted(
                ConfigError(
                    f"job {self.job_id}: call {left} is a saga that failed, and the program did not leave it, so its parts"
                    " are not undone; enter it with `with`"
                )
            )
        what = "the saga failed: " if failure.then == "fail" else ""
        text = f"{what}{failure.reason}; undone by: {', '.join(self.undone) or 'nothing'}"
        if self.undo_failures:
            # The attempt fails by it, and the next one tries these undos again.
            text = f"{text}; not undone: {'; '.join(map(str, self.undo_failures))}"
            return Interrupted(StepFailed(text, step="saga", kind="UndoFailed"))
        self.is_undone = True
        undone = Undone(text, failure.then)
        undone.__cause__ = failure.error
        return undone

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

    def halt(self, branch: Branch) -> None:
        """A saga has failed, so a call that has not ended in an earlier run is not made."""
        if self.saga_failure is not None and not branch.undoes:
            raise Halted(f"job {self.job_id}: its saga failed: {self.saga_failure.reason}; it makes no further calls")

    def halt_behind(self, branch: Branch) -> None:
        """After a call: if a saga has failed and no further call is recorded, the program stops here. All that is to be
        undone is known, and what follows may be what kept an earlier run from leaving the saga, as a pause that is too long.
        """
        if not self._ahead:
            self.halt(branch)

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

    def close(self, numbers: Iterable[str]) -> None:
        """These have lost a race: no further call is made inside."""
        self._closed.update(numbers)

    def open_in(self, numbers: Iterable[str]) -> list[dict[str, Any]]:
        """The calls with these numbers and all inside of them that have perhaps not ended, as `record` closes them.

        A saga is not closed by itself: the next run finds the call inside it that is.
        """
        history = self.history or {}
        inside: set[str] = set()
        for one in numbers:
            inside.update((one, *self._recorded_in.get(one, ()), *list(self._came_in.get(one, ()))))
        found: list[dict[str, Any]] = []
        for number in sorted(inside, key=position):
            call = self._came.get(number)
            if call is None and number in history and history[number].kind not in BESIDE:
                row = history[number]
                call = {"number": number, "kind": row.kind, "name": row.name, "digest": row.digest}
            if call is not None and call["kind"] != "saga" and not self.has_ended(number):
                found.append({**call, "outcome": "closed"})
        return found

    def is_closed(self, number: str) -> bool:
        """Whether it has lost a race, or something around it has."""
        return bool(self._closed) and (number in self._closed or any(one in self._closed for one in around(number)))

    def closed(self, number: str) -> Closed:
        return Closed(f"job {self.job_id}: call {number} is part of what has lost a race; it makes no further calls")

    def refuse_if_closed(self, number: str) -> None:
        if self.is_closed(number):
            raise self.closed(number)

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

    def know(self, rows: Iterable[Recorded]) -> None:
        """Take what the runs before this one have recorded."""
        self.history = {row.number: row for row in rows}
        sagas = {row.number for row in self.history.values() if row.kind == "saga"}
        for row in self.history.values():
            if row.kind not in BESIDE:
                for one in around(row.number):
                    self._recorded_in.setdefault(one, []).append(row.number)
                if not any(one in sagas for one in around(row.number)):
                    self._ahead.add(row.number)
                # The program need not make a doubtful one again.
                if not row.doubtful:
                    self._unpassed.add(row.number)
                    self.written.came_to(row.number)
            elif row.kind == "patch":
                self._patch_count += 1
                self._patched.setdefault((row.number.rpartition(".")[0], row.name), int(row.result["after"]))
                self.written.know_end(row.number)
            if row.kind == "saga" and row.outcome == "failed" and self.saga_failure is None:
                self.saga_failure = SagaFailure(row.error or "", (row.result or {}).get("then", "fail"))
        # Only what comes on top of it can be refused: `weigh`.
        self._bytes += sum(len(repr(row.result)) for row in self.history.values() if row.result is not None)

    def made(self, branch: Branch, name: str) -> str:
        """The number of a new call. Whatever was done can be undone, so undos are not counted."""
        if not branch.undoes and (branch.counter >= bounds.CALLS_MAX or len(self._passed) >= bounds.CALLS_MAX):
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
        self._unpassed.discard(number)
        self._ahead.discard(number)
        # In this order: whoever closes it at the same time finds it here, or it finds itself closed.
        self._came[number] = {"number": number, "kind": kind, "name": name, "digest": digest}
        for one in around(number):
            self._came_in.setdefault(one, set()).add(number)
        self.refuse_if_closed(number)
        if self._is_forgotten(number, known, kind, name, digest):
            return None
        if known is None:
            inside = self._inside(number)
            if inside is not None:
                self._differs(f"call {number} was a branch with {inside.name!r} when this job ran it, and is {name!r} now")
            return None
        if (known.kind, known.name) != (kind, name):
            was, now = (repr(known.name), repr(name)) if known.name != name else (known.kind, kind)
            self._differs(f"call {number} was {was} when this job ran it, and is {now} now")
        if not _have_same_digest(known.digest, digest):
            self._refuse_other_branch(number, known.digest or "", digest or "")
            self._differs(
                f"call {number} ({name!r}) had other arguments when this job ran it. What changes from run to run, as the"
                " time or a random number, belongs into a step"
            )
        if known.outcome == "closed" and self.saga_failure is None:
            raise Waiting([])
        return known

    def _is_forgotten(self, number: str, known: Recorded | None, kind: str, name: str, digest: str | None) -> bool:
        """Whether the program makes another call here than a doubtful one, which is forgotten then."""
        if known is None:
            inside = self._inside(number)
            differs = inside is not None and bool(inside.doubtful)
        else:
            is_same = (known.kind, known.name) == (kind, name) and _have_same_digest(known.digest, digest)
            differs = bool(known.doubtful) and not is_same
        if differs:
            self._forget(number)
        return differs

    def _forget(self, number: str) -> None:
        branch, _, _ = number.rpartition(".")
        prefix, first = f"{branch}." if branch else "", position(number)[-1]
        for other, row in list((self.history or {}).items()):
            in_branch = other.startswith(prefix) and other[len(prefix) :] != ""
            if row.doubtful and in_branch and int(other[len(prefix) :].partition(".")[0]) >= first:
                del (self.history or {})[other]
                self._ahead.discard(other)
        self._dropped.append({"number": number, "kind": "step", "name": "forgotten", "outcome": "forgotten"})

    def take_forgotten(self) -> list[dict[str, Any]]:
        """Doubtful calls that the program did not make again, to be recorded before what it makes in their place."""
        taken, self._dropped = self._dropped, []
        return taken

    def sagas(self) -> list[str]:
        """The numbers of the sagas that this run came to."""
        return [number for number, call in self._came.items() if call["kind"] == "saga"]

    def _refuse_other_branch(self, number: str, was: str, now: str) -> None:
        """Of a call in a branch: whether a branch around it was made of something else."""
        names = [*reversed(list(around(number)))]
        for branch, before, after in zip(names, was.split("/")[1:], now.split("/")[1:], strict=False):
            (old, _, old_digest), (new, _, new_digest) = before.rpartition(":"), after.rpartition(":")
            if old != new:
                self._differs(f"branch {branch} was {old!r} when this job ran it, and is {new!r} now")
            if old_digest not in ("", _OF_ANOTHER_JOB, new_digest) and new_digest:
                self._differs(
                    f"branch {branch} ({new!r}) had other arguments when this job ran it. Make branches in the same order in"
                    " each run: a set has another order in each process"
                )

    def came_to_branch(self, number: str, name: str) -> None:
        """The program comes to a branch, which is not recorded by itself."""
        self.unawaited.pop(number, None)
        known = (self.history or {}).get(number)
        if known is not None and known.doubtful:
            self._forget(number)
        elif known is not None:
            self._differs(f"call {number} was {known.name!r} when this job ran it, and is the branch {name!r} now")

    def gives_way(self) -> bool:
        """Whether the run should let others run: it has repeated some calls without a pause."""
        self._repeated += 1
        return self._repeated % _REPEATED_AT_ONCE == 0

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
        passed = (number, *self._recorded_in.get(number, ()))
        self._passed.update(passed)
        self._unpassed.difference_update(passed)
        self._ahead.difference_update(passed)
        for saga in [one for one in list(self.open_sagas) if is_under(one, number)]:
            # What it has begun stays.
            self.open_sagas.pop(saga, None)

    def is_behind(self, branch: Branch) -> bool:
        """Whether the job has recorded calls that this branch has not come to yet."""
        return self.written.is_behind(branch)

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

    def has_failed(self, number: str) -> bool:
        """Whether a step has used up its tries, in this run or an earlier one."""
        known = (self.history or {}).get(number)
        return (known is not None and known.outcome == "failed") or any(
            one.call["number"] == number and one.call["outcome"] == "failed" for one in self.pending
        )

    def are_undos(self, waits: Sequence[dict[str, Any]]) -> bool:
        """Whether a saga waits for these: its undos have numbers below its own."""
        return any(is_under(wait["number"], saga) for wait in waits for saga in self.open_sagas)

    def has_open_saga_under(self, branch: Branch) -> bool:
        """Whether a branch that this one has made has a saga that is still to be undone."""
        prefix = f"{branch.path}." if branch.path else ""
        return any(one.startswith(prefix) and "." in one.removeprefix(prefix) for one in self.open_sagas)

    def sagas_left_last(self) -> list[dict[str, Any]]:
        """Sagas that the program has left without making a call since, as `record` takes them."""
        return [one.call for one in self.pending if one.call["kind"] == "saga"]

    def patched_from(self, branch: Branch, name: str) -> int | None:
        """The position from which on a change is in force in this branch; None: it is not known yet."""
        return self._patched.get((branch.number(0), name), self._patches.get((branch.path, name)))

    def patch(self, branch: Branch, name: str) -> tuple[str, int]:
        """A change is in force from here on: the number to record it by, and the position that it comes after."""
        self._patches[branch.path, name] = branch.counter
        return f"{branch.number(0)}.{self._patch_count + len(self._patches)}", branch.counter

    def weigh(self, size: int) -> None:
        """Count what this run has of results in memory. Once a saga has failed, they are those of undos."""
        self._bytes += size
        if self._bytes > bounds.HISTORY_BYTES_MAX and self.saga_failure is None:
            raise self._too_long(f"more than {bounds.HISTORY_BYTES_MAX // 1024**2} MiB of results")

    def _inside(self, number: str) -> Recorded | None:
        history = self.history or {}
        # What was forgotten is not in it any more.
        return next((history[one] for one in self._recorded_in.get(number, ()) if one in history), None)

    def _differs(self, how: str) -> None:
        raise self.end(CodeChanged(self._changed(how)))

    def _changed(self, how: str) -> str:
        return f"job {self.job_id}: the program has changed: {how}. {_ADVICE}"

    def _too_long(self, what: str) -> FlowTooLong:
        return FlowTooLong(
            f"job {self.job_id} has recorded {what}, the limit of one job; return ContinueAsNew(...) to start over with an"
            " empty history, or give parts of the work to children with job.call or job.map"
        )


def _have_same_digest(was: str | None, now: str | None) -> bool:
    """Whether a call has the arguments that it had, and stands in the same branches."""
    if was is None or now is None or was == now:
        return True
    parts, new_parts = was.split("/"), now.split("/")
    return len(parts) == len(new_parts) and all(map(_is_same_part, parts, new_parts))


def _is_same_part(was: str, now: str) -> bool:
    """A digest, of a branch with its name before it."""
    (name, _, digest), (new_name, _, new_digest) = was.rpartition(":"), now.rpartition(":")
    return name == new_name and digest in (_OF_ANOTHER_JOB, new_digest)


def position(number: str) -> tuple[int, ...]:
    """A number to sort by."""
    return tuple(map(int, number.split(".")))


def around(number: str) -> Iterator[str]:
    """The numbers of the branches around a call, the innermost first."""
    while (dot := number.rfind(".")) >= 0:
        number = number[:dot]
        yield number


def is_under(number: str, other: str) -> bool:
    """Whether it is that call, or inside it."""
    return number == other or number.startswith(f"{other}.")


def is_unfinished_saga(row: Recorded) -> bool:
    """Whether it has begun something and was not left: it is to be undone, or was."""
    return row.kind == "saga" and row.outcome != "done"
