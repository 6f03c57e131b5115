"""The verbs, one function each: what to send and how to read the answer. No connection is used here.

A `Statement` is a value. Blocking and async databases run the same one, a caller's own connection can run it, and a
simulated database can too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from faultline.core.errors import UnreadableJson
from faultline.core.model import (
    Bound,
    Failure,
    JobState,
    Json,
    Lease,
    Placed,
    Reaped,
    Reason,
    Refusal,
    Settled,
    Submission,
)
from faultline.store import jsontext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from faultline.core.ids import Ids

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

_UPKEEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """One round trip. `repeatable`: sent twice it has the effect of being sent once, so a lost answer can be asked for."""

    name: str
    sql: str
    params: tuple[Any, ...]
    read: Callable[[Rows], T]
    repeatable: bool = False
    reads: bool = False  # it changes nothing: a lost answer leaves no doubt about that
    #: Ask for the answer in the server's own form: cheaper to write there and to read here, where there is much of it.
    binary: bool = False
    #: Sent again and again: a session that is ours alone parses and plans it once.
    often: bool = False
    #: What to send when it is sent again, if that differs.
    params_again: tuple[Any, ...] | None = None
    #: Decides at the moment of each send what to send: what was decided before an outage must not be used after it.
    params_now: Callable[[], tuple[Any, ...]] | None = None
    #: It may take this long where others are given up earlier: it looks at many rows.
    seconds: float = 0.0

    def limit(self, answer_seconds: float | None) -> float | None:
        return answer_seconds if answer_seconds is None else max(answer_seconds, self.seconds)


def enqueue_many(
    submissions: Sequence[Submission], ids: Ids | None = None, *, appears_late: bool = False
) -> Statement[list[Placed]]:
    """Put jobs into queues, all or none. With `ids`, jobs without one get theirs here, and the statement is repeatable.

    `appears_late`: the transaction is a larger one and commits some time after this statement.
    """
    if ids is not None and all(job.id is None and job.idempotency_key is None for job in submissions):
        return _enqueue_fresh(submissions, ids, appears_late=appears_late)
    named = [job if job.id is not None or ids is None else replace(job, id=ids.new()) for job in submissions]
    return Statement(
        name="enqueue",
        sql="select job_id, created from faultline.enqueue_many(%s::text, %s) order by place",
        params=(f"[{','.join([_job_text(job) for job in named])}]", appears_late),
        read=lambda rows: list(map(Placed._make, rows)),
        repeatable=all(job.id is not None or job.idempotency_key is not None for job in named),
        often=True,
    )


def _enqueue_fresh(submissions: Sequence[Submission], ids: Ids, *, appears_late: bool) -> Statement[list[Placed]]:
    """Ids that were made just now cannot be known yet: the database need not look for them, nor tell them back to us.

    Sent again, they can be; then it is said which ones were there already.
    """
    numbers = ids.new_numbers(len(submissions))
    texts = [_job_text(job, f"{number:032x}") for job, number in zip(submissions, numbers, strict=True)]
    document = f"[{','.join(texts)}]"

    def read(rows: Rows) -> list[Placed]:
        known = {place for (place,) in rows}
        return [Placed(UUID(int=number), place not in known) for place, number in enumerate(numbers, start=1)]

    return Statement(
        name="enqueue",
        sql="select place from faultline.enqueue_many(%s::text, %s, %s) where not created",
        params=(document, appears_late, True),
        params_again=(document, appears_late, False),
        read=read,
        repeatable=True,
        often=True,
    )


def claim(queue: str, *, owner: str, max_jobs: int, bounds: Sequence[Bound] = ()) -> Statement[list[Lease]]:
    """Take due jobs, the most urgent first. `owner` must be new for every call."""
    ordered = sorted(bounds, key=lambda bound: bound.priority)
    return Statement(
        name="claim",
        sql="select job_id, fencing_token, task, args::text, attempt, max_attempts, mark_start, reaps, priority,"
        " next_run_at, lease_seconds, idempotency_key"
        " from faultline.claim(%s, %s, %s, %s::integer[], %s::timestamptz[], %s::uuid[])",
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


def granted_to(owner: str) -> Statement[list[Lease]]:
    """What a claim whose answer was lost has taken, if it has."""
    return Statement(
        name="granted_to",
        sql="select id, fencing_token, task, args::text, attempt, max_attempts, attempt >= max_attempts or reaps > 0, reaps,"
        " priority, next_run_at, extract(epoch from lease_expires_at - claimed_at)::real, idempotency_key"
        " from faultline.jobs where state = 'running' and owner = %s",
        params=(owner,),
        read=lambda rows: _leases(rows, owner),
        repeatable=True,
    )


def renew(leases: Sequence[Lease]) -> Statement[Settled]:
    return _for_leases("renew", leases)


def mark_started(leases: Sequence[Lease]) -> Statement[Settled]:
    """Put on record that these attempts are about to run. Do not run the ones that come back as stale."""
    return _for_leases("mark_started", leases)


def complete(leases: Sequence[Lease], results: Sequence[str], *, only_if: str = "true") -> Statement[Settled]:
    """Move finished jobs to the ledger, each with the JSON text of its result.

    `Settled.stale` lists the leases that were lost; nothing was written for them. `only_if`: see `fencing`.
    """
    given = "%s::jsonb" if only_if == "true" else f"case when {only_if} then %s::jsonb end"
    texts = [text for _, text in zip(leases, results, strict=True)]
    return _for_leases("complete", leases, f"[{','.join(texts)}]", given)


def fail(leases: Sequence[Lease], failures: Sequence[Failure]) -> Statement[Settled]:
    """End attempts that did not succeed: queue them again, or end the job."""
    endings = [
        {"then": failure.then, "error": failure.error, "delay_seconds": failure.delay_seconds}
        for _, failure in zip(leases, failures, strict=True)
    ]
    return _for_leases("fail", leases, jsontext.encode(endings, "failures"), "%s::jsonb", repeatable=False)


def release(leases: Sequence[Lease], delays_seconds: Sequence[float | None] | None = None) -> Statement[Settled]:
    """Give jobs back unfinished, with their attempt. With a delay they sleep that long, otherwise they keep their place."""
    delays = None if delays_seconds is None else list(delays_seconds)
    return _for_leases("release", leases, delays, "%s::float8[]", repeatable=False)


def fence(lease: Lease) -> Statement[None]:
    """Guard the effects that follow in the same transaction. Raises `StaleLease` when the lease is not good."""
    return Statement(
        name="fence",
        sql="select faultline.fence(%s, %s, %s)",
        params=(lease.job_id, lease.fencing_token, lease.owner),
        read=lambda _: None,
    )


def record_refusal(lease: Lease) -> Statement[Settled]:
    """Put a refused fence on record, after its transaction was rolled back."""
    return _for_one_lease("record_refusal", lease, ())


def step(lease: Lease, name: str, result: Json) -> Statement[Settled]:
    """Remember the result of a named part of the job."""
    return _for_one_lease("step", lease, (name, jsontext.encode(result, f"result of step {name}")), "%s, %s::jsonb")


def recall(lease: Lease, name: str) -> Statement[tuple[bool, Json]]:
    """Ask whether a step was done before, and what it gave."""
    return Statement(
        name="recall",
        sql="select result::text from faultline.recall(%s, %s)",
        params=(lease.job_id, name),
        read=lambda rows: (bool(rows), jsontext.decode(rows[0][0]) if rows and rows[0][0] is not None else None),
        repeatable=True,
    )


def progress(lease: Lease, progress: Json) -> Statement[Settled]:
    """Show how far the job has come."""
    return _for_one_lease("progress", lease, (jsontext.encode(progress, "progress"),), "%s::jsonb")


def first_expired(lower_bound: datetime | None = None) -> Statement[datetime]:
    """From which time on leases may have run out that nobody has taken back; nothing before the bound is looked at."""
    return Statement(
        name="first_expired",
        sql="select faultline.first_expired(coalesce(%s, '-infinity'::timestamptz))",
        params=(lower_bound,),
        read=lambda rows: rows[0][0],
        repeatable=True,
        seconds=_UPKEEP_SECONDS,
    )


def reap(
    *,
    max_jobs: int = 1000,
    notice_dead: bool | Callable[[], bool] = True,
    withheld: Callable[[], bool] = lambda: False,
    lower_bound: datetime | None = None,
) -> Statement[list[Reaped]]:
    """Take back the jobs of the dead. Before the bound nothing that has run out is held any more: see `first_expired`.

    Functions are asked at the moment of each send: a connection may have been waited for, or lost, or this process may have
    been stopped meanwhile. While `withheld`, nothing is taken.
    """

    def params() -> tuple[Any, ...]:
        is_noticing = notice_dead() if callable(notice_dead) else notice_dead
        return (0 if withheld() else max_jobs, is_noticing, lower_bound)

    return Statement(
        name="reap",
        sql="select job_id, fencing_token, owner, state, reason, queue, task, attempt, max_attempts, last_error"
        " from faultline.reap(%s, %s, coalesce(%s, '-infinity'::timestamptz))",
        params=params(),
        params_now=params,
        read=lambda rows: [Reaped(row[0], row[1], row[2], JobState(row[3]), *row[4:]) for row in rows],
        repeatable=True,
        seconds=_UPKEEP_SECONDS,
    )


def cancel(
    job_id: object, reason: str | None = None, *, only_queues: Sequence[str] | None = None, by: str | None = None
) -> Statement[JobState]:
    """Stop a job for good. Whoever runs it can write nothing more. With `only_queues`, no other queue's job exists."""
    sql = "select faultline.cancel(%s, %s, %s::text[], %s)"
    params = (job_id, reason, None if only_queues is None else list(only_queues), by)
    return Statement("cancel", sql, params, lambda rows: JobState(rows[0][0]), repeatable=True)


def retry(
    job_id: object, *, only_queues: Sequence[str] | None = None, by: str | None = None, reason: str | None = None
) -> Statement[JobState]:
    """Give a job that ended badly another chance. With `only_queues`, no other queue's job exists."""
    sql = "select faultline.retry(%s, %s::text[], %s, %s)"
    params = (job_id, None if only_queues is None else list(only_queues), by, reason)
    return Statement("retry", sql, params, lambda rows: JobState(rows[0][0]))


def pause(queue: str, reason: str | None = None, *, by: str | None = None) -> Statement[datetime]:
    """Grant no more jobs of a queue. Answers with the time since when that holds."""
    sql = "select faultline.pause(%s, %s, %s)"
    return Statement("pause", sql, (queue, reason, by), lambda rows: rows[0][0], repeatable=True)


def resume(queue: str, *, by: str | None = None, reason: str | None = None) -> Statement[bool]:
    """Grant jobs of a queue again. Answers whether it was paused."""
    sql, params = "select faultline.resume(%s, %s, %s)", (queue, by, reason)
    return Statement("resume", sql, params, lambda rows: bool(rows[0][0]), repeatable=True)


def beat(
    worker_id: str,
    *,
    host: str,
    pid: int,
    version: str,
    queues: Sequence[str],
    sleeping: Sequence[str],
    watched: bool,
    leases: int = 0,
    clock_ahead_seconds: float | None = None,
) -> Statement[datetime]:
    """Say that this worker is alive. Answers with the database's time."""
    return Statement(
        name="beat",
        sql="select faultline.beat(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        params=(worker_id, host, pid, version, list(queues), list(sleeping), watched, leases, clock_ahead_seconds),
        read=lambda rows: rows[0][0],
        repeatable=True,
    )


def announce(worker_id: str, tasks: Sequence[str], connections_max: int | None = None) -> Statement[bool]:
    """Say which tasks this worker knows and what it may open. Answers whether it is on the list of workers yet."""
    return Statement(
        name="announce",
        sql="select faultline.announce(%s, %s::text[], %s)",
        params=(worker_id, list(tasks), connections_max),
        read=lambda rows: bool(rows[0][0]),
        repeatable=True,
    )


def tally(worker_id: str, rows: Sequence[Mapping[str, Json]]) -> Statement[None]:
    """Tell what this worker did, for each queue since its row's minute began."""
    return Statement(
        name="tally",
        sql="select faultline.tally(%s, %s::jsonb)",
        params=(worker_id, jsontext.encode(list(rows), "tallies")),
        read=lambda _: None,
        repeatable=True,
    )


def sample() -> Statement[bool]:
    """Count what waits, unless that was done a moment ago. Answers whether it was done now."""
    sampled = Statement("sample", "select faultline.sample()", (), lambda rows: bool(rows[0][0]), repeatable=True)
    return replace(sampled, seconds=_UPKEEP_SECONDS)


def roll_up() -> Statement[int]:
    """Sum up what was measured long ago."""
    summed = Statement("roll_up", "select faultline.roll_up()", (), lambda rows: int(rows[0][0]), repeatable=True)
    return replace(summed, seconds=_UPKEEP_SECONDS)


def leave(worker_id: str) -> Statement[None]:
    return Statement("leave", "select faultline.leave(%s)", (worker_id,), lambda _: None, repeatable=True)


def recover(floor: int | None = None) -> Statement[tuple[int, int, int]]:
    """Void every lease, and grant only tokens above a floor: (floor, tokens lifted to it, jobs queued again)."""
    return Statement(
        name="recover",
        sql="select lifted_to, lifted, requeued from faultline.recover(%s)",
        params=(floor,),
        read=lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
    )


def reconcile(*, max_jobs: int = 1000) -> Statement[list[Any]]:
    """Close open rows whose job stands in the ledger."""
    return Statement(
        name="reconcile",
        sql="select * from faultline.reconcile(%s)",
        params=(max_jobs,),
        read=lambda rows: [row[0] for row in rows],
        repeatable=True,
        seconds=_UPKEEP_SECONDS,
    )


def prune(what: str, *, older_than_seconds: float, max_rows: int = 1000) -> Statement[int]:
    """Forget ledger, failed, journal or keys rows of that age."""
    return Statement(
        name="prune",
        sql="select faultline.prune(%s, make_interval(secs => %s), %s)",
        params=(what, older_than_seconds, max_rows),
        read=lambda rows: int(rows[0][0]),
        repeatable=True,
        seconds=_UPKEEP_SECONDS,
    )


def _job_text(job: Submission, fresh_id: str | None = None) -> str:
    """Build the JSON of one job by hand: its arguments are JSON text already and must not be parsed and written again."""
    own = ""
    if fresh_id is not None:
        own = f',"id":"{fresh_id}"'
    elif job.id is not None:
        own = f',"id":"{job.id}"'
    if job.idempotency_key is not None:
        own += f',"idempotency_key":{jsontext.encode(job.idempotency_key, "idempotency_key")}'
    if job.digest is not None:
        own += f',"digest":{jsontext.encode(job.digest, "digest")}'
    if job.run_at is not None:
        own += f',"run_at":"{job.run_at.isoformat()}"'
    if job.trace is not None:
        own += f',"trace":{jsontext.encode(job.trace, "trace")}'
    common = _common_text(
        job.task, job.queue, job.priority, job.delay_seconds, job.max_attempts, job.lease_seconds, job.keep_args
    )
    return f'{{{common}{own},"args":{job.args}}}'


@lru_cache(maxsize=1024)
def _common_text(
    task: str,
    queue: str | None,
    priority: int | None,
    delay_seconds: float | None,
    max_attempts: int | None,
    lease_seconds: float | None,
    keep_args: bool | None,  # noqa: FBT001
) -> str:
    fields = {
        "task": task,
        "queue": queue,
        "priority": priority,
        "delay_seconds": delay_seconds,
        "max_attempts": max_attempts,
        "lease_seconds": lease_seconds,
        "keep_args": keep_args,
    }
    return jsontext.encode({name: value for name, value in fields.items() if value is not None}, f"job of {task}")[1:-1]


def _leases(rows: Rows, owner: str) -> list[Lease]:
    """The rows come in physical order; they are to be run in the order of the queue."""
    rows.sort(key=_place_in_queue)
    leases = []
    for job_id, token, task, text, attempt, most, mark, reaps, priority, due, seconds, key in rows:
        try:
            args, fault = jsontext.decode_args(text), None
        except UnreadableJson as error:
            # The claim is committed: raising here would strand the whole batch for the sake of one job.
            args, fault = {}, str(error)
        leases.append(
            Lease(job_id, token, owner, task, args, attempt, most, mark, reaps, priority, due, seconds, key, fault)
        )
    return leases


def _place_in_queue(row: tuple[Any, ...]) -> tuple[int, datetime, int]:
    # Its number: UUIDs are compared in Python, and jobs that were enqueued together are due at the same moment.
    return row[8], row[9], row[0].int


def _for_leases(
    verb: str, leases: Sequence[Lease], extra: object = None, place: str = "", *, repeatable: bool = True
) -> Statement[Settled]:
    return Statement(
        name=verb,
        sql=f"select job_id, fencing_token, owner, reason, current_token"
        f" from faultline.{verb}(%s::uuid[], %s::bigint[], %s::text[]{', ' + place if place else ''})",
        params=(
            _array([lease.job_id.hex for lease in leases]),
            _array([str(lease.fencing_token) for lease in leases]),
            _array([_quoted(lease.owner) for lease in leases]),
            *((extra,) if place else ()),
        ),
        read=lambda rows: _settled(rows, leases),
        repeatable=repeatable,
        often=True,
    )


def _array(elements: Iterable[str]) -> str:
    """In its text form: psycopg looks at every element of a list in Python, which costs more than all the rest."""
    return f"{{{','.join(elements)}}}"


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    """An element of a PostgreSQL array in its text form."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _for_one_lease(verb: str, lease: Lease, extra: tuple[Any, ...], places: str = "") -> Statement[Settled]:
    return Statement(
        name=verb,
        sql=f"select job_id, fencing_token, owner, reason, current_token"
        f" from faultline.{verb}(%s, %s, %s{', ' + places if places else ''})",
        params=(lease.job_id, lease.fencing_token, lease.owner, *extra),
        read=lambda rows: _settled(rows, [lease]),
        repeatable=verb != "record_refusal",
        often=True,
    )


def _settled(rows: Rows, leases: Sequence[Lease]) -> Settled:
    settled = Settled()
    if rows:
        # By the whole lease: after a failover that took tokens back, one worker may hold two with the same token.
        held = {(lease.job_id, lease.fencing_token, lease.owner): lease for lease in leases}
        for job_id, token, owner, reason, current_token in rows:
            lease = held[job_id, token, owner]
            if reason == Reason.BUSY:
                settled.busy.append(lease)
            else:
                settled.stale.append(Refusal(lease, Reason(reason), current_token))
    return settled
