"""The steps that the explorer's programs are made of: one statement each, with what the rules must know of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.core.ids import Ids
from faultline.core.model import Enqueued, Failure, JobState, Lease, Reaped, Submission, Unwritten
from faultline.store import verbs
from faultline.store.statement import Statement
from faultline.store.testing import clocks_say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

LEASE_SECONDS = 60
_owners = itertools.count(1)
_ids = Ids()


#: They may wait for the row of their job, or for somebody who uses the same key.
_OF_ONE_JOB = {"enqueue", "fence", "step", "progress", "cancel", "retry", "record_refusal", "recover"} | {
    "record",
    "spawn",
    "receive",
    "collect_outcomes",
    "watch",
    "signal",
    "stream",
    "fork",
    "continue_as_new",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a program."""

    verb: str
    statement: Statement[Any]
    #: What it is about, for the story: `first, token 1`.
    about: str = ""
    leases: tuple[Lease, ...] = ()
    submissions: tuple[Submission, ...] = ()
    job_id: UUID | None = None
    #: The queue of a claim, the ending of a failure, the name of a remembered step.
    word: str = ""
    #: The floor that `recover` is asked for.
    floor: int = 0
    #: When it is done makes no difference to anybody else: it is done in one turn with the step that follows.
    silent: bool = False
    #: What it may raise, where the verb does not say it.
    foreseen: tuple[type[Exception], ...] = ()
    #: It may wait, though its verb does not say so.
    patient: bool = False

    @property
    def may_wait(self) -> bool:
        """Verbs for many jobs skip what is locked: one row must not hold up all the others."""
        return self.patient or self.verb in _OF_ONE_JOB

    def __str__(self) -> str:
        return f"{self.verb} ({self.about})" if self.about else self.verb


def _plain(verb: str, sql: str, params: tuple[Any, ...] = (), **fields: Any) -> Step:
    return Step(verb, Statement(verb, sql, params, lambda _: None), **fields)


#: Takes no lock and, at READ COMMITTED, no snapshot.
BEGIN = _plain("begin", "begin", silent=True)
COMMIT = _plain("commit", "commit")
ROLLBACK = _plain("rollback", "rollback")
#: Time jumps past the end of every lease that was granted or renewed before.
LEASES_RUN_OUT = _plain(
    "the leases run out",
    "update time_of_the_explorer"
    " set since = clock_timestamp(), ahead_before = ahead, ahead = ahead + make_interval(secs => %s)",
    (LEASE_SECONDS + 1,),
)

#: Time for the protocol in the explorer's database: the server's, and ahead of it by what the programs have made it jump.
#: As with the real clocks, a statement that waits keeps its own idea of now, and the clock goes on meanwhile.
GROUND = """
create table time_of_the_explorer as
  select clock_timestamp() as since, interval '0' as ahead_before, interval '0' as ahead;
create table effects (job_id uuid not null, token bigint not null);
create index on effects (job_id);
create table changes (scene bigint not null, name text not null);
create table seen (id bigint generated always as identity, scene bigint not null, name text not null, args text);
""" + clocks_say(
    now="statement_timestamp() + (select case when statement_timestamp() >= since then ahead else ahead_before end"
    " from time_of_the_explorer)",
    clock="clock_timestamp() + (select ahead from time_of_the_explorer)",
)


def enqueue(submissions: Sequence[Submission]) -> Step:
    named = ", ".join(f"key {job.idempotency_key}" if job.idempotency_key else job.task for job in submissions)
    return Step("enqueue", verbs.enqueue_many(submissions, _ids), named, submissions=tuple(submissions))


def claim(queue: str, *, max_jobs: int = 10) -> Step:
    owner = f"w{next(_owners)}/1"
    return Step("claim", verbs.claim(queue, owner=owner, max_jobs=max_jobs), word=queue)


def complete(*leases: Lease) -> Step:
    return Step("complete", verbs.complete(leases, ["null"] * len(leases)), _about(leases), leases)


def renew(*leases: Lease) -> Step:
    return Step("renew", verbs.renew(leases), _about(leases), leases)


def release(*leases: Lease) -> Step:
    return Step("release", verbs.release(leases), _about(leases), leases)


def record_start(*leases: Lease) -> Step:
    return Step("record_start", verbs.record_start(leases), _about(leases), leases)


def fail(lease: Lease, then: str = "retry") -> Step:
    statement = verbs.fail([lease], [Failure("boom", then, 0)])
    return Step("fail", statement, f"{_about([lease])}, then {then}", (lease,), word=then)


def progress(lease: Lease) -> Step:
    return Step("progress", verbs.progress(lease, lease.fencing_token), _about([lease]), (lease,))


def remember(lease: Lease, name: str = "charge") -> Step:
    return Step("step", verbs.step(lease, name, lease.fencing_token), f"{name}, {_about([lease])}", (lease,), word=name)


def fence(lease: Lease) -> Step:
    return Step("fence", verbs.fence(lease), _about([lease]), (lease,))


def effect(lease: Lease) -> Step:
    """Write something of the job's own. Nobody reads it before the commit, and nobody waits for it."""
    sql, params = "insert into effects values (%s, %s)", (lease.job_id, lease.fencing_token)
    return _plain("effect", sql, params, about=_about([lease]), leases=(lease,), silent=True)


def record_refusal(lease: Lease) -> Step:
    return Step("record_refusal", verbs.record_refusal(lease), _about([lease]), (lease,))


def reap(*, notice_dead: bool = False) -> Step:
    return Step("reap", verbs.reap(notice_dead=notice_dead))


def all_sessions_end(lease: Lease) -> Step:
    """A standby was promoted: the holder of this lease lives, but its lock is gone and its last heartbeat is old."""
    return _plain(
        "a standby is promoted",
        "with silent as (insert into faultline.workers (id, started_at, heartbeat_at, watched, pid, host, version, queues,"
        " sleeping) values (split_part(%s, '/', 1), faultline.clock(), faultline.clock() - interval '10 seconds', true, 1,"
        " '', '', '{}', '{}') on conflict (id) do update set heartbeat_at = excluded.heartbeat_at)"
        " update faultline.settings set server_run = ''",
        (lease.owner,),
        about=_about([lease]),
    )


def heartbeat(lease: Lease) -> Step:
    """The holder of a lease is back, and has its lock again."""
    return _plain(
        "heartbeat",
        "select faultline.heartbeat(split_part(%s, '/', 1), '', 1, '', '{}', '{}', true)",
        (lease.owner,),
        about=_about([lease]),
    )


def cancel(name: str, job_id: UUID) -> Step:
    return Step("cancel", verbs.cancel(job_id), name, job_id=job_id)


def retry(name: str, job_id: UUID) -> Step:
    return Step("retry", verbs.retry(job_id), name, job_id=job_id)


def recover(floor: int) -> Step:
    return Step("recover", verbs.recover(floor), f"to {floor}", floor=floor)


def end_long_ago(name: str, job_id: UUID) -> Step:
    """Make the job's end so old that `prune` below finds it, and no job of another schedule."""
    sql = "update faultline.open_jobs set finished_at = finished_at - interval '1000 days' where id = %s"
    return _plain("end long ago", sql, (job_id,), about=name, job_id=job_id)


def prune() -> Step:
    return Step("prune", verbs.prune("failed", older_than_seconds=500 * 86400))


def _about(leases: Sequence[Lease]) -> str:
    return "; ".join(f"{lease.task}, token {lease.fencing_token}" for lease in leases)


def told(answer: object) -> str:
    """An answer in words."""
    match answer:
        case None:
            return "done"
        case Exception():
            return f"{type(answer).__name__}: {str(answer).splitlines()[0].split('. ')[0]}"
        case Unwritten():
            stale = [f"refused: {one.reason}, the current token is {one.current_token}" for one in answer.stale]
            return "; ".join([*stale, *("busy" for _ in answer.busy)]) or "accepted"
        case JobState():
            return answer.value
        case list():
            return "; ".join(map(_told_of_one, answer)) or "nothing"
    return str(answer)


def _told_of_one(answer: object) -> str:
    match answer:
        case Lease():
            return f"granted {answer.task}, token {answer.fencing_token}"
        case Reaped():
            return f"took token {answer.fencing_token} back, {answer.state}"
        case Enqueued():
            return f"{'a new job' if answer.created else 'known already'}: …{answer.job_id.hex[-4:]}"
    return str(answer)
