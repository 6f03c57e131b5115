"""What reached the database, as operations for the history checker. Nobody in the world knows this much.

Statements take effect one after the other here, so their place in the record is their time: every order is certain, and
the checker has nothing to give the benefit of the doubt. What happened inside a transaction happens at its commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from faultline.proof.history import History
from faultline.store import jsontext

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from faultline.proof.world.weather import Line

_BATCHES = ("renew", "mark_started", "complete", "fail", "release")
_SINGLES = ("fence", "step", "progress")


def history_of(lines: Sequence[Line]) -> History:
    history = History()
    inside: dict[int, list[Line]] = {}
    for place, line in enumerate(lines):
        if line.verb in ("commit", "rollback"):
            held = inside.pop(line.link, [])
            for earlier in held if line.verb == "commit" and line.took_effect else ():
                _tell(history, earlier, float(place))
        elif line.verb == "begin":
            inside[line.link] = []
        elif line.took_effect and line.inside:
            inside[line.link].append(line)
        elif line.took_effect:
            _tell(history, line, float(place))
    return history


def _tell(history: History, line: Line, at: float) -> None:
    ended = at + 0.5
    match line.verb:
        case "enqueue_many":
            for wanted, (job_id, *_) in zip(jsontext.decode(line.params[0]), line.rows, strict=True):
                key = wanted.get("idempotency_key")
                history.invoke(line.host, "enqueue", at, job_id=wanted["id"], key=key).ok(ended, job_id=job_id)
        case "claim":
            owner = line.params[1]
            history.invoke(line.host, "claim", at, owner=owner).ok_with(
                ended, [(row[0], row[1], owner) for row in line.rows]
            )
        case "reap":
            for job_id, token, owner, *_ in line.rows:
                history.invoke(line.host, "reap", at, job_id=job_id, token=token, owner=owner).ok(ended)
        case "cancel" | "retry":
            history.invoke(line.host, line.verb, at, job_id=line.params[0]).ok(ended)
        case verb if verb in _BATCHES:
            _tell_writes(history, line, at, zip(*(_elements(text) for text in line.params[:3]), strict=True))
        case verb if verb in _SINGLES:
            _tell_writes(history, line, at, [tuple(map(str, line.params[:3]))])


def _tell_writes(history: History, line: Line, at: float, leases: Iterable[tuple[str, ...]]) -> None:
    refused = {(row[0], row[1]): row[2] for row in line.rows} if line.verb != "fence" else {}
    detail = str(line.params[3]) if line.verb == "step" else None
    for job, number, owner in leases:
        job_id, token = UUID(job), int(number)
        write = history.invoke(line.host, line.verb, at, job_id=job_id, token=token, owner=owner, detail=detail)
        why = refused.get((job_id, token))
        if why is None:
            write.ok(at + 0.5)
        else:
            write.failed(at + 0.5, why)


def _elements(array: str) -> list[str]:
    """The elements of an array as the store writes it: ids, numbers, and owners without commas."""
    return [element.strip('"') for element in array[1:-1].split(",")]
