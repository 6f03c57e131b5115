"""Claim jobs, and do what only the holder of a lease may do: renew, complete, fail, release, fence, step."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.core.errors import UnreadableJson
from faultline.core.model import Lease, Reason, Refusal, Unwritten
from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, value, values
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import Bound, Failure, Json
    from faultline.store.statement import Rows


class _Refused(NamedTuple):
    """A lease for which nothing was written. Every verb that takes leases returns these rows."""

    job_id: UUID
    fencing_token: int
    owner: str
    reason: Reason
    current_token: int | None


_REFUSED = RowOf(_Refused, reason=Column("reason", Reason))
#: Every job that runs is one of these rows, so each row becomes a lease directly, for speed. The fields of a lease that are
#: not columns come last.
_CLAIMED = RowOf(Lease, ("owner", "fault"), args="args::text", key="idempotency_key", group="group_key").columns


def claim(
    queue: str, *, owner: str, max_jobs: int, bounds: Sequence[Bound] = (), syncs: bool = False
) -> Statement[list[Lease]]:
    """Claim due jobs, those of flows too, the most urgent first. `owner` must be new for every call.

    `syncs`: the caller runs none of them before `sync_claim` has returned True.
    """
    given = "%s, %s, %s, %s::integer[], %s::timestamptz[], %s::uuid[]" + (", true" if syncs else "")
    ordered = sorted(bounds, key=lambda bound: bound.priority)
    return Statement(
        name="claim",
        sql=f"select {_CLAIMED} from faultline.claim({given})",
        params=(
            queue,
            owner,
            max_jobs,
            _array(str(bound.priority) for bound in ordered),
            _array(bound.run_at.isoformat() for bound in ordered),
            _array(bound.id.hex for bound in ordered),
        ),
        read=lambda rows: _leases(rows, owner),
        binary=True,
        often=True,
    )


def claimed_by(owner: str) -> Statement[list[Lease]]:
    """The jobs that a claim took whose answer was lost."""
    return Statement(
        name="claimed_by",
        sql=f"select {_CLAIMED} from (select *, id as job_id,"
        " faultline.needs_start_record(attempt, max_attempts, reaps) as needs_start_record, flow_id is not null as in_flow,"
        " extract(epoch from lease_expires_at - claimed_at)::real as lease_seconds from faultline.jobs) j"
        " where state = 'running' and owner = %s",
        params=(owner,),
        read=lambda rows: _leases(rows, owner),
        repeatable=True,
    )


def sync_claim(lease: Lease) -> Statement[bool]:
    """Wait until the claim that got this lease is on the disk. False: it is not there any more."""
    return Statement(
        name="sync_claim",
        sql="select faultline.sync_claim(%s, %s, %s)",
        params=(lease.job_id, lease.fencing_token, lease.owner),
        read=value,
        repeatable=True,
        often=True,
    )


def renew(leases: Sequence[Lease]) -> Statement[Unwritten]:
    return for_leases("renew", leases)


def record_start(leases: Sequence[Lease]) -> Statement[Unwritten]:
    """Record that these attempts are about to run. Do not run those that are stale in the answer."""
    return for_leases("record_start", leases)


def complete(
    leases: Sequence[Lease], results: Sequence[str], *, only_if: str = "true", claims: bool = False
) -> Statement[Unwritten]:
    """Move finished jobs to the ledger, each with the JSON text of its result.

    `Unwritten.stale` lists the leases that were lost; nothing was written for them. `only_if`: see `fencing`. `claims`: the
    caller claims again at once, so nobody else is woken for the permits that this frees.
    """
    given = "%s::jsonb" if only_if == "true" else f"case when {only_if} then %s::jsonb end"
    given += ", true" if claims else ""
    texts = [text for _, text in zip(leases, results, strict=True)]
    return for_leases("complete", leases, f"[{','.join(texts)}]", given)


def fail(leases: Sequence[Lease], failures: Sequence[Failure]) -> Statement[Unwritten]:
    """End attempts that did not succeed: queue the job again, or end it."""
    endings = [
        {
            "then": failure.then,
            "error": failure.error,
            "delay_seconds": failure.delay_seconds,
            **({"calls": failure.calls} if failure.calls else {}),
        }
        for _, failure in zip(leases, failures, strict=True)
    ]
    return for_leases("fail", leases, jsontext.encode(endings, "failures"), "%s::jsonb", repeatable=False)


def release(leases: Sequence[Lease], delays_seconds: Sequence[float | None] | None = None) -> Statement[Unwritten]:
    """Release jobs unfinished, without using up the attempt. A delay reschedules them; None keeps their position."""
    delays = None if delays_seconds is None else list(delays_seconds)
    return for_leases("release", leases, delays, "%s::float8[]", repeatable=False)


def fence(lease: Lease) -> Statement[None]:
    """Guard the effects that follow in the same transaction. Raises `StaleLease` if the lease is lost."""
    return Statement(
        name="fence",
        sql="select faultline.fence(%s, %s, %s)",
        params=(lease.job_id, lease.fencing_token, lease.owner),
        read=lambda _: None,
    )


def record_refusal(lease: Lease) -> Statement[Unwritten]:
    """Record a refused fence after the rollback of its transaction."""
    return for_one_lease("record_refusal", lease, ())


def step(lease: Lease, name: str, result: Json) -> Statement[Unwritten]:
    """Remember the result of a named part of the job."""
    return for_one_lease("step", lease, (name, jsontext.encode(result, f"result of step {name}")), "%s, %s::jsonb")


def recall(lease: Lease, name: str) -> Statement[tuple[bool, Json]]:
    """Whether a step was completed before, and its result."""
    return Statement(
        name="recall",
        sql="select result::text from faultline.recall(%s, %s)",
        params=(lease.job_id, name),
        read=lambda rows: (bool(rows), next((jsontext.decode(text) for text in values(rows) if text is not None), None)),
        repeatable=True,
    )


def progress(lease: Lease, progress: Json) -> Statement[Unwritten]:
    """Store the progress of the job, for people to see."""
    return for_one_lease("progress", lease, (jsontext.encode(progress, "progress"),), "%s::jsonb")


def wake_changed_programs(queues: Sequence[str], tasks: Sequence[str], code: str) -> Statement[int]:
    """Make jobs due whose program did not fit other code. Returns how many."""
    return Statement(
        name="wake_changed_programs",
        sql="select faultline.wake_changed_programs(%s::text[], %s::text[], %s)",
        params=(list(queues), list(tasks), code),
        read=value,
        repeatable=True,
    )


def program_changed(lease: Lease, code: str, error: str) -> Statement[float | None]:
    """The program does not fit the history of its job. Returns the seconds until the next try; None: the lease is lost."""
    return Statement(
        name="program_changed",
        sql="select faultline.program_changed(%s, %s, %s, %s, %s)",
        params=(lease.job_id, lease.fencing_token, lease.owner, code, error),
        read=value,
        repeatable=True,
    )


def _leases(rows: Rows, owner: str) -> list[Lease]:
    """Sort the rows, which come in physical order, into the order of the queue."""
    new_lease: Callable[..., Lease] = Lease
    leases = [new_lease(*row, owner) for row in rows]
    leases.sort(key=_position)
    for lease in leases:
        try:
            lease.args = jsontext.decode_args(lease.args)
        except UnreadableJson as error:
            # The claim is committed: raising here would strand the whole batch because of one job.
            lease.args, lease.fault = {}, str(error)
    return leases


def _position(lease: Lease) -> tuple[int, datetime, int]:
    # The id as a number: `UUID.__lt__` is slow, and jobs that were enqueued together are due at the same moment.
    return lease.priority, lease.next_run_at, lease.job_id.int


def for_leases(
    verb: str, leases: Sequence[Lease], extra: object = None, slot: str = "", *, repeatable: bool = True
) -> Statement[Unwritten]:
    """The statement of a verb that takes many leases, and one further argument."""
    return Statement(
        name=verb,
        sql=f"select {_REFUSED.columns}"
        f" from faultline.{verb}(%s::uuid[], %s::bigint[], %s::text[]{', ' + slot if slot else ''})",
        params=(
            _array([f"{lease.job_id.int:032x}" for lease in leases]),  # as `UUID.hex` does it, without a call for each job
            _array([str(lease.fencing_token) for lease in leases]),
            _array([_quoted(lease.owner) for lease in leases]),
            *((extra,) if slot else ()),
        ),
        read=lambda rows: _unwritten(rows, leases),
        repeatable=repeatable,
        often=True,
    )


def _array(elements: Iterable[str]) -> str:
    """An array in its text form: psycopg inspects every element of a list in Python, which costs more than all the rest."""
    return f"{{{','.join(elements)}}}"


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    """An element of a PostgreSQL array in its text form."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def for_one_lease(verb: str, lease: Lease, extra: tuple[Any, ...], slots: str = "") -> Statement[Unwritten]:
    """The statement of a verb that takes one lease, and further arguments."""
    return Statement(
        name=verb,
        sql=f"select {_REFUSED.columns} from faultline.{verb}(%s, %s, %s{', ' + slots if slots else ''})",
        params=(lease.job_id, lease.fencing_token, lease.owner, *extra),
        read=lambda rows: _unwritten(rows, [lease]),
        repeatable=verb != "record_refusal",
        often=True,
    )


def _unwritten(rows: Rows, leases: Sequence[Lease]) -> Unwritten:
    unwritten = Unwritten()
    if rows:
        # By the whole lease: after a failover that lost commits, one worker may hold two leases with the same token.
        held = {(lease.job_id, lease.fencing_token, lease.owner): lease for lease in leases}
        for refused in _REFUSED.many(rows):
            lease = held[refused.job_id, refused.fencing_token, refused.owner]
            if refused.reason is Reason.BUSY:
                unwritten.busy.append(lease)
            else:
                unwritten.stale.append(Refusal(lease, refused.reason, refused.current_token))
    return unwritten
