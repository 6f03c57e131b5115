"""Which limits may have been in force when: what workers declared and people set, as their calls were answered.

A call without an answer may have taken effect at any time since, or never. So there is no limit at a moment, but a greatest
and a smallest one that it may have been.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.history import History

#: The keys of limits that are of no one group.
THE_QUEUE, EACH_GROUP = "", "*"
VERBS = frozenset({"declare_queue", "set_limit", "reset_limit"})


@dataclass(frozen=True, slots=True)
class _Change:
    asked_at: float
    answered_at: float
    sure: bool
    #: The declaration of a queue, or the fields that were set for one key: what they do not name stays as it was.
    value: dict[str, Any]
    #: All that was set for the key is taken back.
    resets: bool = False


class Changes:
    def __init__(self, history: History) -> None:
        self._declared: dict[str, list[_Change]] = defaultdict(list)
        self._set: dict[tuple[str, str], list[_Change]] = defaultdict(list)
        for operation in history.operations:
            if operation.verb not in VERBS or operation.outcome == "failed" or operation.detail is None:
                continue
            queue, key, value = orjson.loads(operation.detail)
            sure, resets = operation.outcome == "ok", operation.verb == "reset_limit"
            change = _Change(operation.invoked_at, operation.ended_at, sure, value or {}, resets)
            if operation.verb == "declare_queue":
                known = self._declared[queue]
                # Every worker declares what it knows when it starts; what was said already says nothing new.
                if not (known and known[-1].value == change.value and all(one.value == change.value for one in known)):
                    known.append(change)
                elif not known[0].sure:
                    known[0] = _Change(known[0].asked_at, change.answered_at, change.sure, change.value)
            else:
                self._set[queue, key].append(change)

    @property
    def queues(self) -> set[str]:
        return {*self._declared, *(queue for queue, _ in self._set)}

    def number_of(self, queue: str, since: float, until: float) -> int:
        """How many changes may have been made meanwhile."""
        every = [*self._declared[queue], *(one for (of, _), some in self._set.items() if of == queue for one in some)]
        return sum(one.asked_at <= until and one.answered_at >= since for one in every)

    def most(self, queue: str, key: str, field: str, since: float, until: float) -> float:
        """The greatest value of a field that may have been in force, `inf` where there may have been no limit."""
        return max(self._numbers(queue, key, field, since, until))

    def fewest(self, queue: str, key: str, field: str, since: float, until: float, default: float) -> float:
        return min(default if one == math.inf else one for one in self._numbers(queue, key, field, since, until))

    def least(self, queue: str, key: str, field: str) -> float:
        """The smallest value that was ever asked for: what stays below it needs no closer look."""
        values = [one for one in self._every(queue, key) if one.get(field) is not None]
        ordered = field == "concurrency" and any(one.get("ordered") for one in self._every(queue, key))
        return min([float(one[field]) for one in values] + [1.0] * ordered, default=math.inf)

    def ever_ordered(self, queue: str, key: str) -> bool:
        return any(one.get("ordered") for one in self._every(queue, key))

    def declared_at(self, queue: str) -> float:
        """When the first declaration was surely in force."""
        return min((one.answered_at for one in self._declared[queue] if one.sure), default=math.inf)

    def always_ordered(self, queue: str, key: str) -> bool:
        """From the first declaration on, and nobody has ever said otherwise."""
        declared = self._declared[queue]
        said = all(self._section(one.value, key, "ordered") for one in declared)
        return bool(declared) and said and not any("ordered" in one.value for one in self._changes(queue, key))

    def _changes(self, queue: str, key: str) -> Iterator[_Change]:
        yield from self._set.get((queue, key), ())
        if key != THE_QUEUE:
            yield from self._set.get((queue, EACH_GROUP), ())

    def _every(self, queue: str, key: str) -> Iterator[dict[str, Any]]:
        for declaration in self._declared[queue]:
            yield from _sections(declaration.value, key)
        yield from (one.value for one in self._changes(queue, key))

    @staticmethod
    def _section(declared: dict[str, Any], key: str, field: str) -> Any:
        return next((fields[field] for fields in _sections(declared, key) if field in fields), None)

    def _numbers(self, queue: str, key: str, field: str, since: float, until: float) -> set[float]:
        found = set(self._values(queue, key, field, since, until))
        if field == "concurrency" and key != THE_QUEUE and True in self._values(queue, key, "ordered", since, until):
            unordered = set(self._values(queue, key, "ordered", since, until)) != {True}
            found = {1, *(found if unordered else ())}
        return {math.inf if one is None else float(one) for one in found}

    def _values(self, queue: str, key: str, field: str, since: float, until: float) -> Iterator[Any]:
        changes = [one for one in self._set.get((queue, key), ()) if one.resets or field in one.value]
        for fields in _in_force(changes, since, until):
            if field in fields:
                yield fields[field]
            else:
                yield from self._inherited(queue, key, field, since, until)

    def _inherited(self, queue: str, key: str, field: str, since: float, until: float) -> Iterator[Any]:
        for declared in _in_force(self._declared[queue], since, until):
            fields = _own(declared, key)
            if field in fields:
                yield fields[field]
            elif key in (THE_QUEUE, EACH_GROUP):
                yield None
            else:
                yield from self._values(queue, EACH_GROUP, field, since, until)


def _own(declared: dict[str, Any], key: str) -> dict[str, Any]:
    if key == THE_QUEUE:
        return declared.get("queue") or {}
    if key == EACH_GROUP:
        return declared.get("each_group") or {}
    return (declared.get("groups") or {}).get(key) or {}


def _sections(declared: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """What a declaration says of a key, the nearest first."""
    yield _own(declared, key)
    if key not in (THE_QUEUE, EACH_GROUP):
        yield _own(declared, EACH_GROUP)


def _in_force(changes: list[_Change], since: float, until: float) -> Iterator[dict[str, Any]]:
    """What may have been in force at some time between the two: all but what surely came later or was surely over."""
    done = [one for one in changes if one.sure and one.answered_at <= since]
    if not done:
        yield {}
    for one in changes:
        over = any(later.asked_at > one.answered_at for later in done)
        if one.asked_at <= until and not over:
            yield one.value
