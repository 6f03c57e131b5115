"""The doctor's checks: turn what was read into findings, each with a level and what to do. They use no database.

`wrong`: a promise is broken, or the next crash will break it. `warning`: it will get slow, or nobody maintains it.
`note`: worth knowing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from faultline.core.bounds import CLAIMS_AT_ONCE
from faultline.explain.formatting import number_of, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from faultline.core.settings import DatabaseSettings
    from faultline.store.install.schema_text import Protocol
    from faultline.store.reads import doctor_queries
    from faultline.store.reads.health import Health
    from faultline.store.reads.overview import WorkerLine
    from faultline.store.reads.suspended import FlowTotals, Some


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    found: str
    #: What to do; empty: nothing.
    todo: str = ""
    rows: tuple[Any, ...] = ()


OK, NOTE, WARNING, WRONG = Level
#: Settings that `settings` judges.
SETTINGS = (
    "autovacuum", "track_counts", "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names",
    "wal_level", "archive_mode", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
    "data_checksums", "max_connections", "default_transaction_read_only",
)  # fmt: skip
_SKEW_SECONDS = 2.0
_OLD_TRANSACTION_SECONDS = 300.0
_OLD_XIDS = 1_000_000
_WRAP_NEAR = 1_200_000_000
_WAL_RETAINED_BYTES = 1 << 30
_DEAD_ROWS = 100_000
_CONNECTIONS_SHARE = 0.8
_SILENT_SECONDS = 10.0
_NUDGE_SECONDS = 10.0
_WAITED_SECONDS = 60.0
_PAUSED_LONG_SECONDS = 86_400.0


def server(seen: doctor_queries.Server, *, pooler: bool) -> Iterator[Finding]:
    yield Finding("connection", OK, f"database {seen.database} as {seen.user}{', through a pooler' if pooler else ''}")
    if seen.version_number < 150000:  # noqa: PLR2004 - PostgreSQL 15
        yield Finding(
            "server version", WRONG, f"PostgreSQL {seen.version}", "Faultline needs 15 or newer: upgrade the server"
        )
    else:
        yield Finding("server version", OK, f"PostgreSQL {seen.version}")
    if seen.is_standby:
        yield Finding("standby", WRONG, "this is a read-only standby", "connect to the primary")
    if pooler:
        yield Finding(
            "pooler",
            NOTE,
            "connected through a pooler",
            "fine for producers; connect workers directly if you can: behind a pooler they poll, and a dead worker's "
            "jobs are requeued only when their leases expire",
        )
    if seen.is_superuser:
        yield Finding("login", NOTE, f"{seen.user} is a superuser", "give each program its own login with one of the roles")
    if seen.xid_age > _WRAP_NEAR:
        yield Finding(
            "transaction ids",
            WARNING,
            f"{seen.xid_age:,} since the oldest row was frozen",
            "vacuum is not keeping up: see below what blocks it, then run VACUUM (FREEZE) on the largest tables",
        )


def clocks(ahead_seconds: float, workers: Sequence[WorkerLine]) -> Iterator[Finding]:
    """No decision uses these clocks, but the times in logs will differ."""
    level = NOTE if abs(ahead_seconds) > _SKEW_SECONDS else OK
    direction = "ahead of" if ahead_seconds > 0 else "behind"
    fact = f"this machine's clock is {span(abs(ahead_seconds))} {direction} the database's"
    yield Finding("clock", level, fact, "synchronise it with NTP; leases are not affected" if level is NOTE else "")
    for worker in workers:
        ahead = worker.clock_ahead_seconds
        if ahead is not None and abs(ahead) > _SKEW_SECONDS:
            fact = f"worker {worker.id} on {worker.host}: {span(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
            yield Finding("clock", NOTE, fact, "synchronise that machine's clock with NTP; leases are not affected")


def protocol(database: Protocol, ours: Protocol) -> Finding:
    """The two are compatible: otherwise the checks before this one would have failed."""
    if database.version > ours.version:
        fact = f"protocol {database.version}, newer than this build's {ours.version}, which it still supports"
        return Finding(
            "schema", NOTE, fact, "run the newer build's `faultline doctor` to check functions, guards and grants"
        )
    return Finding("schema", OK, f"protocol {database.version}, the same as this build")


def roles(seen: Sequence[doctor_queries.Role], *, superuser: bool) -> Iterator[Finding]:
    missing = [role.name for role in seen if not role.exists]
    ungranted = [role.name for role in seen if role.exists and not role.granted]
    if missing:
        yield Finding(
            "roles",
            NOTE,
            f"missing: {', '.join(missing)}",
            "the schema's owner can do everything without them; to grant programs less, run as an administrator: "
            + " ".join(f"create role {name} nologin;" for name in missing)
            + " then, as the schema's owner: faultline migrate",
        )
    if ungranted:
        yield Finding("roles", WARNING, f"roles that lack their grants: {', '.join(ungranted)}", "run: faultline migrate")
    if not missing and not ungranted:
        yield Finding("roles", OK, "all four exist and have their grants")
    for role in seen:
        if role.exists and role.logins:
            yield Finding(role.name, OK, f"logins: {', '.join(role.logins)}")
    if not superuser:
        ours = [role.name for role in seen if role.ours]
        yield Finding("login", OK, f"this login has {', '.join(ours) if ours else 'none of the roles: it is the owner'}")


def settings(seen: Mapping[str, doctor_queries.Setting]) -> Iterator[Finding]:
    values = {name: setting.value for name, setting in seen.items()}
    for name, level, todo in _MUST_BE_ON:
        if name in values:
            yield Finding(name, OK if values[name] == "on" else level, values[name], "" if values[name] == "on" else todo)
    if values.get("default_transaction_read_only") == "on":
        fact = f"on, set by: {seen['default_transaction_read_only'].source}. All writes fail"
        todo = "find out why (some hosting providers set it when the disk is nearly full), then reset it there and reconnect"
        yield Finding("default_transaction_read_only", WRONG, fact, todo)
    commit = values.get("synchronous_commit", "on")
    yield Finding(
        "synchronous_commit",
        NOTE if commit == "off" else OK,
        commit,
        "Faultline's functions turn it on for their own writes; your own writes may be lost in a crash"
        if commit == "off"
        else "",
    )
    minimal = values.get("wal_level") == "minimal"
    yield Finding(
        "wal_level",
        NOTE if minimal else OK,
        values.get("wal_level", "?"),
        "standbys and WAL archiving are impossible: set wal_level = replica" if minimal else "",
    )
    for name, short_ms, todo in TIMEOUTS:
        milliseconds = int(values.get(name, "0"))
        short = 0 < milliseconds < short_ms
        yield Finding(
            name, WARNING if short else OK, span(milliseconds / 1000) if milliseconds else "none", todo if short else ""
        )


#: Name, what happens if it is off, and what to do.
_MUST_BE_ON = (
    (
        "autovacuum",
        WRONG,
        "turn it on: every job leaves dead rows, and without vacuum the queue gets slower with every job",
    ),
    ("track_counts", WRONG, "turn it on: autovacuum needs these statistics to choose tables"),
    ("fsync", WRONG, "turn it on: a crash of the machine can lose acknowledged jobs and corrupt the database"),
    (
        "full_page_writes",
        WARNING,
        "turn it on, unless the file system prevents torn pages: a crash can corrupt the database",
    ),
    ("data_checksums", NOTE, "enable it with pg_checksums while the server is down, so that silent corruption is detected"),
)
#: Name, how short is too short, and why. Workers set their own; these are the defaults of other sessions.
TIMEOUTS = (
    ("statement_timeout", 1000, "enqueueing many jobs at once and `faultline migrate` may need longer; set it per login"),
    ("lock_timeout", 100, "operations on one job wait for its row lock: allow a second or more"),
    ("idle_in_transaction_session_timeout", 1000, "a program that pauses between two statements loses its connection"),
)


def durability(
    seen: Mapping[str, doctor_queries.Setting], standbys: Sequence[doctor_queries.Standby], *, sees_sessions: bool
) -> Iterator[Finding]:
    names = seen["synchronous_standby_names"].value if "synchronous_standby_names" in seen else ""
    if not standbys:
        level, todo = (WARNING, "commits wait for it: start the standby, or clear the setting") if names else (NOTE, "")
        archived = "archive_mode" in seen and seen["archive_mode"].value != "off"
        fact = f"no standby is connected{', but synchronous_standby_names is ' + names if names else ''}"
        yield Finding(
            "standbys",
            level,
            fact,
            todo or ("" if archived else "and WAL is not archived: losing the disk loses the queue"),
        )
        return
    if not sees_sessions:
        yield Finding(
            "standbys",
            NOTE,
            f"{len(standbys)} connected; this login may not see whether they are synchronous",
            _GRANT_MONITOR,
        )
        return
    synchronous = [standby.name for standby in standbys if standby.sync_state in ("sync", "quorum")]
    if synchronous:
        yield Finding("standbys", OK, f"{len(standbys)} connected, synchronous: {', '.join(synchronous)}")
    else:
        yield Finding(
            "standbys",
            WARNING,
            f"{len(standbys)} connected, none synchronous",
            "a failover may lose acknowledged jobs: set synchronous_standby_names, or run `faultline recover` after one",
        )


_GRANT_MONITOR = "to check it: grant pg_monitor to this login, which must inherit it"


def kept(seen: DatabaseSettings | None) -> Iterator[Finding]:
    """What `faultline settings` changes."""
    if seen is None:
        return  # the check of the guards reports it
    ages = {
        "succeeded jobs": seen.keep_succeeded_seconds,
        "failed and cancelled ones": seen.keep_failed_seconds,
        "the journal": seen.keep_journal_seconds,
        "idempotency keys": seen.keep_keys_seconds,
        "flows": seen.keep_flows_seconds,
    }
    yield Finding("kept", OK, ", ".join(f"{what} for {span(seconds)}" for what, seconds in ages.items()))
    yield Finding("sizes", OK, f"arguments of {seen.args_bytes_max:,} bytes at most, results of {seen.result_bytes_max:,}")


def held_back(seen: Health, slots: Sequence[doctor_queries.Slot]) -> Iterator[Finding]:
    """Vacuum cannot remove rows that an open snapshot may see, so claims read more and more dead rows."""
    holder = seen.oldest_snapshot
    seconds = holder.seconds if holder else None
    if holder and ((seconds or 0) > _OLD_TRANSACTION_SECONDS or (seconds is None and holder.age > _OLD_XIDS)):
        who = ", ".join(filter(None, (holder.user, holder.application, holder.state)))
        age = span(seconds) if seconds is not None else f"{holder.age:,} transactions"
        fact = f"{holder.kind} {holder.name} ({who}) holds a snapshot that is {age} old"
        yield Finding("snapshots", WARNING, fact, _END_HOLDER[holder.kind])
    elif seen.sees_sessions:
        yield Finding("snapshots", OK, "no old snapshot blocks vacuum")
    else:
        yield Finding("snapshots", NOTE, "snapshots of other logins were not checked", _GRANT_MONITOR)
    for slot in slots:
        if not slot.active and (slot.retained_bytes or 0) > _WAL_RETAINED_BYTES:
            fact = f"{slot.name} is unused and retains {slot.retained_bytes or 0:,} bytes of WAL"
            yield Finding("replication slots", WARNING, fact, "drop it or restart its consumer, or it will fill the disk")


_END_HOLDER = {
    "session": "claims get slower until it ends: find who left it open, or terminate it: select pg_terminate_backend(PID)",
    "prepared transaction": "commit prepared or rollback prepared, with this name",
    "slot": "restart its consumer, or drop it with pg_drop_replication_slot",
}


def bloat(seen: Health, never_vacuumed: Sequence[str]) -> Iterator[Finding]:
    for name in never_vacuumed:
        todo = f"alter table faultline.{name} reset (autovacuum_enabled)"
        yield Finding("vacuum", WRONG, f"autovacuum is disabled for {name}", todo)
    bloated = [table for table in seen.tables if table.dead_rows > max(_DEAD_ROWS, table.rows)]
    for table in bloated:
        last = f"{span((seen.at - table.vacuumed_at).total_seconds())} ago" if table.vacuumed_at else "never"
        fact = f"{table.name}: {table.dead_rows:,} dead rows, {table.rows:,} live, last vacuum {last}"
        yield Finding("bloat", WARNING, fact, f"see above what blocks vacuum, then: vacuum faultline.{table.name}")
    if not bloated:
        yield Finding("bloat", OK, f"{seen.table_bytes / 1e6:,.0f} MB in total, few dead rows")


def unreachable(message: str) -> Finding:
    from faultline.store.connection.connecting import is_full  # noqa: PLC0415 - late, so that --help is quick

    todo = "start the server, or correct the DSN"
    if is_full(message):
        todo = (
            "the server is running but has no connection left for this login: see in pg_stat_activity who holds them (a"
            " superuser can still connect), close some, or raise the limit (max_connections, or the role's or database's)"
        )
    return Finding("connection", WRONG, message, todo)


def cut_short() -> Finding:
    """The server has cancelled what a session begins with, so nothing can be asked."""
    return Finding(
        "statement_timeout",
        WRONG,
        "it is so short that the server cancelled the first statement of this session; its programs fail too",
        "raise it where it is set: for the login (alter role ... set statement_timeout = '30s'), for the database (alter"
        " database ...), in the DSN, PGOPTIONS or postgresql.conf. To check the rest now:"
        " PGOPTIONS='-c statement_timeout=0' faultline doctor",
    )


def connections(seen: Health, listed: Sequence[WorkerLine] | None) -> Iterator[Finding]:
    """`listed`: None if this login may not see the workers."""
    workers = listed or ()
    used = f"{seen.connections}" if seen.sees_sessions else f"about {seen.connections}"
    counted = "workers not visible" if listed is None else f"{len(workers)} workers"
    fact = f"{used} of {seen.connections_max} in use, {counted}"
    # If a worker does not say: the engine, the heartbeat and the listener, without its jobs' connections.
    most = sum(worker.connections_max or min(len(worker.queues), CLAIMS_AT_ONCE) + 3 for worker in workers)
    if seen.connections > _CONNECTIONS_SHARE * seen.connections_max:
        yield Finding("connections", WARNING, fact, "raise max_connections, or put a pooler in front of the producers")
    elif most > seen.connections_max:
        todo = "raise max_connections, lower --job-connections, or run fewer workers with more concurrency each"
        yield Finding("connections", WARNING, f"{fact}, which can open up to {most}", todo)
    else:
        yield Finding("connections", OK, fact)


def at_work(
    overdue: doctor_queries.Overdue, workers: Sequence[WorkerLine], waiting: Sequence[doctor_queries.Waiting]
) -> Iterator[Finding]:
    silent = [worker for worker in workers if worker.age_seconds > _SILENT_SECONDS]
    alive = [worker for worker in workers if worker not in silent]
    for worker in silent:
        fact = f"{worker.id} on {worker.host} (pid {worker.pid}): no heartbeat for {span(worker.age_seconds)}"
        yield Finding(
            "workers",
            WARNING,
            fact,
            "it is frozen, disconnected or dead; its jobs are requeued automatically. See its log",
        )
    if alive:
        yield Finding("workers", OK, f"{len(alive)} alive, holding {sum(worker.leases for worker in alive)} leases")
    elif not silent:
        yield Finding("workers", NOTE, "none is running", "start one: faultline worker MODULE:app")
    versions = sorted({worker.version for worker in alive})
    if len(versions) > 1:
        yield Finding("workers", NOTE, f"different versions are running: {', '.join(versions)}", "finish the upgrade")
    served = {queue for worker in alive for queue in worker.queues}
    for queue in waiting:
        if queue.queue not in served and not queue.paused:
            fact = f"{queue.queue}: jobs have been due for {span(queue.oldest_seconds)} and no worker serves the queue"
            yield Finding("waiting", WARNING, fact, f"start one: faultline worker MODULE:app --queue {queue.queue}")
        elif queue.oldest_seconds > _WAITED_SECONDS and not queue.paused:
            fact = f"{queue.queue}: the oldest due job has been waiting for {span(queue.oldest_seconds)}"
            yield Finding("waiting", WARNING, fact, "add workers, raise the concurrency, or make the tasks faster")
    if overdue.seconds > _WAITED_SECONDS:
        fact = f"{overdue.leases} expired up to {span(overdue.seconds)} ago and were not reaped"
        yield Finding("leases", WARNING, fact, "workers reap them: start one, or call faultline.reap()")


def known_tasks(waiting: Sequence[doctor_queries.WaitingTask], workers: Sequence[WorkerLine]) -> Iterator[Finding]:
    """A job whose task no live worker of its queue knows is released again and again, and never runs."""
    alive = [worker for worker in workers if worker.age_seconds <= _SILENT_SECONDS]
    unknown = 0
    for one in waiting:
        serving = [worker for worker in alive if one.queue in worker.queues]
        if serving and all(worker.tasks is not None and one.task not in worker.tasks for worker in serving):
            unknown += 1
            fact = (
                f"{one.task} ({one.queue}): {number_of(one.jobs, 'queued job', 'queued jobs')}, and none of"
                f" {len(serving)} live workers knows the task"
            )
            todo = f"deploy workers that register it; list the jobs: faultline jobs --state queued --task {one.task}"
            yield Finding("tasks", WARNING, fact, todo)
    if waiting and not unknown:
        yield Finding("tasks", OK, "every queued task is known to a worker of its queue, or no worker serves the queue")


def flows(totals: FlowTotals, for_nothing: Some, changed: Some) -> Iterator[Finding]:
    """Jobs that wait: are they looked at in time, and do they wait for something?"""
    late = totals.oldest_nudge_seconds > _NUDGE_SECONDS
    if late:
        fact = f"what a job waited for happened {span(totals.oldest_nudge_seconds)} ago, and the job was not looked at"
        todo = "workers look within a second: start one, or look for a transaction that holds the row of the job"
        yield Finding("flows", WARNING, fact, todo)
    if for_nothing.jobs:
        fact = f"{number_of(for_nothing.jobs, 'job waits', 'jobs wait')} for nothing, for example {for_nothing.example}"
        todo = "look at one: faultline flow ID; cancel it, or retry it from its beginning"
        yield Finding("flows", WARNING, fact, todo)
    if changed.jobs:
        jobs = number_of(changed.jobs, "job does", "jobs do")
        fact = f"{jobs} not go on because the code has changed, for example {changed.example}"
        todo = "`faultline job ID` names the call; deploy the code that they began with, or use job.patched"
        yield Finding("flows", WARNING, fact, todo)
    if totals.sweeps_left:
        yield Finding(
            "flows", NOTE, f"the children of {number_of(totals.sweeps_left, 'ended job', 'ended jobs')} are being cancelled"
        )
    if not (late or for_nothing.jobs or changed.jobs):
        kinds = ", ".join(f"{number:,} for {kind}" for kind, number in sorted(totals.waiting.items()))
        yield Finding("flows", OK, f"waiting: {kinds}" if kinds else "nothing waits")


def set_aside(failed: int, paused: Sequence[tuple[str, datetime, str | None]], now: datetime) -> Iterator[Finding]:
    for name, at, reason in paused:
        seconds = (now - at).total_seconds()
        fact = f"{name} has been paused for {span(seconds)}{': ' + reason if reason else ''}"
        yield Finding(
            "paused",
            WARNING if seconds > _PAUSED_LONG_SECONDS else NOTE,
            fact,
            f"to resume it: faultline queues resume {name}",
        )
    if failed:
        todo = "list them: faultline jobs --state failed; retry them: faultline retry --failed"
        yield Finding("failed jobs", NOTE, number_of(failed, "has failed", "have failed"), todo)
    else:
        yield Finding("failed jobs", OK, "none")
