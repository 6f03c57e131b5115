"""The children of a call: one digest for all of them, and what became of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from faultline.core.errors import ChildFailed
from faultline.store import jsontext
from faultline.values import as_stored, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from faultline.core.model import Submission

_NAMED_MAX = 3
#: One argument that is a short integer or simple text, as most are: it is in order already.
_ONE_PLAIN = re.compile(r'\{"[a-z_]+":(?:(?:0|-?[1-9][0-9]{0,14})|"[ -!#-\[\]-~]*")\}')


def digest_of_jobs(jobs: Sequence[Submission], own: Iterable[bytes]) -> str:
    """Of their tasks and arguments: a later run must call for the same ones. `own`: as `digest_of` takes it."""
    return digest_of((f"{job.task} {_compared(job.args)}".encode() for job in jobs), own)


def _compared(args: str) -> str:
    """Arguments in one order, however a dict in them was made."""
    if _ONE_PLAIN.fullmatch(args):
        return args
    return jsontext.encode_args(as_stored(jsontext.decode_args(args)), "arguments")


def errors_of(taken: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
    """Of those that have failed, by index, what `collect_outcomes` says of them."""
    return {int(index): _first_line(one) for index, one in sorted(taken.items(), key=lambda item: int(item[0]))}


def failed(job_id: UUID, name: str, total: int, errors: dict[int, str]) -> ChildFailed:
    """The error of a call, some of whose jobs have failed."""
    shown = "; ".join(f"number {index}: {error}" for index, error in list(errors.items())[:_NAMED_MAX])
    if total == 1:
        message = f"job {job_id}: the job that it called, {name}, has not succeeded: {next(iter(errors.values()))}"
    else:
        message = f"job {job_id}: {len(errors)} of {total} jobs of {name} have not succeeded. {shown}"
    return ChildFailed(message, errors=errors)


def _first_line(one: Mapping[str, Any]) -> str:
    error = str(one.get("error") or "").partition("\n")[0]
    return f"{one.get('state')}: {error}" if error else str(one.get("state"))
