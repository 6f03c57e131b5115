"""Tasks that do what tasks should not. Some succeed all the same and must harm nobody; others fail, each by itself.

What a task does to the session that it borrows, to the event loop and to the interpreter must not be felt by others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from faultline.app.blocking_job import BlockingJob  # noqa: TC001 - looked at when the task is registered
from faultline.app.job import Job  # noqa: TC001 - likewise
from faultline.attempt.outcomes import Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Callable

#: A role that may do nothing. Whoever claims or completes jobs as this role fails.
NOBODY = "soak_nobody"
NOBODY_MADE = f"do $$ begin if to_regrole('{NOBODY}') is null then create role {NOBODY}; end if; end $$"

#: What a job leaves behind in its session, each the end of a worker that goes on with it.
_HOSTILE = (
    "set statement_timeout = '1ms'",
    "set default_transaction_read_only = on",
    "set default_transaction_isolation = 'serializable'",
    "set search_path = nowhere",
    "set lock_timeout = '1ms'",
    "set synchronous_commit = off",
    "select pg_advisory_lock(42)",
    "create temp table left_behind as select 1 as n",
    "listen faultline",
    "deallocate all",
    "set timezone = 'Asia/Kathmandu'",
    "set datestyle = 'sql, dmy'",
    "set bytea_output = 'escape'",
)
_ROLES = (f"set role {NOBODY}", f"set session authorization {NOBODY}")


async def hostile_sql(job: Job, n: int) -> int:
    async with job.transaction() as tx:
        tx.connection.row_factory = dict_row  # type: ignore[assignment]
        await tx.execute(_HOSTILE[n % len(_HOSTILE)])
    return n


def hostile_sql_in_thread(job: BlockingJob, n: int) -> int:
    with job.transaction() as tx:
        tx.connection.row_factory = dict_row  # type: ignore[assignment]
        tx.execute(_HOSTILE[n % len(_HOSTILE)])
    return n


#: What befalls a session, none of it the task's doing: it stands for an administrator, a failover, a full disk, a bug.
_TROUBLES = (
    "select pg_terminate_backend(pg_backend_pid()), pg_sleep(1)",
    "select pg_cancel_backend(pg_backend_pid()), pg_sleep(1)",
    *(
        f"do $$ begin raise exception 'made up' using errcode = '{state}'; end $$"
        for state in ("25006", "40001", "40P01", "53100", "53200", "57P01", "58030", "XX000")
    ),
)
#: What a task makes of it: nothing, an error of its own, or it goes on as if nothing had happened.
_LET_OUT, _WRAP, _SWALLOW, _IN_SAVEPOINT = range(4)
#: Only its first runs meet with it.
_UNLUCKY_RUNS = 2


async def meet_trouble(job: Job, n: int) -> int:
    """None of its attempts may be used up."""
    trouble, way = _TROUBLES[n % len(_TROUBLES)], n // len(_TROUBLES) % 4
    async with job.transaction() as tx:
        if job.fencing_token > _UNLUCKY_RUNS:
            return n
        async with tx.connection.transaction() if way == _IN_SAVEPOINT else contextlib.nullcontext():
            try:
                await tx.execute(trouble)
            except psycopg.Error as error:
                if way == _WRAP:
                    raise RuntimeError("wrapped") from error
                if way != _SWALLOW:
                    raise
    return n


def meet_trouble_in_thread(job: BlockingJob, n: int) -> int:
    trouble, way = _TROUBLES[n % len(_TROUBLES)], n // len(_TROUBLES) % 4
    with job.transaction() as tx:
        if job.fencing_token > _UNLUCKY_RUNS:
            return n
        with tx.connection.transaction() if way == _IN_SAVEPOINT else contextlib.nullcontext():
            try:
                tx.execute(trouble)
            except psycopg.Error as error:
                if way == _WRAP:
                    raise RuntimeError("wrapped") from error
                if way != _SWALLOW:
                    raise
    return n


async def block_loop(n: int, seconds: float) -> int:
    """Nothing else runs on the event loop of this worker."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is the fault
    return n


async def hold_interpreter(n: int, seconds: float) -> int:
    """One call into C that does not let go of the interpreter: no thread of this process runs."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return n


# These fail, each by itself


async def exceed_own_limit(job: Job, n: int) -> int:
    """A time limit that a task has set itself looks like a statement that somebody has cancelled."""
    async with job.transaction() as tx:
        await tx.execute("set local statement_timeout = '5ms'")
        await tx.execute("select pg_sleep(1)")
    return n


def exceed_own_limit_in_thread(job: BlockingJob, n: int) -> int:
    with job.transaction() as tx:
        tx.execute("set local statement_timeout = '5ms'")
        tx.execute("select pg_sleep(1)")
    return n


async def raw_commit(job: Job, n: int) -> int:
    """What follows the commit would not be fenced."""
    async with job.transaction() as tx:
        await tx.connection.execute("commit")
        await tx.execute("select 1")
    return n


def raw_commit_in_thread(job: BlockingJob, n: int) -> int:
    with job.transaction() as tx:
        tx.connection.execute("commit")
        tx.execute("select 1")
    return n


async def cancel_itself(n: int) -> int:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101
    task.cancel()
    await asyncio.sleep(0)
    return n


async def give_invalid_outcome(n: int) -> object:
    return _INVALID[n % len(_INVALID)]()


def give_invalid_outcome_in_thread(n: int) -> object:
    return _INVALID[n % len(_INVALID)]()


_INVALID: tuple[Callable[[], object], ...] = (
    lambda: Snooze(-1.0),
    lambda: Snooze(math.nan),
    lambda: Snooze(math.inf),
    lambda: Snooze(None),  # type: ignore[arg-type]
    lambda: Retry(error=ValueError("no text")),
    lambda: Retry(after=math.nan),
    lambda: Retry(after=-5.0),
    object,
    lambda: {"a": [object()]},
    lambda: "\x00",
    lambda: "x" * 2_000_000,
)

# These end in whatever way


async def change_role(job: Job, n: int) -> int:
    """As this role nobody can see whether the transaction is still the fenced one, so the job fails by itself."""
    async with job.transaction() as tx:
        await tx.execute(_ROLES[n % len(_ROLES)])
    return n


def change_role_in_thread(job: BlockingJob, n: int) -> int:
    with job.transaction() as tx:
        tx.execute(_ROLES[n % len(_ROLES)])
    return n


async def swallow_cancellation(n: int) -> int:
    """Runs into its timeout and goes on."""
    for _ in range(2):
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            continue
    return n


#: Kinds of faults that jobs bring with them: their tasks, each with its share of all jobs.
KINDS: dict[str, dict[Callable[..., Any], float]] = {
    "hostile SQL": {hostile_sql: 1.0, hostile_sql_in_thread: 0.5, change_role: 0.2, change_role_in_thread: 0.2},
    "sessions that fail": {
        meet_trouble: 0.4,
        meet_trouble_in_thread: 0.2,
        exceed_own_limit: 0.1,
        exceed_own_limit_in_thread: 0.1,
    },
    "event loop blocked": {block_loop: 0.0},
    "interpreter held": {hold_interpreter: 0.0},
    "misbehaving task": {
        cancel_itself: 0.1,
        give_invalid_outcome: 0.3,
        give_invalid_outcome_in_thread: 0.1,
        swallow_cancellation: 0.05,
    },
    "raw commit": {raw_commit: 0.1, raw_commit_in_thread: 0.1},
}
#: What is submitted every so many seconds, since one of them stops a whole worker.
EVERY_SECONDS = {block_loop: 12.0, hold_interpreter: 20.0}
TASKS = {task.__name__: task for tasks in KINDS.values() for task in tasks}
DOOMED = frozenset(
    task.__name__
    for task in (
        raw_commit,
        raw_commit_in_thread,
        cancel_itself,
        give_invalid_outcome,
        give_invalid_outcome_in_thread,
        exceed_own_limit,
        exceed_own_limit_in_thread,
    )
)
ANY_END = frozenset(task.__name__ for task in (swallow_cancellation, change_role, change_role_in_thread))
TIMEOUTS_SECONDS = {swallow_cancellation.__name__: 0.5}
