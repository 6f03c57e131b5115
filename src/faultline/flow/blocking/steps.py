# Generated from src/faultline/flow/steps.py by `make generate`: change that file, not this one.
"""Steps, sleeps and signals of a program: each is remembered once it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from faultline import values
from faultline.attempt.async_or_blocking import called, paused, timed
from faultline.attempt.outcomes import Outcome
from faultline.core.errors import CostTooHigh, FlowTooLong, JobRejected, ResultRejected, SignalTimeout, UnreadableJson
from faultline.flow.blocking.recording import Recording
from faultline.flow.step_functions import Step
from faultline.history.calls import within
from faultline.history.ending import Interrupted
from faultline.store import jsontext
from faultline.store.verbs import flow as verbs

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.history.calls import BlockingCall
    from faultline.history.program import Recorded

#: A longer pause between two tries gives the lease back.
PAUSE_SECONDS_MAX = 5.0
#: No default was given: the timeout raises.
MISSING: Any = object()


class Stepped(NamedTuple):
    """What a call of a step runs."""

    step: Step[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Record it before it runs: a saga undoes what perhaps was done.
    begun_first: bool = False


class Atomic(NamedTuple):
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Asked(NamedTuple):
    """What a call of `receive` asks for."""

    kind: Any
    seconds: float | None
    default: Any
    fresh: bool


class Stepping(Recording):
    """How steps, sleeps and signals run."""

    def _run_step(self, call: BlockingCall[Any]) -> Any:
        known = self._arrived(call)
        step, args, kwargs, begun_first = call.what
        if known is not None and known.outcome is not None:
            return self._remembered(call, known, step.returns, step.raises)
        tries = 0 if known is None else known.tries
        if tries:
            self._pass_pause(call, tries)
        if begun_first and known is None:
            self._record(call, call.as_recorded())
        while True:
            tries += 1
            value, error = self._tried(call, step, args, kwargs)
            if error is None:
                # Not a try: its work is done, and another one would do it again.
                return self._done(call, value, step.returns)
            if self.lease_lost or not step.is_tried_again(error, tries):
                raise self._ended_by(call, error, tries, step.raises)
            seconds = step.retries.pause_seconds(tries, self._chance)
            if seconds <= PAUSE_SECONDS_MAX:
                paused(seconds, self._is_over)
                # A thread is not cancelled when it has lost a race, or the run is over.
                call.branch.program.refuse_if_ended(call.branch)
                call.branch.program.refuse_if_closed(call.number)
            else:
                self._refuse_in_transaction(call)
                self._record(call, call.as_recorded(tries=tries))
                raise self._wait(call, _pause(call, tries, seconds=seconds))

    def _tried(self, call: BlockingCall[Any], step: Step[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
        """Call its function: what it returned, or its error."""
        try:
            with within(call):
                return timed(step.timeout_seconds, step.fn, args, kwargs), None
        except (Outcome, FlowTooLong, CostTooHigh):
            raise
        except Exception as error:  # noqa: BLE001 - the step's policy says what follows
            return None, error

    def _pass_pause(self, call: BlockingCall[Any], tries: int) -> None:
        """After the tries of an earlier run, their pause."""
        pause = (call.branch.program.history or {}).get(f"{call.number}.{tries}")
        if pause is not None and not pause.is_over:
            raise self._wait(call, _pause(call, tries))

    def _done(self, call: BlockingCall[Any], value: Any, returns: Any) -> Any:
        """Record a result, and return it as it is stored: a first run and a later one must not differ."""
        text = self._text(value, f"result of {call.name}")
        try:
            result = values.typed(values.as_stored(jsontext.decode(text)), returns)
        except values.Misfit as error:
            raise self._unkept(
                call, f"does not fit its annotation: {error}. Let the annotation say what it returns"
            ) from error
        if not values.is_same_kind(value, result):
            raise self._unkept(
                call,
                f"is a {type(value).__name__} and would be read as a {type(result).__name__} in the next run; annotate what"
                " it returns, with names that are defined where the function is",
            )
        try:
            self._record(call, call.as_recorded(outcome="done"), text=text)
        except (JobRejected, psycopg.DataError) as error:
            raise self._unkept(call, f"cannot be stored: {error}") from error
        return result

    def _unkept(self, call: BlockingCall[Any], why: str) -> BaseException:
        """What to raise for a result that no run could read: the job has failed, without another try or attempt."""
        return call.branch.program.end(Interrupted(ResultRejected(f"job {self.id}: the result of {call.name} {why}")))

    def _run_atomic(self, call: BlockingCall[Any]) -> Any:
        known = self._arrived(call)
        fn, args, kwargs = call.what
        returns, raises = (fn.returns, fn.raises) if isinstance(fn, Step) else (values.returned(fn), ())
        if known is not None and known.outcome is not None:
            return self._remembered(call, known, returns, raises)
        raised: list[BaseException] = []
        try:
            with self.transaction() as tx:
                try:
                    with within(call):
                        value = called(fn, (tx, *args), kwargs)
                    return self._done(call, value, returns)
                except Exception as error:
                    raised.append(error)
                    raise
        except (Outcome, FlowTooLong):
            raise
        except Exception as error:
            if error not in raised:
                raise call.branch.program.end(Interrupted(error)) from error
            failure = self._ended_by(call, error, 1, raises)
        raise failure

    def _run_sleep(self, call: BlockingCall[Any]) -> None:
        known = self._arrived(call)
        seconds, until = call.what
        time: dict[str, Any] = {"until": until} if seconds is None else {"seconds": max(0.0, seconds)}
        if call.contest is not None and (known is None or known.outcome is None):
            self._in_turn(call, **time)
            return
        if known is None and (seconds is None or seconds > 0):
            raise self._wait(call, call.as_wait(**time))
        if known is not None and known.outcome is None and not known.is_over:
            raise self._wait(call, call.as_wait())
        if known is None or known.outcome is None:
            call.branch.program.defer(call.branch, call.as_recorded(outcome="done"))

    def _run_signal(self, call: BlockingCall[Any]) -> Any:
        known = self._arrived(call)
        status, payload = self._signal(call, known)
        if status == "none":
            raise self._wait(call, call.as_wait())
        kind, seconds, default, _ = call.what
        if status != "received":
            if default is not MISSING:
                return default
            within_seconds = "its time" if seconds is None else f"{seconds:g} s"
            why = f"no signal {call.name} came within {within_seconds}"
            self._stops_at(call, known, why)
            raise SignalTimeout(f"job {self.id}: {why}. Retry the job: it waits as long again")
        try:
            return values.typed(payload, kind)
        except values.Misfit as error:
            why = (
                f"signal {call.name} was received by call {call.number}, and its payload does not fit"
                f" {values.name_of(kind)}: {error}"
            )
            self._stops_at(call, known, why)
            raise UnreadableJson(
                f"job {self.id}: {why}. Retry the job: it asks again at this call. Then send a payload that fits"
            ) from error

    def _stops_at(self, call: BlockingCall[Any], known: Recorded | None, why: str) -> None:
        """Say so in the history: what the call got is history, and every later run gets it, until a retry opens it again."""
        if known is None or known.error is None:
            self._record(call, call.as_recorded(error=why))

    def _signal(self, call: BlockingCall[Any], known: Recorded | None) -> tuple[str, Any]:
        if known is not None and known.outcome is not None:
            return ("received" if known.outcome == "done" else known.outcome), known.result
        _, seconds, _, fresh = call.what
        if call.contest is not None:
            return self._in_turn(call, seconds=seconds, fresh=fresh)
        self._refuse_in_transaction(call)
        self._pass_failures(call)
        lease = self._hold.lease
        asked = verbs.receive(lease, call.number, name=call.name, digest=call.digest, seconds=seconds, fresh=fresh)
        received = self._ask(asked)
        return received.status, received.payload

    def _in_turn(self, call: BlockingCall[Any], **words: Any) -> tuple[str, Any]:
        """In a race, the end of a wait: a status and a result, once no other wait was over before it."""
        raise NotImplementedError


def _pause(call: BlockingCall[Any], tries: int, **words: Any) -> dict[str, Any]:
    return {"number": f"{call.number}.{tries}", "kind": "retry", "name": call.name, **words}
