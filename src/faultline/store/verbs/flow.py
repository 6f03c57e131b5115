"""Jobs that wait, have children, receive signals and go on: the verbs of flows.

A verb for a lease that is lost writes nothing. `record` returns that as `Unwritten`; `spawn`, `collect_outcomes`, `receive`,
`first_over` and `watch` raise `StaleLease`. The database has recorded the refusal either way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime  # noqa: TC003 - the fields of a named tuple
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from faultline.core.errors import StaleLease
from faultline.core.model import Json  # noqa: TC001 - likewise
from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, value
from faultline.store.statement import Statement
from faultline.store.verbs.lease import for_leases, for_one_lease
from faultline.store.verbs.submit import jobs_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from faultline.core.model import Lease, Submission, Unwritten
    from faultline.store.statement import Rows

T = TypeVar("T")


def _decoded(text: str | None) -> Json:
    return None if text is None else jsontext.decode_or_say(text)


def _json(column: str) -> Column:
    """A column of JSON that a program goes on with. What cannot be read is `Unreadable`, and never passes for another value:
    the program gets an error where it uses that, and can read the rest of its history.
    """
    return Column(f"{column}::text", _decoded)


class KnownCall(NamedTuple):
    """A call in the history of a job. Without an outcome it has begun, and has not ended."""

    number: str
    kind: str
    name: str
    digest: str | None
    call_id: int
    until: datetime | None
    #: Its time is over, by the clock of the database.
    is_over: bool
    policy: str | None
    total: int | None
    spawned: int
    tries: int
    outcome: str | None
    result: Json
    error: str | None
    #: A retry has opened a call that had ended before this one began.
    doubtful: bool | None = None


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How one of the jobs of a call stands."""

    index: int
    job_id: UUID
    state: str
    result: Json
    error: str | None


class Taken(NamedTuple):
    """What became of the jobs of a call. `status`: taken, timeout, closed, or open: wait on."""

    status: str
    result: Json


class Received(NamedTuple):
    """What came of asking for a signal. `status`: received, timeout, closed, or none: wait until then."""

    status: str
    payload: Json
    until: datetime | None


class Resolved(NamedTuple):
    """What `resolve` did. `cursor` goes into the next one: nudges that it has seen are not read again."""

    woken: int
    left_over: int
    cursor: str | None


class _Spawned(NamedTuple):
    """A call of jobs. `detached`: their ids, if it waits for none of them."""

    call_id: int
    detached: Json


class FirstOver(NamedTuple):
    """Which wait of a race was over first. `status`: received, timeout, taken, done, or none: wait so many seconds."""

    number: str | None
    status: str
    result: Json
    seconds_left: float | None


class _CallId(NamedTuple):
    call_id: int


class _Lost(NamedTuple):
    """Why the lease is lost, behind the columns of an answer. None: it is not."""

    reason: str | None
    current_token: int | None


_CALL_ID, LOST = RowOf(_CallId), RowOf(_Lost)
_KNOWN_CALL = RowOf(KnownCall, result=_json("result"))
_CHILD_OUTCOME = RowOf(ChildOutcome, result=_json("result"))
_TAKEN = RowOf(Taken, result=_json("result"))
_RECEIVED = RowOf(Received, payload=_json("payload"))
_SPAWNED = RowOf(_Spawned, detached=_json("detached"))
_FIRST_OVER = RowOf(FirstOver, result=_json("result"))
_RESOLVED = RowOf(Resolved, cursor="next_cursor::text")


# By the lease of a running job


def record(lease: Lease, calls: Sequence[Mapping[str, Json]]) -> Statement[Unwritten]:
    """Write calls into the history of the job: begun ones, and how others ended. One that has ended stays as it is."""
    return for_one_lease("record", lease, (jsontext.encode(list(calls), "calls"),), "%s::jsonb")


def record_text(lease: Lease, calls: str) -> Statement[Unwritten]:
    """The same for the text of the JSON array."""
    return for_one_lease("record", lease, (calls,), "%s::jsonb")


def spawn(  # noqa: PLR0913 - what the SQL function takes
    lease: Lease,
    number: str,
    jobs: Sequence[Submission],
    *,
    name: str,
    digest: str | None,
    total: int | None = None,
    first_index: int = 0,
    kind: str = "children",
    policy: str | None = None,
    fresh: Sequence[int] | None = None,
) -> Statement[int]:
    """Enqueue jobs for a call, once, and return the id of the call. More than a thousand are sent in chunks, in their order.

    `total`: how many there are in all; `digest`: of all of them. With others, the program has changed. `fresh`: an id for
    each job that has none.
    """
    return Statement(
        name="spawn",
        sql=f"select {_SPAWNED.columns}, {LOST.columns}"
        " from faultline.spawn(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::text)",
        params=(
            *_of(lease),
            number,
            kind,
            name,
            digest,
            policy or ("raise" if kind == "children" else None),
            len(jobs) if total is None else total,
            first_index,
            jobs_text(jobs, fresh),
        ),
        read=lambda rows: unless_stale("spawn", lease, rows, _SPAWNED).call_id,
        repeatable=True,
        often=True,
    )


def detach(
    lease: Lease, number: str, job: Submission, *, name: str, digest: str | None, fresh: Sequence[int]
) -> Statement[UUID]:
    """Enqueue a job for a call that does not wait for it, once, and return the id of the job."""
    spawned = spawn(lease, number, [job], name=name, digest=digest, kind="detached", fresh=fresh)
    read = lambda rows: UUID(unless_stale("spawn", lease, rows, _SPAWNED).detached[0])  # noqa: E731 - as in the others
    return replace(spawned, read=read)  # type: ignore[return-value,arg-type]  # another answer is read from it


def watch(
    lease: Lease, number: str, targets: Sequence[UUID], *, name: str, digest: str | None, policy: str = "raise"
) -> Statement[int]:
    """Have a call wait for jobs that are not its children, and return the id of the call."""
    return Statement(
        name="watch",
        sql=f"select {_CALL_ID.columns}, {LOST.columns} from faultline.watch(%s, %s, %s, %s, %s, %s, %s, %s::uuid[])",
        params=(*_of(lease), number, name, digest, policy, list(targets)),
        read=lambda rows: unless_stale("watch", lease, rows, _CALL_ID).call_id,
        repeatable=True,
    )


def collect_outcomes(lease: Lease, number: str) -> Statement[Taken]:
    """Take what became of the jobs that a call waits for. It is history then."""
    return Statement(
        name="collect_outcomes",
        sql=f"select {_TAKEN.columns}, {LOST.columns} from faultline.collect_outcomes(%s, %s, %s, %s)",
        params=(*_of(lease), number),
        read=lambda rows: unless_stale("collect_outcomes", lease, rows, _TAKEN),
        repeatable=True,
        often=True,
    )


def receive(
    lease: Lease, number: str, *, name: str, digest: str | None = None, seconds: float | None = None, fresh: bool = False
) -> Statement[Received]:
    """Receive the oldest signal of this name. `fresh`: only what was sent since the program first came to this call."""
    return Statement(
        name="receive",
        sql=f"select {_RECEIVED.columns}, {LOST.columns} from faultline.receive(%s, %s, %s, %s, %s, %s, %s, %s)",
        params=(*_of(lease), number, name, digest, seconds, fresh),
        read=lambda rows: unless_stale("receive", lease, rows, _RECEIVED),
        repeatable=True,
        often=True,
    )


def first_over(lease: Lease, waits: Sequence[Mapping[str, Json]]) -> Statement[FirstOver]:
    """Of the waits of a race, end the one that was over first, and no other."""
    return Statement(
        name="first_over",
        sql=f"select {_FIRST_OVER.columns}, {LOST.columns} from faultline.first_over(%s, %s, %s, %s::jsonb)",
        params=(*_of(lease), jsontext.encode(list(waits), "waits")),
        read=lambda rows: unless_stale("first_over", lease, rows, _FIRST_OVER),
        repeatable=True,
        often=True,
    )


def suspend(leases: Sequence[Lease], waits: Sequence[str]) -> Statement[Unwritten]:
    """Give leases back to wait, each for the JSON text of an array of waits."""
    texts = [text for _, text in zip(leases, waits, strict=True)]
    return for_leases("suspend", leases, f"[{','.join(texts)}]", "%s::jsonb", repeatable=False)


def continue_as_new(leases: Sequence[Lease], args: Sequence[str]) -> Statement[Unwritten]:
    """Begin jobs anew, each with the JSON text of its new arguments and without its history."""
    texts = [text for _, text in zip(leases, args, strict=True)]
    return for_leases("continue_as_new", leases, f"[{','.join(texts)}]", "%s::jsonb", repeatable=False)


# Without a lease


def history(job_id: UUID) -> Statement[list[KnownCall]]:
    """What the program of a job has called so far, in the order of the numbers."""
    return Statement(
        name="history",
        sql=f"select {_KNOWN_CALL.columns} from faultline.history(%s)",
        params=(job_id,),
        read=_KNOWN_CALL.many,
        repeatable=True,
        reads=True,
        often=True,
    )


def outcomes(call_id: int, after_index: int = -1, max_rows: int = 1000) -> Statement[list[ChildOutcome]]:
    """How the jobs of a call stand, a page of them in their order."""
    return Statement(
        name="outcomes",
        sql=f"select {_CHILD_OUTCOME.columns} from faultline.outcomes(%s, %s, %s)",
        params=(call_id, after_index, max_rows),
        read=_CHILD_OUTCOME.many,
        repeatable=True,
        reads=True,
        often=True,
    )


def signal(
    job_id: object,
    name: str,
    payload: Json = None,
    *,
    key: str | None = None,
    for_call: str | None = None,
    sent_by: str | None = None,
    idempotency_key: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[bool]:
    """Send a signal to a job: by its id, or None and its idempotency key. Returns whether it is new.

    With a `key` it counts once, however often it is sent. `for_call`: the number of the wait that it answers.
    """
    for what, text in (("name", name), ("key", key), ("idempotency key", idempotency_key)):
        jsontext.encode(text, f"{what} of a signal")
    return Statement(
        name="signal",
        sql="select faultline.signal(%s, %s, %s::jsonb, %s, %s, %s, %s, %s::text[])",
        params=(
            job_id,
            name,
            jsontext.encode(payload, f"payload of signal {name}"),
            key,
            for_call,
            sent_by,
            idempotency_key,
            None if only_queues is None else list(only_queues),
        ),
        read=value,
        repeatable=key is not None,
    )


def fork(
    job_id: UUID,
    before: str | None = None,
    args: Mapping[str, Json] | None = None,
    *,
    new_id: UUID | None = None,
    by: str | None = None,
    reason: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[UUID]:
    """Begin a new job with the history of another, up to the call with the number `before`. Returns its id.

    With an id of the caller's own it can be sent again.
    """
    return Statement(
        name="fork",
        sql="select faultline.fork(%s, %s, %s, %s, %s, %s, %s::text[])",
        params=(
            job_id,
            before,
            None if args is None else jsontext.encode(dict(args), f"arguments of a fork of job {job_id}"),
            new_id,
            by,
            reason,
            None if only_queues is None else list(only_queues),
        ),
        read=value,
        repeatable=new_id is not None,
    )


def resolve(max_nudges: int = 100, cursor: str | None = None) -> Statement[Resolved]:
    """Wake jobs that can go on. Never waits for a lock: what is locked is left over."""
    return Statement(
        name="resolve",
        sql=f"select {_RESOLVED.columns} from faultline.resolve(%s, %s::jsonb)",
        params=(max_nudges, cursor),
        read=_RESOLVED.one,
        repeatable=True,
        often=True,
    )


def sweep(max_jobs: int = 500) -> Statement[int]:
    """Cancel open children of jobs that have ended badly. Returns how many sweeps are left that can go on now."""
    return Statement("sweep", "select faultline.sweep(%s)", (max_jobs,), value, repeatable=True, often=True)


def _of(lease: Lease) -> tuple[Any, ...]:
    return lease.job_id, lease.fencing_token, lease.owner


def unless_stale(verb: str, lease: Lease, rows: Rows, answer: RowOf[T]) -> T:
    """The answer, unless the columns behind it say that the lease is lost."""
    (lost,) = LOST.many(rows, behind=answer)
    if lost.reason is not None:
        raise StaleLease(
            f"job {lease.job_id} token {lease.fencing_token}: the lease is lost ({lost.reason}); {verb} wrote nothing",
            reason=lost.reason,
            current_token=lost.current_token,
        )
    return answer.one(rows)
