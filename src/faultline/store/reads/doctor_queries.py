"""What the doctor reads besides the database's health: the server, its settings and roles, and jobs that no worker takes.

Each read is one statement and needs no rights: what a login may not see is reported as unseen, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from faultline.core.errors import DatabaseBusy, FaultlineError, PermissionDenied, StatementTimeout
from faultline.core.journal import JournalEvent
from faultline.store.connection.session_settings import is_direct
from faultline.store.database import run_on
from faultline.store.install import migrate
from faultline.store.rows import RowOf, value, values
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import psycopg

T = TypeVar("T")
ROLES = ("faultline_producer", "faultline_worker", "faultline_viewer", "faultline_operator")


class Unseen(NamedTuple):
    """The login may not see it."""

    why: str


class CutShort(NamedTuple):
    """A timeout of the session ended the statement."""

    why: str


@dataclass(frozen=True, slots=True)
class Server:
    version: str
    version_number: int
    user: str
    database: str
    is_superuser: bool
    #: Whether the login sees the queries of others.
    sees_sessions: bool
    is_standby: bool
    clock: datetime
    started_at: datetime
    xid_age: int


class Setting(NamedTuple):
    """A value in its unit (`ms`, `8kB`); the unit is empty where there is none."""

    value: str
    unit: str
    #: Where it was set, in PostgreSQL's words: `database`, `user`, `configuration file`.
    source: str = ""
    name: str = ""


class Role(NamedTuple):
    name: str
    exists: bool
    #: It has the right to use the schema. False also if the role does not exist.
    granted: bool
    #: The connected login may take it.
    ours: bool
    #: The logins that may take it.
    logins: list[str]


class Standby(NamedTuple):
    name: str
    sync_state: str | None


class Slot(NamedTuple):
    name: str
    active: bool
    retained_bytes: int | None


class Waiting(NamedTuple):
    """A queue with due jobs, and the age of the oldest."""

    queue: str
    oldest_seconds: float
    paused: bool


class LostHistory(NamedTuple):
    """Jobs that workers held under leases that the database does not know, and when that was first seen."""

    jobs: int
    since: datetime | None


class InTheWay(NamedTuple):
    """A session that blocks ours. Parts of other logins' sessions may be hidden."""

    pid: int
    application: str | None
    login: str | None
    state: str | None
    #: For how long its transaction has been open.
    seconds: float | None


class Overdue(NamedTuple):
    """Expired leases that are not reaped."""

    leases: int
    seconds: float


class Paused(NamedTuple):
    """A queue that is paused: since when, and why."""

    queue: str
    at: datetime
    reason: str | None


class WaitingTask(NamedTuple):
    """Queued jobs of one task in one queue."""

    queue: str
    task: str
    jobs: int


_SERVER = RowOf(
    Server,
    version="current_setting('server_version')",
    version_number="current_setting('server_version_num')::integer",
    user="current_user::text",
    database="current_database()::text",
    is_superuser="(select rolsuper from pg_roles where rolname = current_user)",
    sees_sessions="pg_has_role(current_user, 'pg_read_all_stats', 'usage')",
    is_standby="pg_is_in_recovery()",
    clock="clock_timestamp()",
    started_at="pg_postmaster_start_time()",
    xid_age="(select age(datfrozenxid) from pg_database where datname = current_database())",
)
_PROTOCOL = RowOf(migrate.Protocol)
_SETTING = RowOf(Setting, value="reset_val", unit="coalesce(unit, '')")
_ROLE = RowOf(
    Role,
    name="w.name",
    exists="r.oid is not null",
    granted="coalesce(has_schema_privilege(r.oid, 'faultline', 'usage'), false)",
    ours="coalesce(pg_has_role(session_user, r.oid, 'member'), false)",
    logins="array(select l.rolname::text from pg_roles l where l.rolcanlogin and not l.rolsuper"
    " and pg_has_role(l.oid, r.oid, 'member') order by 1)",
)
_STANDBY = RowOf(Standby, name="application_name")
_SLOT = RowOf(
    Slot,
    name="slot_name::text",
    retained_bytes="case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint end",
)
_WAITING = RowOf(
    Waiting,
    queue="p.queue",
    oldest_seconds="extract(epoch from faultline.clock() - min(greatest(p.at, p.created_at)))::float8",
    paused="exists (select from faultline.queues q where q.name = p.queue and q.paused_at is not null)",
)
_WAITING_TASK = RowOf(WaitingTask, queue="w.queue", task="w.task", jobs="count(*)")
_LOST_HISTORY = RowOf(LostHistory, jobs="count(distinct e.job_id)", since="min(e.at)")
_IN_THE_WAY = RowOf(
    InTheWay,
    pid="a.pid",
    application="a.application_name",
    login="a.usename::text",
    state="a.state",
    seconds="extract(epoch from clock_timestamp() - a.xact_start)::float8",
)
_OVERDUE = RowOf(
    Overdue,
    leases="count(*)",
    seconds="coalesce(max(extract(epoch from faultline.clock() - lease_expires_at)), 0)::float8",
)
_PAUSED = RowOf(Paused, queue="name", at="paused_at", reason="paused_reason")


def look(connection: psycopg.Connection, statement: Statement[T]) -> T | Unseen | CutShort:
    """Run a statement, if we may."""
    try:
        return run_on(connection, statement)
    except PermissionDenied as error:
        return Unseen(_without_advice(error))
    except (DatabaseBusy, StatementTimeout) as error:
        return CutShort(_without_advice(error))


def _without_advice(error: FaultlineError) -> str:
    return str(error).partition("; ")[0]


def in_the_way(pid: int) -> Statement[list[InTheWay]]:
    """The sessions that block this one."""
    return Statement(
        "in_the_way",
        f"select {_IN_THE_WAY.columns} from unnest(pg_blocking_pids(%s)) as b (pid) join pg_stat_activity a on a.pid = b.pid"
        " order by a.xact_start, a.pid",
        (pid,),
        _IN_THE_WAY.many,
        repeatable=True,
        reads=True,
    )


def give_up_waiting(pid: int) -> Statement[None]:
    """Cancel the statement of a waiting session of ours."""
    return Statement("give_up_waiting", "select pg_cancel_backend(%s)", (pid,), lambda _: None, reads=True)


def behind_pooler(connection: psycopg.Connection) -> bool:
    return not is_direct(connection, connection.execute("select pg_backend_pid()").fetchone())


def lift_limits(connection: psycopg.Connection) -> None:
    """Without the time limits of the login and the database, which are for programs: the doctor has limits of its own. Those
    that the DSN or PGOPTIONS give are the person's, and stay.
    """
    # One by one: to look up in `pg_settings` where each comes from takes longer than the shortest limit.
    for name in (b"statement_timeout", b"lock_timeout", b"idle_in_transaction_session_timeout"):
        if name.decode() not in connection.info.options:
            connection.execute(b"set " + name + b" = 0")


def server() -> Statement[Server]:
    return Statement("server", f"select {_SERVER.columns}", (), _SERVER.one, repeatable=True, reads=True)


def protocol() -> Statement[migrate.Protocol]:
    """The version of the database's definitions, for `migrate.check`."""
    sql = f"select {_PROTOCOL.columns} from faultline.protocol()"
    return Statement("protocol", sql, (), _PROTOCOL.one, repeatable=True, reads=True)


def way_in() -> Statement[str]:
    """Who can give this login the right to use the schema, and how."""
    return Statement(
        name="way_in",
        sql="select 'the schema belongs to ' || pg_get_userbyid(n.nspowner) || ', who may: '"
        " || case when exists (select from pg_class c where c.relnamespace = n.oid"
        "     and pg_get_userbyid(c.relowner) = current_user)"
        "   then format('alter schema faultline owner to %%I, whose tables are in it', current_user)"
        # What a login does not inherit is of no use to it. Since PostgreSQL 16 each grant says whether it is inherited.
        "   else format("
        "     case when u.rolinherit and not exists (select from pg_roles v"
        "         where v.rolname = 'faultline_viewer' and pg_has_role(u.oid, v.oid, 'member'))"
        "         then 'grant faultline_viewer to %%1$I, or another one of the four roles'"
        "       when current_setting('server_version_num')::integer >= 160000"
        "         then 'grant faultline_viewer to %%1$I with inherit true, or another one of the four roles'"
        "       else 'alter role %%1$I inherit; grant faultline_viewer to %%1$I, or another one of the four roles' end,"
        "     current_user) end"
        " from pg_namespace n cross join pg_roles u where n.nspname = 'faultline' and u.rolname = current_user",
        params=(),
        read=value,
        repeatable=True,
        reads=True,
    )


def settings(names: Sequence[str]) -> Statement[dict[str, Setting]]:
    """The settings of this login's sessions."""
    return Statement(
        name="settings",
        sql=f"select {_SETTING.columns} from pg_settings where name = any(%s)",
        params=(list(names),),
        read=lambda rows: {setting.name: setting for setting in _SETTING.many(rows)},
        repeatable=True,
        reads=True,
    )


def roles() -> Statement[list[Role]]:
    return Statement(
        name="roles",
        sql=f"select {_ROLE.columns}"
        " from unnest(%s::text[]) with ordinality as w (name, position) left join pg_roles r on r.rolname = w.name"
        " order by w.position",
        params=(list(ROLES),),
        read=_ROLE.many,
        repeatable=True,
        reads=True,
    )


def lost_history(days: int = 7) -> Statement[LostHistory]:
    """Refused writes that show that the database lost commits, in a failover or a restore."""
    return Statement(
        name="lost_history",
        sql=f"""
select {_LOST_HISTORY.columns}
from faultline.journal e
where e.event = '{JournalEvent.STALE_WRITE_BLOCKED}'
  -- Tokens up to the floor are known: `prune` has deleted their jobs, or `recover` has handled them.
  and e.fencing_token > (select s.token_floor from faultline.settings s)
  and e.at > greatest(
    faultline.clock() - make_interval(days => %s),
    (select s.recovered_at from faultline.settings s)
  )
  and (
    e.fencing_token > (e.detail ->> 'current_token')::bigint
    or (
      e.detail ->> 'current_token' is null
      and not exists (select from faultline.jobs j where j.id = e.job_id)
    )
  )
""",
        params=(days,),
        read=_LOST_HISTORY.one,
        repeatable=True,
        reads=True,
    )


def standbys() -> Statement[list[Standby]]:
    return _rows("standbys", _STANDBY, f"select {_STANDBY.columns} from pg_stat_replication order by name")


def slots() -> Statement[list[Slot]]:
    return _rows(
        "slots",
        _SLOT,
        f"select {_SLOT.columns} from pg_replication_slots order by name",
    )


def never_vacuumed() -> Statement[list[str]]:
    """Our tables with autovacuum switched off."""
    return Statement(
        name="never_vacuumed",
        sql="select relname::text from pg_class where relnamespace = 'faultline'::regnamespace"
        " and exists (select from pg_options_to_table(reloptions) where option_name = 'autovacuum_enabled'"
        " and not option_value::boolean) order by 1",
        params=(),
        read=values,
        repeatable=True,
        reads=True,
    )


def waiting_tasks() -> Statement[list[WaitingTask]]:
    """The tasks of queued jobs, due or not. Reads 100,000 jobs at the most, so that a large backlog costs little."""
    return _rows(
        "tasks",
        _WAITING_TASK,
        f"""
select {_WAITING_TASK.columns}
from (select j.queue, j.task from faultline.jobs j where j.state = 'queued' limit 100000) w
group by w.queue, w.task
order by w.queue, w.task
""",
    )


def waiting() -> Statement[list[Waiting]]:
    """The queues with due jobs, with one index lookup for each queue and priority, however many jobs wait."""
    return _rows(
        "waiting",
        _WAITING,
        f"""
with recursive known (queue) as (
  (select queue from faultline.jobs where state = 'queued' order by queue limit 1)
  union all
  select (select j.queue from faultline.jobs j where j.state = 'queued' and j.queue > k.queue order by j.queue limit 1)
  from known k
  where k.queue is not null
), levels (queue, priority) as (
  select k.queue, (
    select j.priority from faultline.jobs j where j.state = 'queued' and j.queue = k.queue order by j.priority limit 1
  )
  from known k
  where k.queue is not null
  union all
  select p.queue, (
    select j.priority from faultline.jobs j
    where j.state = 'queued' and j.queue = p.queue and j.priority > p.priority
    order by j.priority limit 1
  )
  from levels p
  where p.priority is not null
)
select {_WAITING.columns}
from (
  select p.queue, d.next_run_at as at, d.created_at
  from levels p
  cross join lateral (
    select j.next_run_at, j.created_at from faultline.jobs j
    where j.state = 'queued' and j.queue = p.queue and j.priority = p.priority
    order by j.next_run_at limit 100
  ) d
  where d.next_run_at <= faultline.clock()
  union all
  -- Those that wait in groups. `next_run_at` says nothing of them.
  select k.queue, g.group_at, g.created_at
  from known k
  cross join lateral (
    select j.group_at, j.created_at from faultline.open_jobs j where j.in_group and j.queue = k.queue limit 1000
  ) g
) p
group by p.queue
order by p.queue
""",
    )


def overdue() -> Statement[Overdue]:
    sql = f"select {_OVERDUE.columns} from faultline.jobs where state = 'running' and lease_expires_at < faultline.clock()"
    return Statement("overdue", sql, (), _OVERDUE.one, repeatable=True, reads=True)


def failed() -> Statement[int]:
    """How many jobs are in the state failed."""
    return Statement(
        name="failed",
        sql="select count(*) from faultline.jobs where state in ('failed', 'cancelled') and state = 'failed'",
        params=(),
        read=value,
        repeatable=True,
        reads=True,
    )


def paused() -> Statement[list[Paused]]:
    return _rows(
        "paused", _PAUSED, f"select {_PAUSED.columns} from faultline.queues where paused_at is not null order by name"
    )


def _rows(name: str, row: RowOf[T], sql: str) -> Statement[list[T]]:
    return Statement(name, sql, (), row.many, repeatable=True, reads=True)
