"""The rules about budgets: no more is taken than rate and burst allow, and what was not taken is there.

What may be taken is known from what was declared and set, what was taken from the answers to takes. A take without an answer
may have happened at any time since, or never.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

import orjson

from faultline_proof.faults import Fault, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.accounts import Case
    from faultline_proof.history import Final, History, Operation

CHANGES = frozenset({"declare_budget", "set_budget"})
#: Windows are looked at up to so many takes back.
_TAKES_LOOKED_AT = 200
#: Clock and tokens are rounded.
_A_LITTLE = 1e-3


@dataclass(frozen=True, slots=True)
class _Take:
    """Tokens were taken between two moments, in seconds. `sure`: if not, they may not have been taken at all."""

    job_id: str
    cost: float
    asked_at: float
    answered_at: float
    sure: bool


@dataclass(slots=True)
class _Said:
    """The greatest and the smallest that a budget was ever said to be: its rate a second, and its burst."""

    rates: list[float]
    bursts: list[float]


def check(history: History, final: Final, case: Case) -> Iterator[Fault]:
    said: dict[str, _Said] = defaultdict(lambda: _Said([], []))
    #: What a person leaves out of a rate stays as it was.
    last: dict[str, dict[str, float]] = defaultdict(dict)
    asked: dict[str, dict[tuple[object, ...], list[Operation]]] = defaultdict(lambda: defaultdict(list))
    for operation in history.operations:
        if operation.outcome == "failed" or operation.detail is None:
            continue
        if operation.verb in CHANGES:
            name, fields = orjson.loads(operation.detail)
            if fields is not None:
                last[name] |= fields
                said[name].rates.append(last[name]["rate"] / last[name].get("per", 1.0))
                said[name].bursts.append(last[name].get("burst") or max(1.0, math.ceil(last[name]["rate"])))
        elif operation.verb == "take_budget":
            name, cost, number = orjson.loads(operation.detail)
            asked[name][operation.job_id, operation.token, number, cost].append(operation)
    held = {one.name: one.tokens for one in final.budgets}
    for name, tries in asked.items():
        if said[name].rates:
            takes = [_take(operations, case) for operations in tries.values()]
            yield from _kept(name, takes, said[name])
            yield from _whole(name, takes, said[name], held.get(name))


def _take(operations: list[Operation], case: Case) -> _Take:
    """One take, however often it was sent: with the same number it is made once."""
    seconds = case.limits.seconds_of
    answered = [seconds(one.ended_at) for one in operations if one.outcome == "ok"]
    cost = orjson.loads(operations[0].detail or "null")[1]
    asked_at = min(seconds(one.invoked_at) for one in operations)
    return _Take(operations[0].job_id or "", cost, asked_at, min(answered, default=math.inf), bool(answered))


def _kept(name: str, takes: list[_Take], said: _Said) -> Iterator[Fault]:
    """In no window more than the greatest burst, and what comes in meanwhile at the greatest rate."""
    sure = sorted((one for one in takes if one.sure), key=attrgetter("answered_at"))
    for last, end in enumerate(sure):
        total, since = 0.0, math.inf
        for one in reversed(sure[max(0, last - _TAKES_LOOKED_AT) : last + 1]):
            total += one.cost
            since = min(since, one.asked_at)
            if total > max(said.bursts) + max(said.rates) * (end.answered_at - since) + _A_LITTLE:
                told = f"took the last of {total:g} from the budget {name} within {end.answered_at - since:.3f} s"
                yield Fault(Rule.BUDGET_KEPT, end.job_id, told)
                return


def _whole(name: str, takes: list[_Take], said: _Said, held: float | None) -> Iterator[Fault]:
    """At least so much is in it: the smallest burst, less what may have been taken since some take, and what has come in
    since then at the smallest rate. The take for which that is least says how much.
    """
    last_at = max((one.asked_at for one in takes if one.sure), default=None)
    if held is None or last_at is None:
        return
    by_end = sorted(takes, key=attrgetter("answered_at"))
    ends = [one.answered_at for one in by_end]
    since_end = list(accumulate((one.cost for one in reversed(by_end)), initial=0.0))[::-1]
    least = min(
        min(said.bursts)
        - since_end[bisect_left(ends, first.asked_at)]
        + min(said.rates) * max(0.0, last_at - min(first.answered_at, last_at))
        for first in takes
    )
    if held < least - _A_LITTLE:
        told = f"is the last that took from the budget {name}, which holds {held:g}, and should hold {least:g} at least"
        last = max((one for one in takes if one.sure), key=attrgetter("asked_at"))
        yield Fault(Rule.BUDGET_WHOLE, last.job_id, told)
