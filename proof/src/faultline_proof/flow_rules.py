"""The rules about flows: what was spawned and sent exists once, and nobody waits for what has happened.

Read from the tables when a run is over, and compared with what its clients were answered. No code of the engine is asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from faultline_proof.faults import Fault, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.accounts import Case
    from faultline_proof.history import Final, History, Operation
    from faultline_proof.reads.holdings import CallHeld, EdgeHeld, JobHeld, SignalHeld

_OPEN = ("queued", "running")
_ENDED_BADLY = ("failed", "cancelled")
#: Kinds of calls that wait for the ends of jobs.
_FOR_JOBS = ("children", "watch", "after")


@dataclass(slots=True)
class _Flows:
    jobs: dict[str, JobHeld]
    calls: dict[int, CallHeld]
    edges: dict[int, list[EdgeHeld]] = field(default_factory=lambda: defaultdict(list))
    signals: dict[str, list[SignalHeld]] = field(default_factory=lambda: defaultdict(list))


def check(history: History, final: Final, case: Case) -> Iterator[Fault]:
    if not final.calls and not final.signals and not any(operation.verb == "signal" for operation in history.operations):
        return
    flows = _Flows({row.job_id: row for row in final.jobs}, {call.call_id: call for call in final.calls})
    for edge in final.edges:
        flows.edges[edge.call_id].append(edge)
    for signal in sorted(final.signals, key=lambda signal: signal.id):
        flows.signals[signal.job_id].append(signal)
    yield from woken(flows, case)
    yield from signal_once(flows, history, case)
    yield from signal_order(flows, history)
    yield from spawn_once(flows, case)
    yield from tree_ends(flows, case)


def woken(flows: _Flows, case: Case) -> Iterator[Fault]:
    """Asked for only when the faults have stopped: until then, whoever looks may be away."""
    since = case.limits.faults_stopped_at
    if since is None:
        return
    for call in flows.calls.values():
        row = flows.jobs.get(call.job_id)
        if row is None or row.state != "queued" or not row.suspended or not call.awaited:
            continue
        happened_at = _happened_at(call, flows)
        if happened_at is None:
            continue
        waited, limit = case.at - max(since, happened_at), case.limits.seconds_to_end(row)
        if waited > limit:
            told = f"waits in call {call.number} ({call.kind} {call.name}) for what happened {waited:.1f} s ago"
            yield Fault(Rule.WOKEN, row.job_id, told)


def _happened_at(call: CallHeld, flows: _Flows) -> float | None:
    times = [] if call.until is None else [call.until]
    if call.kind == "signal":
        times += [signal.sent_at for signal in flows.signals[call.job_id] if _answers(signal, call)]
    elif call.kind in _FOR_JOBS and call.total in (None, len(flows.edges[call.call_id])):
        rows = [flows.jobs.get(edge.job_id) for edge in flows.edges[call.call_id]]
        if all(row is not None and row.state not in _OPEN for row in rows):
            times.append(max((row.finished_at or 0.0 for row in rows if row is not None), default=0.0))
        if call.fast:
            times += [row.finished_at or 0.0 for row in rows if row is not None and row.state in _ENDED_BADLY]
    return min(times, default=None)


def _answers(signal: SignalHeld, call: CallHeld) -> bool:
    return (
        signal.name == call.name
        and signal.received_by is None
        and signal.for_call in (None, call.number)
        and not (call.fresh and signal.sent_at < call.begun_at)
    )


def signal_once(flows: _Flows, history: History, case: Case) -> Iterator[Fault]:
    kept = Counter((signal.job_id, signal.key) for held in flows.signals.values() for signal in held if signal.key)
    for (job_id, key), times in kept.items():
        if times > 1:
            yield Fault(Rule.SIGNAL_ONCE, job_id, f"has the signal {key} {times} times")
    for operation in _acknowledged(history) if not case.limits.pruned else ():
        if not kept[operation.job_id or "", operation.key or ""]:
            told = f"has no signal {operation.key}, which was acknowledged"
            yield Fault(Rule.SIGNAL_ONCE, operation.job_id or "", told, (operation,))
    yield from _received_once(flows)


def _acknowledged(history: History) -> Iterator[Operation]:
    for operation in history.operations:
        if operation.verb == "signal" and operation.outcome == "ok" and operation.key and operation.job_id:
            yield operation


def _is_history(signal: SignalHeld) -> bool:
    """Whether a call of this round received it. With a token before the number, that call was given up since."""
    return bool(signal.received_by) and "/" not in (signal.received_by or "")


def _received_once(flows: _Flows) -> Iterator[Fault]:
    received = Counter((s.job_id, s.received_by) for held in flows.signals.values() for s in held if _is_history(s))
    numbers = {(call.job_id, call.number): call for call in flows.calls.values() if call.kind == "signal"}
    for (job_id, number), times in received.items():
        call = numbers.get((job_id, number or ""))
        if times > 1:
            yield Fault(Rule.SIGNAL_ONCE, job_id, f"received {times} signals by one call, {number}")
        elif call is None or call.outcome != "done":
            yield Fault(Rule.SIGNAL_ONCE, job_id, f"has lost the call {number}, which received a signal")
    for (job_id, number), call in numbers.items():
        if call.outcome == "done" and not received[job_id, number]:
            yield Fault(Rule.SIGNAL_ONCE, job_id, f"has the call {number}, which received a signal that was never sent")


def signal_order(flows: _Flows, history: History) -> Iterator[Fault]:
    sent: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in _acknowledged(history):
        sent[operation.process, operation.job_id or ""].append(operation)
    for (_, job_id), operations in sent.items():
        held = {signal.key: signal for signal in flows.signals[job_id]}
        yield from _in_order(job_id, operations, held)
    for job_id, signals in flows.signals.items():
        yield from _received_in_order(job_id, signals)


def _in_order(job_id: str, operations: list[Operation], held: dict[str | None, SignalHeld]) -> Iterator[Fault]:
    first: dict[str | None, Operation] = {}
    for operation in sorted(operations, key=lambda operation: operation.ended_at):
        first.setdefault(operation.key, operation)
    known = [(operation, held[key]) for key, operation in first.items() if key in held]
    for (one, before), (two, after) in pairwise(known):
        if one.ended_at < two.invoked_at and before.name == after.name and before.id > after.id:
            told = f"has the signals {before.key} and {after.key} in the opposite order"
            yield Fault(Rule.SIGNAL_ORDER, job_id, told, (one, two))


def _received_in_order(job_id: str, signals: list[SignalHeld]) -> Iterator[Fault]:
    """Of those that any call may receive. Calls of different branches have no order."""
    by_name: dict[str, list[SignalHeld]] = defaultdict(list)
    for signal in signals:
        if signal.for_call is None and _is_history(signal):
            by_name[signal.name].append(signal)
    for received in by_name.values():
        for one, two in pairwise(received):
            before, after = _path(one.received_by), _path(two.received_by)
            if before[:-1] == after[:-1] and before > after:
                told = f"received signal {two.id} by call {two.received_by}, before signal {one.id} by {one.received_by}"
                yield Fault(Rule.SIGNAL_ORDER, job_id, told)


def _path(number: str | None) -> list[int]:
    return [int(part) for part in (number or "0").split(".")]


def spawn_once(flows: _Flows, case: Case) -> Iterator[Fault]:
    parents: Counter[str] = Counter()
    for call in flows.calls.values():
        if call.kind != "children":
            continue
        edges = flows.edges[call.call_id]
        parents.update(edge.job_id for edge in edges)
        twice = [index for index, times in Counter(edge.index for edge in edges).items() if times > 1]
        if twice or len({edge.job_id for edge in edges}) < len(edges):
            yield Fault(Rule.SPAWN_ONCE, call.job_id, f"has children of call {call.number} twice")
        elif call.outcome == "done" and call.total is not None and len(edges) != call.total:
            told = f"went on past call {call.number} with {len(edges)} of {call.total} children"
            yield Fault(Rule.SPAWN_ONCE, call.job_id, told)
        gone = [edge.job_id for edge in edges if edge.job_id not in flows.jobs]
        if gone and not case.limits.pruned:
            yield Fault(Rule.SPAWN_ONCE, call.job_id, f"has lost the child {gone[0]} of call {call.number}")
    for row in flows.jobs.values():
        if row.flow_id is not None and row.flow_id != row.job_id and row.flow_id in flows.jobs and not parents[row.job_id]:
            yield Fault(Rule.SPAWN_ONCE, row.job_id, f"belongs to the flow {row.flow_id}, and no call has spawned it")


def tree_ends(flows: _Flows, case: Case) -> Iterator[Fault]:
    since = case.limits.faults_stopped_at
    if since is None:
        return
    for call in flows.calls.values():
        parent = flows.jobs.get(call.job_id)
        if call.kind != "children" or parent is None or parent.state not in _ENDED_BADLY:
            continue
        took = case.at - max(since, parent.finished_at or 0.0)
        for edge in flows.edges[call.call_id]:
            child = flows.jobs.get(edge.job_id)
            if child is not None and child.state in _OPEN and took > case.limits.seconds_to_end(child):
                told = f"is {child.state} {took:.1f} s after its parent {parent.job_id} was {parent.state}"
                yield Fault(Rule.TREE_ENDS, child.job_id, told)
